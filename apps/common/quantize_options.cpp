#include "apps/common/quantize_options.hpp"

#include <array>

#include "apps/common/app_main.hpp"

namespace fsdp {

namespace {
constexpr std::array kNf4{NamedValue<bool>{"nf4", true}, NamedValue<bool>{"none", false}};
}

void add_quantize_options(CLI::App& app, QuantizeConfig& o, const std::string& help, const std::string& group) {
  add_choice(app, "--quantize", kNf4, o.nf4, help)->default_str("none")->group(group);
  app.add_flag(spellings("double-quant"), o.double_quant, "with --quantize: its scales in 8 bits, too")->group(group);
}

}  // namespace fsdp
