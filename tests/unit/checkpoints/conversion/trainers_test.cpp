// Checkpoints as trainers, PyTorch 2.15 and torch-checkpointing wrote them: every tensor equals the library's bit for
// bit, and what is incomplete is refused. tests/fixtures/trainers has a few; ../shared/fixtures/doors has all.
#include <array>
#include <nlohmann/json.hpp>

#include "lib/checkpoints/conversion/conversion_input.hpp"
#include "lib/checkpoints/model/model_source.hpp"
#include "lib/checkpoints/programs/dcp/dcp.hpp"
#include "lib/checkpoints/programs/formats.hpp"
#include "lib/checkpoints/programs/fsdp_finetune/run_values.hpp"
#include "lib/checkpoints/programs/torch_save/torch_target.hpp"
#include "lib/checkpoints/target/copy.hpp"
#include "lib/ranks/process_group.hpp"
#include "tests/support/temp_files.hpp"
#include "tests/unit/checkpoints/programs/convert_test_support.hpp"

using namespace fsdp;

namespace {

/// A fixture, and what stands before the names of its expected.safetensors here.
struct Door {
  const char* name;
  const char* prefix;
  const char* format;
};
constexpr std::array<Door, 29> kDoors{{{"dcp_t215_quantized_hf", "", "safetensors"},
                                       {"dcp_t215_ws1_nodist", "", "DCP"},
                                       {"dcp_t215_ws2_async_process", "", "DCP"},
                                       {"dcp_t215_ws2_async_thread", "", "DCP"},
                                       {"dcp_t215_ws2_checkpointable", "", "DCP"},
                                       {"dcp_t215_ws2_dedup_cached", "", "DCP"},
                                       {"dcp_t215_ws2_hf_consolidated", "", "safetensors"},
                                       {"dcp_t215_ws2_hf_sharded", "", "safetensors shards (DCP)"},
                                       {"dcp_t215_ws2_noflatten", "", "DCP"},
                                       {"dcp_t215_ws3_fsdp2_optim", "", "DCP"},
                                       {"dcp_t215_ws4_hsdp", "", "DCP"},
                                       {"dcp_t215_ws4_tp", "", "DCP"},
                                       {"titan_step_ws2", "", "DCP of torchtitan"},
                                       {"tcp_ws2_safetensors", "", "torch-checkpointing"},
                                       {"tcp_ws2_sync", "", "torch-checkpointing"},
                                       {"tcp_ws3_reshard", "", "torch-checkpointing"},
                                       {"accel_fsdp1_ws2_full", "model.", "torch zip of accelerate"},
                                       {"accel_fsdp1_ws2_sharded", "model.", "DCP of accelerate"},
                                       {"accel_fsdp2_ws2_full", "model.", "torch zip of accelerate"},
                                       {"accel_fsdp2_ws2_nodcp", "model.", "files per rank"},
                                       {"accel_fsdp2_ws2_sharded", "model.", "DCP of accelerate"},
                                       {"hf_trainer_ws1", "", "safetensors of Hugging Face Trainer"},
                                       {"hf_trainer_ws2", "", "safetensors of Hugging Face Trainer"},
                                       {"lightning_ckpt", "state_dict.", "torch zip of Lightning"},
                                       {"lightning_fsdp_ws2_full", "state_dict.", "torch zip of Lightning"},
                                       {"lightning_fsdp_ws2_sharded", "model.", "DCP of Lightning"},
                                       {"lightning_mp_ws2_sharded", "state_dict.", "DCP of Lightning"},
                                       {"composer_ep0_ba2", "model.", "torch zip of Composer"},
                                       {"composer_sharded_ws2", "model.", "DCP of Composer"}}};

const std::filesystem::path kTrainers = std::filesystem::path(FSDP_FIXTURE_DIR) / "trainers";

/// The checkpoint of a fixture as a user names it.
std::filesystem::path door(const std::filesystem::path& fixture) {
  const auto file = fixture / "ckpt.ckpt";
  return checkpoint_in_run(std::filesystem::exists(file) ? file : fixture / "ckpt");
}

std::shared_ptr<const Source> open_door(const std::filesystem::path& path) {
  SourceChanges options;
  options.dequantize = path.string().find("quantized") != std::string::npos;
  return transformed(open_input(path, options, true), options);
}

bool has_tensor(const Source& source, const std::string& name) {
  return std::ranges::any_of(source.tensors(), [&](const auto& tensor) { return tensor.name == name; });
}

/// A value of a checkpoint as JSON.
nlohmann::json value_of(const Source& source, const std::string& name) {
  for (std::size_t i = 0; i < source.values().size(); ++i)
    if (source.values()[i].name == name) return value_as_json(source, i);
  FAIL("no value ", name);
  return nullptr;
}

/// The names of an optimizer's first group.
std::vector<std::string> names_of_numbers(const Source& source) {
  return value_of(source, "optim.param_groups.0.params").get<std::vector<std::string>>();
}

/// Compares the tensors of `file` with those of `source`. \return how many there were
std::size_t compare_with(const std::filesystem::path& file, const Source& source, const std::string& prefix,
                         std::vector<ReadSum>& sums) {
  const SafetensorsReader truth(file);
  for (const auto& [key, entry] : truth.tensors()) {
    auto name = prefix + key;
    CAPTURE(name);
    // A directory of Hugging Face has a tied head under the embedding's name alone.
    if (key == "lm_head.weight" && !has_tensor(source, name)) name = "model.embed_tokens.weight";
    // Lightning's full file of FSDP1 has numbers, and so has its truth.
    if (const std::string states = "optim.state."; key.starts_with(states) && std::isdigit(key[states.size()]) != 0) {
      const auto end = key.find('.', states.size());
      name = states + names_of_numbers(source).at(std::stoul(key.substr(states.size()))) + key.substr(end);
    }
    test::Bytes expected(entry.end - entry.begin);
    truth.read_rows(key, 0, entry.shape.empty() ? 1 : entry.shape[0], expected);
    const auto number = test::number_of(source, name);
    CHECK(source.tensors()[number].dtype == entry.dtype);
    CHECK(source.tensors()[number].shape == entry.shape);
    CHECK(test::read_whole(source, number, &sums) == expected);
    CHECK(test::read_pieces(source, number, 7) == expected);
  }
  return truth.tensors().size();
}

void compare_door(const Door& known, const std::filesystem::path& fixture) {
  const auto source = open_door(door(fixture));
  CHECK(source->info().format == known.format);
  std::vector<ReadSum> sums;
  auto compared = compare_with(fixture / "expected.safetensors", *source, known.prefix, sums);
  const auto optimizer = fixture / "expected_optim.safetensors";
  if (std::filesystem::exists(optimizer)) compared += compare_with(optimizer, *source, "", sums);
  CHECK_NOTHROW(source->verify_sums(sums));
  std::size_t others = 0;
  for (const auto& tensor : source->tensors())
    if (tensor.name.starts_with("rng.")) ++others;
  CHECK(source->tensors().size() + (known.name == std::string("hf_trainer_ws2") ? 1 : 0) == compared + others);
  for (std::size_t i = 0; i < source->values().size(); ++i) CHECK_NOTHROW(source->value(i));
}

std::string reason_of_refusal(const std::filesystem::path& path) {
  try {
    open_source(path);
  } catch (const FormatError& error) {
    return error.what();
  }
  return "";
}

std::filesystem::path copy_of(const test::TempDir& folder, const char* fixture) {
  const auto copied = folder.path() / fixture;
  std::filesystem::copy(kTrainers / fixture / "ckpt", copied, std::filesystem::copy_options::recursive);
  return copied;
}

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_SUITE("convert/trainers") {
  TEST_CASE("every checkpoint equals its library's") {
    std::size_t compared = 0;
    const auto shared = std::filesystem::canonical(FSDP_FIXTURE_DIR).parent_path().parent_path().parent_path() /
                        "shared" / "fixtures" / "doors";
    if (!std::filesystem::is_directory(shared))
      MESSAGE(shared.string(), " is not there; tests/fixtures/trainers has a few of its checkpoints");
    for (const auto& folder : {kTrainers, shared})
      for (const auto& known : kDoors) {
        CAPTURE(known.name);
        if (!std::filesystem::exists(folder / known.name / "expected.safetensors")) continue;
        compare_door(known, folder / known.name);
        ++compared;
      }
    CHECK(compared >= 6);
  }

  TEST_CASE("counters, rates and the optimizer's names are values") {
    const auto trainer = open_source(kTrainers / "hf_trainer_ws2/ckpt/checkpoint-4");
    CHECK(trainer->info().trainer == "Hugging Face Trainer");
    CHECK(value_of(*trainer, "trainer_state.global_step") == 4);
    CHECK(value_of(*trainer, "optim.param_groups.0.initial_lr") == 0.01);
    CHECK(value_of(*trainer, "optim.param_groups.1.params")[0] == "model.layers.0.self_attn.q_proj.bias");
    CHECK(value_of(*trainer, "lr_scheduler.last_epoch") == 4);
    const auto composer = open_source(door(kTrainers / "composer_ep0_ba2"));
    CHECK(value_of(*composer, "state.timestamp.Timestamp.batch") == 2);
    bool told = false;
    for (const auto& remark : composer->info().remarks)
      told = told || (contains(remark, "left out") && contains(remark, "Timestamp.total_wct (datetime.timedelta)"));
    CHECK(told);
    const auto items = open_source(kTrainers / "tcp_ws2_safetensors/ckpt");
    CHECK(value_of(*items, "step") == 2);
    CHECK(value_of(*items, "config")["name"] == "tiny");
  }

  TEST_CASE("a class of a program is refused by name when its value is read") {
    const test::TempDir folder;
    const auto copied = copy_of(folder, "hf_trainer_ws2") / "checkpoint-4";
    // A legacy file of torch.save whose object is {"a": os.system}, without storages.
    const std::string magic = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.";
    const std::string machine = std::string("\x80\x02}X\x0d\0\0\0little_endian\x88s.", 24);
    const std::string object = std::string("\x80\x02}X\x01\0\0\0acos\nsystem\ns.\x80\x02].", 26);
    test::write_file(copied / "scheduler.pt", magic + machine + object);
    const auto source = open_source(copied);
    std::string refused;
    for (std::size_t i = 0; i < source->values().size(); ++i) {
      try {
        source->value(i);
      } catch (const FormatError& error) {
        refused += error.what();
      }
    }
    CHECK(contains(refused, "os.system"));
  }

  TEST_CASE("the weights of a trainer's folder can be had alone") {
    const auto weights = open_weights(kTrainers / "hf_trainer_ws2/ckpt/checkpoint-4");
    CHECK(weights->info().format == "safetensors");
    CHECK(weights->tensors().size() == 14);
    CHECK(weights->values().empty());
  }

  TEST_CASE("a folder of checkpoints stands for its newest one") {
    const test::TempDir folder;
    const auto old = folder.path() / "checkpoint-3", newest = folder.path() / "checkpoint-20";
    std::filesystem::copy(kTrainers / "hf_trainer_ws2/ckpt/checkpoint-4", old);
    std::filesystem::copy(kTrainers / "hf_trainer_ws2/ckpt/checkpoint-4", newest);
    std::filesystem::create_directory(folder.path() / "checkpoint-100");  // a save that was cut short
    CHECK(checkpoint_in_run(folder.path()) == newest);
    CHECK(
        contains(remark_of_newest(folder.path()), "checkpoint-100: has the name of a newer checkpoint and holds none"));
    CHECK(contains(remark_of_newest(folder.path()), "checkpoint-20 is taken"));
    CHECK(remark_of_newest(newest).empty());
    std::filesystem::rename(folder.path() / "checkpoint-100", folder.path() / "checkpoint-10");
    CHECK(remark_of_newest(folder.path()).empty());  // an older one
    // One with run.json is this program's.
    test::write_file(newest / "run.json", "{}");
    CHECK(checkpoint_in_run(folder.path()) == old);
    for (const auto* name : {"epoch=0-step=900.ckpt", "epoch=1-step=1000.ckpt", "epoch=1-step=90.ckpt"})
      test::write_file(folder.path() / name, "x");
    CHECK(checkpoint_in_run(folder.path()).filename() == "epoch=1-step=1000.ckpt");
    test::write_file(folder.path() / "last.ckpt", "x");
    CHECK(checkpoint_in_run(folder.path()).filename() == "last.ckpt");
  }

  TEST_CASE("a link of Composer may not lead out of its folder") {
    const test::TempDir folder;
    const auto copied = copy_of(folder, "composer_ep0_ba2");
    test::write_file(folder.path() / "outside.pt", "x");
    test::write_file(copied / "latest-rank0.pt", "../outside.pt");
    CHECK(checkpoint_in_run(copied) == copied / "ep0-ba2-rank0.pt");
    test::write_file(copied / "latest-rank0.pt", "..");
    CHECK(checkpoint_in_run(copied) == copied / "ep0-ba2-rank0.pt");
  }

  TEST_CASE("numbers of an optimizer stay where nothing says which parameters they are") {
    const test::TempDir folder;
    const auto copied = copy_of(folder, "hf_trainer_ws2") / "checkpoint-4";
    std::filesystem::remove(copied / "config.json");
    const auto source = open_source(copied);
    CHECK(has_tensor(*source, "optim.state.0.exp_avg"));
    REQUIRE(source->info().remarks.size() >= 1);
    CHECK(contains(source->info().remarks[0], "numbers for names"));
  }

  TEST_CASE("trainer_state.json as Python writes it, and random states as a bare pickle") {
    const test::TempDir folder;
    const auto copied = copy_of(folder, "hf_trainer_ws2") / "checkpoint-4";
    test::write_file(copied / "rng_state_0.pth", "\x80\x02N.");
    test::write_file(copied / "trainer_state.json",
                     R"({"global_step": 4, "loss": NaN, "x": [-Infinity, Infinity, 1], "s": "\\\"NaN\"", "t": "\\"})");
    const auto source = open_source(copied);
    REQUIRE(source->info().remarks.size() == 1);
    CHECK(contains(source->info().remarks[0], "rng_state_0.pth"));
    CHECK(value_of(*source, "trainer_state.loss").is_null());
    CHECK(value_of(*source, "trainer_state.x")[2] == 1);
    CHECK(value_of(*source, "trainer_state.s") == "\\\"NaN\"");
    CHECK(value_of(*source, "trainer_state.t") == "\\");
  }

