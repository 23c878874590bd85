#pragma once
#include <string_view>

namespace fsdp {

/// `text` without white space at both ends, as str.strip() of Python takes it away, and so Jinja's `trim`.
std::string_view python_strip(std::string_view text);

}  // namespace fsdp
