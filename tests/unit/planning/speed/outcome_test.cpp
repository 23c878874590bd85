#include "lib/planning/speed/speed_outcome.hpp"

#include <doctest/doctest.h>

#include <string>

using namespace fsdp;

TEST_SUITE("speed/outcome") {
  TEST_CASE("beside_prediction: a large error is given as a factor") {
    const auto words = [](double seconds, bool is_gpu = false) {
      SpeedOutcome outcome;
      outcome.rates.is_gpu = is_gpu;
      outcome.seconds = seconds;
      outcome.predicted.seconds = 2;
      return beside_prediction(outcome);
    };
    CHECK(words(5.868, true) == "2.9 times slower than predicted: is the machine busy?");
    CHECK(words(5.868).starts_with("2.9 times slower than predicted: is the machine busy? "));
    CHECK(words(5.868).find("OMP_WAIT_POLICY=passive") != std::string::npos);
    CHECK(words(5.868).find("OMP_NUM_THREADS") != std::string::npos);
    CHECK(words(2.1) == "prediction +5.0 %");
    CHECK(words(1.8) == "prediction -10.0 %");
    CHECK(words(0.5) == "4.0 times faster than predicted");
  }

  TEST_CASE("slow_words: from twice the predicted time on, with the transport and its cure") {
    CHECK(slow_words(1.99, "NET/Socket") == "");
    const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
    const auto sockets = slow_words(11.26, "NET/Socket + P2P/CUMEM");
    CHECK(has(sockets, "11.3 times"));
    CHECK(has(sockets, "NET/Socket + P2P/CUMEM"));
    CHECK(has(sockets, "NCCL_IB_HCA"));
    CHECK(has(slow_words(2.0, "SHM/direct"), "--gpu-bind=none"));
    CHECK(has(slow_words(3.0, "P2P/CUMEM"), "P2P/CUMEM. If"));
    CHECK(has(slow_words(3.0, ""), "fsdp-bf16check"));
    CHECK(!has(slow_words(3.0, ""), "NCCL over"));
  }
}
