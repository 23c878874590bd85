#pragma once
// Values that are written as Python writes them.
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string_view>

namespace fsdp {

/// ast.literal_eval() of numbers, texts, truth values, None, and lists and tuples of these; nothing for other texts.
/// Whole numbers have at most 64 bits.
std::optional<nlohmann::ordered_json> python_literal(std::string_view text);

}  // namespace fsdp
