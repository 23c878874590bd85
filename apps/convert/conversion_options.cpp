#include "apps/convert/conversion_options.hpp"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/checkpoints/programs/formats.hpp"
#include "lib/checkpoints/programs/hf/hf_names.hpp"

namespace fsdp {
namespace {

constexpr std::array<std::pair<const char*, NameMap>, 6> kMaps{{{"none", NameMap::none},
                                                                {"mingpt-to-gpt2", NameMap::mingpt_to_gpt2},
                                                                {"gpt2-to-mingpt", NameMap::gpt2_to_mingpt},
                                                                {"llama-to-hf", NameMap::llama_to_hf},
                                                                {"hf-to-llama", NameMap::hf_to_llama},
                                                                {"hf-to-meta", NameMap::hf_to_meta}}};

/// A sort key for a name: runs of digits as numbers, the rest as text.
std::vector<std::pair<std::string, unsigned long long>> natural_key(const std::string& name) {
  std::vector<std::pair<std::string, unsigned long long>> key;
  for (std::size_t i = 0; i < name.size();) {
    auto& [text, number] = key.emplace_back();
    while (i < name.size() && std::isdigit(static_cast<unsigned char>(name[i])) == 0) text += name[i++];
    while (i < name.size() && std::isdigit(static_cast<unsigned char>(name[i])) != 0) {
      number = number * 10 + static_cast<unsigned>(name[i++] - '0');
    }
  }
  return key;
}

const FormatWriter& writer_of(const std::filesystem::path& output, std::string_view to, bool shards_given,
                              bool max_shard_size_given) {
  if (!to.empty()) {
    if (const auto* writer = find_writer(to)) return *writer;
    throw UsageError(fmt::format("--to {}: must be {}", to, format_names()));
  }
  if (const auto* writer = writer_of_suffix(output)) return *writer;
  if (shards_given && !max_shard_size_given) return *find_writer("dcp");
  if (max_shard_size_given && !shards_given) return *find_writer("hf");
  std::string suffixes;
  for (const auto* writer : format_writers()) suffixes += writer->suffixes;
  throw UsageError(fmt::format(
      "{}: its name does not say which format to write: give --to {} (or end it in one of{}; --shards alone "
      "means dcp, --max-shard-size alone hf)",
      output.string(), format_names(), suffixes));
}

/// The output path without a slash at its end: "out/" and "out" are one directory. Refuses the slash for a file.
std::filesystem::path output_path(const std::filesystem::path& given, const FormatWriter& writer) {
  if (given.has_filename()) return given;
  if (!writer.is_folder())
    throw UsageError(fmt::format("{}: --to {} writes a file, but this names a directory", given.string(), writer.name));
  return given.parent_path();
}

}  // namespace

SourceChanges changes_of(const InputOptions& options) {
  SourceChanges changes;
  const int origins = !options.param_shapes.empty() + !options.model_config.empty() + !options.reference.empty();
  if (origins > 1)
    throw UsageError("--param-shapes, --model-config and --reference all say what shapes parameters have: give one");
  changes.param_shapes = options.param_shapes;
  changes.model_config = options.model_config;
  changes.reference = options.reference;
  for (const auto& tie : options.ties) changes.ties.push_back(parse_pair(tie, "--tie"));
  if (!options.optim_files.empty()) changes.optim_files = expand_glob(options.optim_files, "--optim-files");
  changes.select.include = options.include;
  changes.select.exclude = options.exclude;
  for (const auto& text : options.rename) changes.select.rename.push_back(parse_pair(text, "--rename"));
  changes.select.model_only = options.model_only;
  changes.merge_adapter = options.merge_adapter;
  changes.dequantize = options.dequantize;
  if (!options.map.empty()) changes.map = parse_name_map(options.map);
  if (!options.dtype.empty()) changes.dtype = parse_dtype(options.dtype);
  if (options.quantize.double_quant && !options.quantize.enabled())
    throw UsageError("--double-quant needs --quantize nf4");
  changes.quantize = options.quantize;
  return changes;
}

Conversion conversion_of(const ConvertOptions& options) {
  Conversion conversion;
  conversion.input = options.paths[0];
  const auto& writer =
      choose_writer(options.paths[1], options.to, options.shards != 0, !options.max_shard_size.empty());
  conversion.writer = &writer;
  conversion.output = output_path(options.paths[1], writer);
  if (!options.config_from.empty() && !writer.takes_config)
    throw UsageError(fmt::format("--config-from goes with --to {} only: other formats have no place for these files",
                                 format_names([](const FormatWriter& one) { return one.takes_config; }, " and ")));
  const bool is_gguf = writer.name == "gguf";
  if (!options.pre_tokenizer.empty() && !is_gguf)
    throw UsageError("--pre-tokenizer goes with --to gguf only: other formats take tokenizer.json as it is");
  if (options.input.quantize.enabled() && is_gguf)
    throw UsageError("--quantize is for transformers: in a GGUF file give --dtype q8_0");
  auto input = options.input;
  if (is_gguf && !input.dtype.empty()) {
    conversion.gguf_type = parse_gguf_type(input.dtype);
    input.dtype = "float32";  // a merge computes in it, and the file's type is made of that once
  }
  conversion.changes = changes_of(input);
  conversion.num_shards = options.shards;
  if (!options.max_shard_size.empty())
    conversion.max_shard_bytes = parse_size(options.max_shard_size, "--max-shard-size");
  conversion.config_from = options.config_from;
  conversion.pre_tokenizer = options.pre_tokenizer;
  conversion.sync = options.sync;
  conversion.overwrite = options.overwrite;
  conversion.jobs = options.jobs;
  return conversion;
}

const FormatWriter& choose_writer(const std::filesystem::path& output, std::string_view to, bool shards_given,
                                  bool max_shard_size_given) {
  const auto& writer = writer_of(output, to, shards_given, max_shard_size_given);
  const auto refuse = [&](const char* option, bool (*takes)(const FormatWriter&)) {
    throw UsageError(fmt::format("{} goes with --to {} only; {} is written as {}", option,
                                 format_names(takes, " and --to "), output.string(), writer.name));
  };
  const auto takes_shards = [](const FormatWriter& one) { return one.takes_shards; };
  const auto takes_max_shard = [](const FormatWriter& one) { return one.takes_max_shard; };
  if (shards_given && !writer.takes_shards) refuse("--shards", takes_shards);
  if (max_shard_size_given && !writer.takes_max_shard) refuse("--max-shard-size", takes_max_shard);
  return writer;
}

std::uint64_t parse_size(std::string_view text, std::string_view option) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto unit = ascii_lower({end, text.data() + text.size()});
  constexpr std::array<std::pair<std::string_view, double>, 12> units{{{"", 1},
                                                                       {"b", 1},
                                                                       {"kb", 1e3},
                                                                       {"mb", 1e6},
                                                                       {"gb", 1e9},
                                                                       {"tb", 1e12},
                                                                       {"kib", 0x1p10},
                                                                       {"mib", 0x1p20},
                                                                       {"gib", 0x1p30},
                                                                       {"tib", 0x1p40},
                                                                       {"m", 1e6},
                                                                       {"g", 1e9}}};
  const auto* found = std::find_if(units.begin(), units.end(), [&](const auto& known) { return known.first == unit; });
  const double bytes = found == units.end() ? 0 : std::floor(number * found->second);
  if (error != std::errc() || found == units.end() || !(bytes >= 1 && bytes < 0x1p62)) {
    throw UsageError(fmt::format("{} {}: must be a size such as 5GB, 500MB or 2GiB", option, text));
  }
  return static_cast<std::uint64_t>(bytes);
}

