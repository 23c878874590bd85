// State dicts of optimizers as torch.save wrote them (tests/fixtures/training), compared with the values in
// safetensors.
#include "lib/checkpoints/programs/formats.hpp"
#include "tests/unit/checkpoints/programs/source_test_support.hpp"

using namespace fsdp;

namespace {

const std::filesystem::path kFolder = std::filesystem::path(FSDP_FIXTURE_DIR) / "training/optim_traj";

/// Counts the tensors of `name`.pt that the safetensors file has with the same type, shape and bytes.
/// \param parameters  by number
int count_equal(const std::string& name, const std::vector<std::string>& parameters) {
  const auto source = open_source(kFolder / (name + ".pt"));
  const SafetensorsReader truth(kFolder / (name + ".safetensors"));
  int equal = 0;
  for (std::size_t i = 0; i < source->tensors().size(); ++i) {
    const auto& tensor = source->tensors()[i];
    CAPTURE(tensor.name);
    if (!tensor.name.starts_with("state.")) continue;  // such as a learning rate
    const auto end_of_number = tensor.name.find('.', 6);
    const auto number = std::stoul(tensor.name.substr(6, end_of_number - 6));
    const auto key = tensor.name.substr(end_of_number);
    if (key == ".step" || key == ".RMS") continue;         // the other file has no scalars
    if (key.find(".qmap") != std::string::npos) continue;  // nor constants
    const auto entry = truth.tensors().find("step20.state." + parameters.at(number) + key);
    REQUIRE(entry != truth.tensors().end());
    CHECK(entry->second.dtype == tensor.dtype);
    CHECK(entry->second.shape == tensor.shape);
    test::Bytes expected(entry->second.end - entry->second.begin);
    truth.read_rows(entry->first, 0, tensor.shape.at(0), expected);
    CHECK(test::read_whole(*source, i, nullptr) == expected);
    ++equal;
  }
  return equal;
}

}  // namespace

TEST_SUITE("source/optimizer states") {
  TEST_CASE("reads .pt files of optimizers of torch, transformers, torchdistx, bitsandbytes and torchao") {
    const std::vector<std::string> all{"bias", "norm", "odd", "blocks", "emb"};
    CHECK(count_equal("adamw_torch", all) == 10);
    CHECK(count_equal("anyprecision_bf16_kahan", all) == 15);
    CHECK(count_equal("adafactor_torch", all) == 8);
    CHECK(count_equal("adafactor_hf_relative", all) == 8);
    CHECK(count_equal("bnb_adamw8bit", all) == 14);  // blocks and emb with scales
    CHECK(count_equal("ao_adamw8bit", all) == 12);   // codes and scales of the matrices of blocks
    CHECK(count_equal("ao_adamw4bit", all) == 12);
    CHECK(count_equal("muon_original", {"odd", "blocks", "emb"}) == 3);
  }
}
