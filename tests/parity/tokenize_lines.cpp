// Reads JSON strings from standard input, one per line, and prints their tokenization for tokenizer_hf_test.py:
// tokenize_lines gpt2|DIRECTORY. A line [prefix, suffix] is encoded for infilling.
// Printed per line: {"ids", "document", "decoded"}, or {"ids"} for infilling.
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "lib/base/types/error.hpp"
#include "lib/tokenizers/files/open_tokenizer.hpp"

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s gpt2|DIRECTORY\n", argv[0]);
    return 2;
  }
  const auto tokenizer = fsdp::open_tokenizer(argv[1]);
  for (std::string line; std::getline(std::cin, line);) {
    const auto input = nlohmann::json::parse(line);
    nlohmann::json output;
    if (input.is_array()) {
      output["ids"] = tokenizer->encode_infill(input.at(0).get<std::string>(), input.at(1).get<std::string>());
    } else {
      const auto text = input.get<std::string>();
      const auto ids = tokenizer->encode(text);
      output = {{"ids", ids}, {"document", tokenizer->encode_document(text)}, {"decoded", tokenizer->decode(ids)}};
    }
    std::cout << output.dump() << '\n';
  }
  return std::cout.flush() ? 0 : 1;
} catch (const fsdp::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return static_cast<int>(error.code());
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