  TEST_CASE("a .metadata of a later PyTorch: unknown fields are named and passed over") {
    const test::TempDir folder;
    const auto copied = copy_of(folder, "dcp_t215_ws2_checkpointable");
    CHECK(open_source(copied)->info().remarks.empty());  // TensorProperties have six items
    auto text = read_text_file(copied / ".metadata");
    const std::string known = "planner_data";
    const auto at = text.find(known);
    REQUIRE(at != std::string::npos);
    text[at + known.size() - 1] = 'x';
    test::write_file(copied / ".metadata", text);
    const auto source = open_source(copied);
    CHECK(source->tensors().size() == 3);
    REQUIRE(source->info().remarks.size() == 1);
    CHECK(contains(source->info().remarks[0], "Metadata.planner_datx"));
  }

  TEST_CASE("torch-checkpointing: pieces without metadata, missing ranks and ranks of another save") {
    const test::TempDir folder;
    const auto copied = copy_of(folder, "tcp_ws2_safetensors");
    std::filesystem::copy(copied / "step_1.pt", copied / "step_2.pt");
    const auto source = open_source(copied);
    REQUIRE(source->info().remarks.size() >= 1);
    CHECK(contains(source->info().remarks[0], "rank 2"));
    CHECK(contains(reason_of_refusal(copied / "model_0.safetensors"), "folder"));
    std::filesystem::remove(copied / "model_1.safetensors");
    CHECK(contains(reason_of_refusal(copied), "rank 1"));
    std::filesystem::copy(copied / "model_0.safetensors", copied / "model_1.safetensors");
    CHECK(contains(reason_of_refusal(copied), "model_1.safetensors"));  // of another shape than rank 1's
    std::filesystem::remove(copied / "metadata.pkl");
    CHECK(contains(reason_of_refusal(copied), "model_1.safetensors"));
    CHECK(contains(reason_of_refusal(copied), "metadata.pkl"));
    // A class in metadata.pkl is named, not made.
    test::write_file(copied / "metadata.pkl", std::string("\x80\x02") + "cos\nsystem\n.");
    CHECK(contains(reason_of_refusal(copied), "os.system"));
  }

