#include "lib/training/run/restart_command.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <system_error>

#include "lib/base/text/text_format.hpp"
#include "lib/training/step/plan.hpp"

namespace fsdp::detail {

std::string program_command(const std::filesystem::path& started, int ranks) {
  std::filesystem::path program = started, launcher = "mpiexec";
  if (program.has_parent_path()) {
    program = std::filesystem::absolute(program).lexically_normal();
    std::error_code error;
    if (const auto beside = program.parent_path() / launcher; std::filesystem::exists(beside, error)) launcher = beside;
  }
  const auto start = ranks > 1 ? fmt::format("{} -n {} ", shell_word(launcher), ranks) : std::string();
  return start + shell_word(program);
}

std::string restart_command(const TrainOptions& options, int ranks) {
  const auto& out = options.out_dir;
  const auto name = run_directory(options).lexically_relative(out).string();
  auto whole = std::filesystem::absolute(out).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();
  return fmt::format("{} --out-dir {} --run-name {} --restart-checkpoint-file latest{}{}",
                     program_command(options.program, ranks), shell_word(whole), shell_word(name),
                     options.repeated.empty() ? "" : " ", fmt::join(options.repeated, " "));
}

}  // namespace fsdp::detail
