// Optimizer states that every rank saved with torch.save(optimizer.state_dict()).
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "lib/checkpoints/programs/formats.hpp"
#include "lib/checkpoints/programs/fsdp1/un_flatten.hpp"
#include "lib/formats/torch_blob.hpp"
#include "tests/unit/checkpoints/programs/convert_test_support.hpp"

using namespace fsdp;

namespace {

const std::string kName = "local_t241_ws3_gpt_rawoptim";

bool is_optim(const std::string& name) { return name.starts_with("optim."); }

UnFlattenOptions options_with(const std::vector<int>& ranks) {
  UnFlattenOptions options{read_parameter_shapes(test::fixture(kName) / "param_shapes.json"), {}, {}};
  for (const int rank : ranks) {
    options.optim_files.push_back(test::fixture(kName) / ("optim-rank" + std::to_string(rank) + ".pt"));
  }
  return options;
}

std::shared_ptr<const Source> local() { return open_source(test::fixture(kName) / "ckpt"); }

}  // namespace

TEST_SUITE("convert/raw_optim") {
  TEST_CASE("un_flatten: adds the optimizer states of all ranks to the model") {
    const auto source = un_flatten(local(), options_with({0, 1, 2}));
    const auto model = open_source(test::fixture(kName) / "expected.safetensors");
    const auto optim = open_source(test::fixture(kName) / "expected_optim.safetensors");
    test::check_same(*source, *model, [](const std::string& name) { return !is_optim(name); });
    test::check_same(*source, *optim, is_optim);
    const auto& tensor = source->tensors()[test::number_of(*source, "optim.state.transformer.wte.weight.exp_avg")];
    CHECK(tensor.path == StatePath{"optim", "state", "transformer.wte.weight", "exp_avg"});
    CHECK(source->info().files.size() == local()->info().files.size() + 3);
  }

  TEST_CASE("un_flatten: optimizer settings have names in place of ids") {
    const auto source = un_flatten(local(), options_with({0, 1, 2}));
    auto expected = nlohmann::json::parse(read_text_file(test::fixture(kName) / "expected_optim.json")).at("nontensor");
    expected.at("optim.param_groups.0.betas") = expected.at("optim.param_groups.0.betas").at("__tuple__");
    nlohmann::json found = nlohmann::json::object();
    for (std::size_t i = 0; i < source->values().size(); ++i) {
      const auto& entry = source->values()[i];
      CHECK(test::joined(entry.path) == entry.name);
      CHECK(entry.path.at(2) == StatePath::value_type(std::int64_t{0}));
      found[entry.name] = pickle_to_json(*source->value(i).value, "");
    }
    CHECK(found == expected);
  }

  TEST_CASE("un_flatten: refuses files that are not those of all ranks") {
    for (const auto& ranks : std::vector<std::vector<int>>{{0}, {0, 1}, {0, 1, 2, 2}}) {
      const auto message = test::message_of<FormatError>([&] { un_flatten(local(), options_with(ranks)); });
      CHECK_MESSAGE(message.find("are these the files of all") != std::string::npos, message);
    }
    auto options = options_with({0, 1, 2});
    options.optim_files[1] = test::fixture("pt_t211_gpt_full") / "ckpt.pt";
    CHECK_THROWS_AS(un_flatten(local(), options), FormatError);
    options.optim_files = {test::fixture("pt_t211_gpt_full") / "ckpt.pt"};
    const auto message = test::message_of<FormatError>([&] { un_flatten(local(), options); });
    CHECK_MESSAGE(message.find("param_groups") != std::string::npos, message);
    options.optim_files = {test::fixture("pt_t211_rawoptim_int_keys") / "ckpt.pt"};
    CHECK_THROWS_AS(un_flatten(local(), options), FormatError);
  }

  TEST_CASE("un_flatten: use_orig_params, where the optimizer's ids are the parameters and its states their slices") {
    const auto directory =
        std::filesystem::path(FSDP_FIXTURE_DIR).parent_path() / "unit" / "checkpoints" / "programs" / "uop_rawoptim";
    UnFlattenOptions options{read_parameter_shapes(directory / "param_shapes.json"), {}, {}};
    for (int rank = 0; rank < 3; ++rank) {
      options.optim_files.push_back(directory / ("optim-rank" + std::to_string(rank) + ".pt"));
    }
    const std::shared_ptr<const Source> local_state = open_source(directory / "ckpt");
    const auto source = un_flatten(local_state, options);
    test::check_same(*source, *open_source(directory / "expected.safetensors"));
    options.optim_files.pop_back();
    const auto message = test::message_of<FormatError>([&] { un_flatten(local_state, options); });
    CHECK_MESSAGE(message.find("are these the files of all 2 ranks") != std::string::npos, message);
  }
}
