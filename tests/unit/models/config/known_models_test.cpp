#include "lib/models/config/known_models.hpp"

#include <doctest/doctest.h>

#include <map>

TEST_SUITE("config/known_models") {
  TEST_CASE("the models have the numbers of parameters that are published for them") {
    // The tensors on the hub have these; a tied head is counted once, although the files of Falcon hold it twice.
    const std::map<std::string, std::int64_t> published{{"codellama/CodeLlama-7b-hf", 6738546688},
                                                        {"codellama/CodeLlama-13b-hf", 13016028160},
                                                        {"codellama/CodeLlama-34b-hf", 33743970304},
                                                        {"meta-llama/Llama-2-7b-hf", 6738415616},
                                                        {"meta-llama/Llama-2-13b-hf", 13015864320},
                                                        {"meta-llama/Llama-2-70b-hf", 68976648192},
                                                        {"meta-llama/Meta-Llama-3-8B", 8030261248},
                                                        {"meta-llama/Meta-Llama-3-70B", 70553706496},
                                                        {"meta-llama/Llama-3.1-8B", 8030261248},
                                                        {"meta-llama/Llama-3.1-70B", 70553706496},
                                                        {"meta-llama/Llama-3.1-405B", 405853388800},
                                                        {"meta-llama/Llama-3.2-1B", 1235814400},
                                                        {"meta-llama/Llama-3.2-3B", 3212749824},
                                                        {"mistralai/Mistral-7B-v0.1", 7241732096},
                                                        {"mistralai/Mistral-7B-v0.3", 7248023552},
                                                        {"Qwen/Qwen2.5-0.5B", 494032768},
                                                        {"Qwen/Qwen2.5-1.5B", 1543714304},
                                                        {"Qwen/Qwen2.5-3B", 3085938688},
                                                        {"Qwen/Qwen2.5-7B", 7615616512},
                                                        {"Qwen/Qwen2.5-14B", 14770033664},
                                                        {"Qwen/Qwen2.5-32B", 32763876352},
                                                        {"Qwen/Qwen2.5-72B", 72706203648},
                                                        {"Qwen/Qwen3-0.6B", 596049920},
                                                        {"Qwen/Qwen3-1.7B", 1720574976},
                                                        {"Qwen/Qwen3-4B", 4022468096},
                                                        {"Qwen/Qwen3-8B", 8190735360},
                                                        {"Qwen/Qwen3-14B", 14768307200},
                                                        {"Qwen/Qwen3-32B", 32762123264},
                                                        {"google/gemma-2-2b", 2614341888},
                                                        {"google/gemma-2-9b", 9241705984},
                                                        {"google/gemma-2-27b", 27227128320},
                                                        {"tiiuae/falcon-7b", 6921720704},
                                                        {"tiiuae/falcon-40b", 41303293952},
                                                        {"tiiuae/falcon-180B", 178557088768},
                                                        {"openai-community/gpt2", 124439808},
                                                        {"openai-community/gpt2-medium", 354823168},
                                                        {"openai-community/gpt2-large", 774030080},
                                                        {"openai-community/gpt2-xl", 1557611200}};
    CHECK(fsdp::known_model_names().size() == published.size());
    for (const auto& name : fsdp::known_model_names()) {
      CAPTURE(name);
      const auto known = fsdp::find_known_model(name);
      REQUIRE(known);
      CHECK(known->name == name);
      CHECK(fsdp::num_parameters(fsdp::parameter_table(known->config)) == published.at(name));
    }
  }

  TEST_CASE("a model is found by the names that people type, and by no others") {
    const auto name_of = [](const char* typed) {
      const auto known = fsdp::find_known_model(typed);
      return known ? known->name : std::string();
    };
    CHECK(name_of("CodeLlama-7b") == "codellama/CodeLlama-7b-hf");
    CHECK(name_of("llama-3-70b") == "meta-llama/Meta-Llama-3-70B");
    CHECK(name_of("meta-llama/Meta-Llama-3.1-8B-Instruct") == "meta-llama/Llama-3.1-8B");
    CHECK(name_of("meta-llama/Llama-2-7b-chat-hf") == "meta-llama/Llama-2-7b-hf");
    CHECK(name_of("gemma-2-9b-it") == "google/gemma-2-9b");
    CHECK(name_of("gpt2") == "openai-community/gpt2");
    CHECK(name_of("somebody/Llama-2-7b-hf").empty());
    CHECK(name_of("CodeLlama-7b-Python-hf").empty());  // another vocabulary
    CHECK(name_of("llama").empty());
    CHECK(name_of("").empty());
    CHECK(name_of("mingpt").empty());
  }
}
