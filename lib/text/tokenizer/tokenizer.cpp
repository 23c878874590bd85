#include "lib/text/tokenizer/tokenizer.hpp"

#include "lib/base/error.hpp"

namespace fsdp {

std::vector<std::int32_t> Tokenizer::encode_infill(std::string_view, std::string_view) const {
  throw UsageError("the vocabulary (" + description() +
                   ") has no marks for infilling: take a model that was trained for it, such as CodeLlama-7b");
}

}  // namespace fsdp
