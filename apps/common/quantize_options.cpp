#include "apps/common/quantize_options.hpp"

#include "apps/common/app_main.hpp"

namespace fsdp {

void add_quantize_options(CLI::App& app, QuantizeConfig& o, const std::string& help, const std::string& group) {
  app.add_option_function<std::string>(
         "--quantize",
         [&](const std::string& text) {
           if (text != "nf4" && text != "none") throw UsageError("--quantize is '" + text + "', choose from nf4, none");
           o.nf4 = text == "nf4";
         },
         help)
      ->default_str("none")
      ->group(group);
  app.add_flag(spellings("double-quant"), o.double_quant, "with --quantize: its scales in 8 bits, too")->group(group);
}

}  // namespace fsdp
