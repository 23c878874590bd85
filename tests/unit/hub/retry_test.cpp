#include "lib/hub/hub_failure.hpp"

#include <doctest/doctest.h>

#include <ctime>

using namespace fsdp;
using namespace std::chrono_literals;

TEST_SUITE("hub/retry") {
  TEST_CASE("wait_asked_by: seconds, dates and the hub's RateLimit") {
    const auto asked = [](const char* name, const std::string& value) { return wait_asked_by({429, {{name, value}}}); };
    CHECK(asked("retry-after", "120") == 120s);
    CHECK(asked("retry-after", "0") == 0s);
    CHECK(asked("retry-after", "Wed, 21 Oct 2015 07:28:00 GMT") == 0s);
    const auto later = std::time(nullptr) + 100;
    char text[64];
    std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", std::gmtime(&later));
    const auto wait = asked("retry-after", text);
    REQUIRE(wait);
    CHECK(*wait >= 95s);
    CHECK(*wait <= 100s);
    const HttpHeaders hour_behind{{"retry-after", "Wed, 21 Oct 2099 07:28:03 GMT"},
                                  {"date", "Wed, 21 Oct 2099 07:28:00 GMT"}};
    CHECK(wait_asked_by({429, hour_behind}) == 3s);  // relative to the server's date, independent of this host's clock
    CHECK(asked("ratelimit", "\"api\";r=0;t=55") == 55s);
    CHECK(asked("ratelimit", "\"api\"; r=0; t=55") == 55s);
    CHECK_FALSE(asked("ratelimit", "\"api\";r=3;t=55"));
    for (const char* odd : {"", "-5", "soon", "5x", "99999999999999999999"}) {
      CAPTURE(odd);
      CHECK_FALSE(asked("retry-after", odd));
    }
    CHECK_FALSE(wait_asked_by({429, {}}));
  }

  TEST_CASE("worth_retrying: only temporary failures") {
    for (const int status : {408, 425, 429, 500, 502, 503, 504}) CHECK(worth_retrying(status));
    for (const int status : {200, 206, 302, 400, 401, 403, 404, 416, 501, 505}) CHECK_FALSE(worth_retrying(status));
  }

  TEST_CASE("Backoff: limits consecutive attempts; progress resets the count") {
    Backoff backoff({3, 0ms, 0ms, 10s}, {});
    CHECK(backoff.wait({}));
    CHECK(backoff.wait({}));
    CHECK_FALSE(backoff.wait({}));
    CHECK(backoff.failures() == 3);
    backoff.progress();
    for (int i = 0; i < 3; ++i) CHECK(backoff.wait({}));
    CHECK_FALSE(backoff.wait({}));
  }

  TEST_CASE("Backoff: waits longer each time and as long as requested, up to a limit") {
    const auto elapsed = [](auto call) {
      const auto begin = std::chrono::steady_clock::now();
      call();
      return std::chrono::steady_clock::now() - begin;
    };
    Backoff backoff({9, 20ms, 10s, 10s}, {});
    CHECK(elapsed([&] { backoff.wait({}); }) >= 15ms);
    CHECK(elapsed([&] { backoff.wait({}); }) >= 30ms);
    CHECK(elapsed([&] { backoff.wait({}); }) >= 60ms);
    CHECK(elapsed([&] { backoff.wait(1s); }) >= 1s);
    CHECK_FALSE(backoff.wait(11s));
    Backoff stopped({9, 1h, 1h, 10s}, [] { return true; });
    CHECK(stopped.wait({}));  // returns at once, otherwise this test would not end
  }
}
