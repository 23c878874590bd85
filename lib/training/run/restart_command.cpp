#include "lib/training/run/restart_command.hpp"

#include <fmt/format.h>

#include <cctype>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "lib/base/utf8.hpp"
#include "lib/training/step/plan.hpp"

namespace fsdp {

std::optional<std::string> saved_path(const std::string& path) {
  if (!is_utf8(path)) return std::nullopt;
  std::error_code error;
  auto absolute = std::filesystem::absolute(path, error).lexically_normal().string();
  return error || !is_utf8(absolute) ? path : absolute;
}

}  // namespace fsdp

namespace fsdp::detail {
namespace {

/// As one word of a shell.
std::string quoted(const std::string& text) {
  constexpr std::string_view kPlain = "/._-+=:,@%";
  bool is_plain = !text.empty();
  for (const char c : text)
    is_plain = is_plain && (std::isalnum(static_cast<unsigned char>(c)) != 0 || kPlain.find(c) != kPlain.npos);
  if (is_plain) return text;
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

}  // namespace

std::string restart_command(const TrainOptions& options) {
  const auto& out = options.out_dir;
  const auto name = run_directory(options).lexically_relative(out).string();
  auto whole = std::filesystem::absolute(out).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();
  return fmt::format("fsdp-finetune --out-dir {} --run-name {} --restart-checkpoint-file latest", quoted(whole),
                     quoted(name));
}

}  // namespace fsdp::detail
