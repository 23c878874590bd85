#include "apps/convert/inspect.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "apps/common/remedies.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/checkpoints/source/plain_value.hpp"
#include "lib/checkpoints/target/value_json.hpp"

namespace fsdp {
namespace {

using Json = nlohmann::json;

std::string shape_text(const Json& shape) {
  std::string text;
  for (const auto& size : shape) text += (text.empty() ? "" : " x ") + std::to_string(size.get<std::int64_t>());
  return text.empty() ? "scalar" : text;
}

Json describe_tensor(const SourceTensor& tensor) {
  const auto type = tensor.other ? tensor.other->name : std::string(torch_name(tensor.dtype));
  const auto& shape = tensor.other ? tensor.other->shape : tensor.shape;
  return {{"name", tensor.name},
          {"dtype", type},
          {"shape", shape},
          {"shards", tensor.num_shards},
          {"bytes", tensor.size_bytes()},
          {"stored_bytes", tensor.stored_bytes}};
}

std::uint64_t size_of(const std::filesystem::path& file) {
  std::error_code error;
  const auto size = std::filesystem::file_size(file, error);
  return error ? 0 : size;
}

/// Aligns columns to their widest cells, except for the last column.
std::string aligned(const std::vector<std::array<std::string, 5>>& rows, const std::array<bool, 5>& to_the_right) {
  std::array<std::size_t, 5> widths{};
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      line += to_the_right[c] ? fmt::format("{:>{}}  ", row[c], widths[c]) : fmt::format("{:<{}}  ", row[c], widths[c]);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string cut(std::string text) {
  constexpr std::size_t kWidest = 76;
  if (text.size() <= kWidest) return text;
  text.resize(kWidest - 3);
  while (!text.empty() && (static_cast<unsigned char>(text.back()) & 0xc0) == 0x80) text.pop_back();  // cut character
  if (!text.empty() && (static_cast<unsigned char>(text.back()) & 0x80) != 0) text.pop_back();
  return text + "...";
}

/// Describes an adapter: "LoRA of rank 8, alpha 16, of q_proj v_proj, beside MODEL". Leaves out fields that are missing
/// or have a wrong type.
std::string adapter_text(const Json& adapter) {
  const auto is_true = [&](const char* name) { return adapter.value(name, Json()) == true; };
  std::string text = is_true("use_dora") ? "DoRA" : is_true("use_rslora") ? "rsLoRA" : "LoRA";
  if (adapter.value("peft_type", Json()) != "LORA") text = json_text(adapter.value("peft_type", Json("an adapter")));
  for (const auto& [name, words] : {std::pair{"r", " of rank "}, std::pair{"lora_alpha", ", alpha "}}) {
    if (adapter.contains(name) && adapter[name].is_number()) text += words + json_text(adapter[name]);
  }
  std::vector<std::string> targets;
  for (const auto& target : adapter.value("target_modules", Json::array())) {
    if (target.is_string()) targets.push_back(target.get<std::string>());
  }
  std::sort(targets.begin(), targets.end());
  if (!targets.empty()) text += fmt::format(", of {}", fmt::join(targets, " "));
  const auto base = adapter.value("base_model_name_or_path", Json());
  if (base.is_string() && !base.get<std::string>().empty()) text += ", beside " + base.get<std::string>();
  return text;
}

/// The value as JSON; the reason for a value that is not read.
Json value_of(const Source& source, std::size_t value) {
  try {
    return Json::parse(value_to_json(*source.value(value).value, source.values()[value].name));
  } catch (const ValueNotRead& refusal) {
    return {{"__not_read__", told(refusal)}};
  }
}

}  // namespace

Json inspect(const Source& source) {
  const auto& info = source.info();
  Json files = Json::array();
  for (const auto& file : info.files) files.push_back({{"name", file.string()}, {"bytes", size_of(file)}});
  Json tensors = Json::array();
  std::int64_t elements = 0;
  std::uint64_t bytes = 0;
  std::uint64_t stored_bytes = 0;
  std::int64_t shards = 0;
  for (const auto& tensor : source.tensors()) {
    tensors.push_back(describe_tensor(tensor));
    elements += num_elements(tensor.shape);
    bytes += tensor.size_bytes();
    stored_bytes += tensor.stored_bytes;
    shards += tensor.num_shards;
  }
  Json values = Json::array();
  for (std::size_t i = 0; i < source.values().size(); ++i) {
    const auto& name = source.values()[i].name;
    values.push_back({{"name", name}, {"value", value_of(source, i)}});
  }
  Json totals{{"tensors", source.tensors().size()},
              {"elements", elements},
              {"shards", shards},
              {"bytes", bytes},
              {"stored_bytes", stored_bytes},
              {"values", source.values().size()},
              {"files", info.files.size()}};
  Json found{{"format", info.format},         {"producer", info.producer},
             {"world_size", info.world_size}, {"local_state", is_local_state(source)},
             {"files", std::move(files)},     {"metadata", info.metadata},
             {"tensors", std::move(tensors)}, {"values", std::move(values)},
             {"totals", std::move(totals)}};
  if (!info.adapter.empty()) found["adapter"] = parse_json(info.adapter, info.directory.string());
  return found;
}

std::string inspection_table(const Json& inspection) {
  std::string text = fmt::format("format      {}\n", inspection.at("format").get<std::string>());
  const auto producer = inspection.at("producer").get<std::string>();
  text += fmt::format("producer    {}\n", producer.empty() ? "unknown" : producer);
  const auto ranks = inspection.at("world_size").get<int>();
  text += fmt::format("world size  {}\n", ranks > 0 ? std::to_string(ranks) : "unknown");
  if (inspection.contains("adapter")) text += fmt::format("adapter     {}\n", adapter_text(inspection["adapter"]));
  for (const auto& [key, value] : inspection.at("metadata").items()) {
    text += fmt::format("metadata    {} = {}\n", key, cut(value.get<std::string>()));
  }
  std::vector<std::array<std::string, 5>> rows{{"tensor", "dtype", "shards", "bytes", "shape"}};
  for (const auto& tensor : inspection.at("tensors")) {
    rows.push_back({tensor.at("name").get<std::string>(), tensor.at("dtype").get<std::string>(),
                    std::to_string(tensor.at("shards").get<std::int64_t>()),
                    format_count(tensor.at("bytes").get<std::int64_t>()), shape_text(tensor.at("shape"))});
  }
  if (rows.size() > 1) text += "\n" + aligned(rows, {false, false, true, true, false});
  rows = {{"value", "", "", "", ""}};
  for (const auto& value : inspection.at("values")) {
    rows.push_back({value.at("name").get<std::string>(), cut(json_text(value.at("value"))), "", "", ""});
  }
  if (rows.size() > 1) text += "\n" + aligned(rows, {});
  const auto& totals = inspection.at("totals");
  text += fmt::format(
      "\n{}, {}, {} ({}), {}, {}\n", format_count_of(totals.at("tensors").get<std::int64_t>(), "tensor"),
      format_count_of(totals.at("elements").get<std::int64_t>(), "element"),
      format_count_of(totals.at("bytes").get<std::int64_t>(), "byte"), format_bytes(totals.at("bytes").get<double>()),
      format_count_of(totals.at("values").get<std::int64_t>(), "value"),
      format_count_of(totals.at("files").get<std::int64_t>(), "data file"));
  if (inspection.at("local_state").get<bool>()) {
    text += "\nFSDP1 local state: the _flat_param tensors hold many parameters each, one after the other.\n";
  }
  return text;
}

}  // namespace fsdp