NameMap parse_name_map(const std::string& text) {
  if (text.empty()) return NameMap::none;
  for (const auto& [name, map] : kMaps)
    if (text == name) return map;
  throw UsageError("--map " + text + ": must be one of " + name_maps());
}

std::string name_maps() {
  std::string names;
  for (const auto& [name, map] : kMaps) names += (names.empty() ? "" : ", ") + std::string(name);
  return names;
}

DType parse_dtype(const std::string& text) {
  constexpr std::array<std::pair<const char*, DType>, 8> shorter{{{"f64", DType::f64},
                                                                  {"fp64", DType::f64},
                                                                  {"f32", DType::f32},
                                                                  {"fp32", DType::f32},
                                                                  {"f16", DType::f16},
                                                                  {"fp16", DType::f16},
                                                                  {"half", DType::f16},
                                                                  {"bf16", DType::bf16}}};
  for (const auto& [name, dtype] : shorter) {
    if (text == name) return dtype;
  }
  try {
    return dtype_from_torch(text);
  } catch (const FormatError&) {
    throw UsageError("--dtype " + text + ": must be float32, bfloat16, float16 or float64 (or fp32, bf16, fp16, fp64)");
  }
}

GgufFileType parse_gguf_type(const std::string& text) {
  if (text == "q8_0") return GgufFileType::q8_0;
  try {
    return gguf_type_of(parse_dtype(text));
  } catch (const Error&) {
    throw UsageError("--dtype " + text +
                     ": a GGUF file is written in float32, float16, bf16 or q8_0; llama.cpp's llama-quantize makes "
                     "its other types of it");
  }
}

std::pair<std::string, std::string> parse_pair(const std::string& text, const std::string& option) {
  const auto at = text.rfind('=');
  if (at == std::string::npos || at == 0) throw UsageError(fmt::format("{} {}: must be A=B", option, text));
  return {text.substr(0, at), text.substr(at + 1)};
}

std::vector<std::filesystem::path> expand_glob(const std::string& pattern, const std::string& option) {
  ::glob_t found{};
  const int code = ::glob(pattern.c_str(), 0, nullptr, &found);
  std::vector<std::filesystem::path> files;
  for (std::size_t i = 0; code == 0 && i < found.gl_pathc; ++i) files.emplace_back(found.gl_pathv[i]);
  ::globfree(&found);
  if (files.empty()) throw MissingInput(fmt::format("{} {}: no such file", option, pattern));
  std::sort(files.begin(), files.end(),
            [](const auto& a, const auto& b) { return natural_key(a.string()) < natural_key(b.string()); });
  return files;
}

}  // namespace fsdp