  TEST_CASE("a GPT-2's moments turn with its matrices") {
    const test::TempDir folder;
    const auto width = std::int64_t{2};
    test::write_file(
        folder.path() / "config.json",
        R"({"model_type": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 2, "vocab_size": 3, "n_positions": 4})");
    struct Parameter {
      const char* name;
      Shape shape;
    };
    const std::vector<Parameter> parameters{{"transformer.wte.weight", {3, width}},
                                            {"transformer.wpe.weight", {4, width}},
                                            {"transformer.h.0.ln_1.weight", {width}},
                                            {"transformer.h.0.ln_1.bias", {width}},
                                            {"transformer.h.0.attn.c_attn.weight", {width, 3 * width}},
                                            {"transformer.h.0.attn.c_attn.bias", {3 * width}},
                                            {"transformer.h.0.attn.c_proj.weight", {width, width}},
                                            {"transformer.h.0.attn.c_proj.bias", {width}},
                                            {"transformer.h.0.ln_2.weight", {width}},
                                            {"transformer.h.0.ln_2.bias", {width}},
                                            {"transformer.h.0.mlp.c_fc.weight", {width, 4 * width}},
                                            {"transformer.h.0.mlp.c_fc.bias", {4 * width}},
                                            {"transformer.h.0.mlp.c_proj.weight", {4 * width, width}},
                                            {"transformer.h.0.mlp.c_proj.bias", {width}},
                                            {"transformer.ln_f.weight", {width}},
                                            {"transformer.ln_f.bias", {width}}};
    std::vector<ShardRecord> weights;
    std::deque<std::vector<float>> data;
    test::MemorySource optimizer;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      auto& values = data.emplace_back(static_cast<std::size_t>(num_elements(parameters[i].shape)));
      for (std::size_t k = 0; k < values.size(); ++k) values[k] = static_cast<float>(100 * i + k);
      ShardRecord record;
      record.name = parameters[i].name;
      record.dtype = DType::f32;
      record.global_shape = record.sizes = parameters[i].shape;
      record.offsets = Shape(parameters[i].shape.size(), 0);
      record.data = std::as_bytes(std::span(values));
      weights.push_back(record);
      optimizer.add("state." + record.name + ".exp_avg", DType::f32, parameters[i].shape, test::bytes_of(values),
                    {"state", record.name, "exp_avg"});
    }
    write_safetensors(folder.path() / "model.safetensors", weights, {});
    const auto self = make_single_group();
    TorchTarget target(folder.path() / "optimizer.bin");
    copy(optimizer, target, folder.path() / "optimizer.bin", {}, *self);
    const auto source = open_model_source(folder.path());
    CHECK(source->info().trainer == "accelerate");
    const auto name = std::string("transformer.h.0.attn.c_attn.weight");
    for (const auto& tensor : {name, "optim.state." + name + ".exp_avg"}) {
      const auto number = test::number_of(*source, tensor);
      CHECK(source->tensors()[number].shape == Shape{3 * width, width});
      const std::vector<float> turned{400, 406, 401, 407, 402, 408, 403, 409, 404, 410, 405, 411};
      CHECK(test::read_whole(*source, number) == test::bytes_of(turned));
    }
    const auto alone = open_model_weights(folder.path());
    CHECK(alone->tensors().size() == parameters.size());
  }
}
