#include <doctest/doctest.h>

#include <numeric>

#include "lib/base/types/remedy.hpp"
#include "lib/checkpoints/programs/formats.hpp"
#include "lib/checkpoints/programs/hf/hf_names.hpp"
#include "lib/checkpoints/transform/transform.hpp"
#include "tests/support/advice_of.hpp"
#include "tests/unit/checkpoints/programs/convert_test_support.hpp"

using namespace fsdp;

namespace {

std::shared_ptr<const Source> fixture_model(const std::string& name, const char* file) {
  SelectOptions options;
  options.model_only = true;
  return select(open_source(test::fixture(name) / file), options);
}

std::vector<float> counting(std::size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.0f);
  return values;
}

ModelConfig small_llama() {
  ModelConfig config;
  config.architecture = Architecture::llama;
  config.num_heads = 2;
  config.num_kv_heads = 1;
  config.embed_size = 8;
  return config;
}

}  // namespace

TEST_SUITE("convert/name_map") {
  TEST_CASE("map_names: minGPT to GPT-2 and back, a whole model") {
    for (const auto* file : {"pt_t211_gpt_full", "full_t113_ws2_gpt"}) {
      const auto mingpt = fixture_model(file, "ckpt.pt");
      const std::shared_ptr<const Source> gpt2 = map_names(mingpt, NameMap::mingpt_to_gpt2);
      CHECK(test::names_of(*gpt2) == test::names_of(*mingpt));
      std::size_t transposed = 0;
      for (std::size_t i = 0; i < mingpt->tensors().size(); ++i) {
        const auto& from = mingpt->tensors()[i];
        CAPTURE(from.name);
        const auto in = test::values_of<float>(test::read_whole(*mingpt, i));
        auto wanted = in;
        auto shape = from.shape;
        // GPT2LMHeadModel uses Conv1D for every linear layer of a block.
        if (from.shape.size() == 2 && from.name.find(".h.") != std::string::npos) {
          ++transposed;
          std::swap(shape[0], shape[1]);
          const auto rows = static_cast<std::size_t>(from.shape[0]), columns = static_cast<std::size_t>(from.shape[1]);
          for (std::size_t r = 0; r < rows; ++r) {
            for (std::size_t c = 0; c < columns; ++c) wanted[c * rows + r] = in[r * columns + c];
          }
          CHECK(gpt2->prefers_whole(i));
        }
        CHECK(gpt2->tensors()[i].shape == shape);
        CHECK((test::values_of<float>(test::read_whole(*gpt2, i)) == wanted));
        CHECK((test::values_of<float>(test::read_pieces(*gpt2, i, 41)) == wanted));
      }
      CHECK(transposed > 0);
      CHECK(transposed % 4 == 0);
      test::check_same(*map_names(gpt2, NameMap::gpt2_to_mingpt), *mingpt);
    }
  }

  TEST_CASE("map_names: reads the bare GPT2Model of the hub, with its masks") {
    auto source = std::make_shared<test::MemorySource>();
    source->add("wte.weight", DType::f32, {3, 2}, test::bytes_of(counting(6)));
    source->add("h.11.attn.bias", DType::f32, {1, 1, 2, 2}, test::bytes_of(counting(4)));
    source->add("h.11.attn.masked_bias", DType::f32, {}, test::bytes_of(counting(1)));
    source->add("h.11.attn.c_attn.weight", DType::f32, {2, 6}, test::bytes_of(counting(12)));
    source->add("ln_f.bias", DType::f32, {2}, test::bytes_of(counting(2)));
    const auto result = map_names(source, NameMap::gpt2_to_mingpt);
    CHECK(source->reads() == 0);
    CHECK(test::names_of(*result) == std::vector<std::string>{"transformer.wte.weight",
                                                              "transformer.h.11.attn.c_attn.weight",
                                                              "transformer.ln_f.bias"});
    CHECK(result->tensors()[1].shape == Shape{6, 2});
    CHECK(test::values_of<float>(test::read_whole(*result, 1)) ==
          std::vector<float>{0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11});
  }

  TEST_CASE("map_names: reads a large transposed matrix in few pieces, whole and in parts") {
    auto source = std::make_shared<test::MemorySource>();
    constexpr std::size_t kRows = 3000, kColumns = 1100;
    source->add("transformer.h.0.mlp.c_fc.weight", DType::f32, {kRows, kColumns},
                test::bytes_of(counting(kRows * kColumns)));
    const auto result = map_names(source, NameMap::mingpt_to_gpt2);
    const auto whole = test::values_of<float>(test::read_whole(*result, 0));
    CHECK(source->reads() == 2);
    bool right = true;
    for (std::size_t c = 0; c < kColumns; ++c) {
      for (std::size_t r = 0; r < kRows; ++r)
        right = right && whole[c * kRows + r] == static_cast<float>(r * kColumns + c);
    }
    CHECK(right);
    test::Bytes part(70'000 * 4);
    result->read(0, 123'457, 70'000, part, nullptr);
    CHECK((test::values_of<float>(part) == std::vector<float>(whole.begin() + 123'457, whole.begin() + 193'457)));
  }

  TEST_CASE("map_names: nesting stays, and tensors of an optimizer are refused") {
    auto source = std::make_shared<test::MemorySource>();
    source->add("model.wte.weight", DType::f32, {1}, test::bytes_of(counting(1)), {"model", "wte.weight"});
    const auto result = map_names(source, NameMap::gpt2_to_mingpt);
    CHECK(result->tensors()[0].name == "model.transformer.wte.weight");
    CHECK(result->tensors()[0].path == StatePath{"model", "transformer.wte.weight"});
    source->add("optim.state.wte.weight.exp_avg", DType::f32, {1}, test::bytes_of(counting(1)), {"optim", "x"});
    CHECK(test::advice_of([&] { map_names(source, NameMap::gpt2_to_mingpt); }).remedy == Remedy::model_only);
    auto other = std::make_shared<test::MemorySource>();
    other->add("transformer.h.x.ln_1.weight", DType::f32, {1}, test::bytes_of(counting(1)));
    const auto message = test::message_of<RequestError>([&] { map_names(other, NameMap::mingpt_to_gpt2); });
    CHECK_MESSAGE(message.find("transformer.h.x.ln_1.weight") != std::string::npos, message);
    auto flat = std::make_shared<test::MemorySource>();
    flat->add("transformer.h.0.mlp.c_fc.weight", DType::f32, {1}, test::bytes_of(counting(1)));
    CHECK_THROWS_AS(map_names(flat, NameMap::mingpt_to_gpt2), FormatError);
  }

  TEST_CASE("map_names: a Llama has the same names on both sides") {
    const auto llama = fixture_model("pt_t241_llama_full", "ckpt.pt");
    const std::shared_ptr<const Source> hf = map_names(llama, NameMap::llama_to_hf);
    test::check_same(*hf, *llama);
    test::check_same(*map_names(hf, NameMap::hf_to_llama), *llama);
    // The names of a bare LlamaModel, as older versions of transformers saved it.
    auto bare = std::make_shared<test::MemorySource>();
    bare->add("layers.0.self_attn.rotary_emb.inv_freq", DType::f32, {1}, test::bytes_of(counting(1)));
    bare->add("layers.0.mlp.up_proj.weight", DType::f32, {1, 1}, test::bytes_of(counting(1)));
    bare->add("norm.weight", DType::f32, {1}, test::bytes_of(counting(1)));
    CHECK(test::names_of(*map_names(bare, NameMap::hf_to_llama)) ==
          std::vector<std::string>{"model.layers.0.mlp.up_proj.weight", "model.norm.weight"});
  }

  TEST_CASE("map_names: a Llama of Meta, with heads in rotary order") {
    // transformers' conversion of a query matrix of 2 heads of width 4: permute() of convert_llama_weights_to_hf.py,
    // view(heads, width / 2, 2, columns).transpose(1, 2), takes rows 0 2 1 3 | 4 6 5 7.
    auto meta = std::make_shared<test::MemorySource>();
    const Shape query{8, 3}, key{4, 3};
    meta->add("layers.0.attention.wq.weight", DType::f32, query, test::bytes_of(counting(24)));
    meta->add("layers.0.attention.wk.weight", DType::f32, key, test::bytes_of(counting(12)));
    meta->add("layers.0.attention.wv.weight", DType::f32, key, test::bytes_of(counting(12)));
    meta->add("layers.0.feed_forward.w2.weight", DType::f32, {1}, test::bytes_of(counting(1)));
    meta->add("rope.freqs", DType::f32, {1}, test::bytes_of(counting(1)));
    CHECK_THROWS_AS(map_names(meta, NameMap::llama_to_hf), RequestError);  // the number of heads is missing
    const auto config = small_llama();
    const std::shared_ptr<const Source> hf = map_names(meta, NameMap::llama_to_hf, &config);
    CHECK(test::names_of(*hf) ==
          std::vector<std::string>{"model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight",
                                   "model.layers.0.self_attn.v_proj.weight", "model.layers.0.mlp.down_proj.weight"});
    const std::vector<float> wanted{0,  1,  2,  6,  7,  8,  3,  4,  5,  9,  10, 11,
                                    12, 13, 14, 18, 19, 20, 15, 16, 17, 21, 22, 23};
    CHECK(test::values_of<float>(test::read_whole(*hf, 0)) == wanted);
    for (std::uint64_t piece = 1; piece < 24; ++piece) {
      CHECK(test::values_of<float>(test::read_pieces(*hf, 0, piece)) == wanted);
    }
    CHECK(test::values_of<float>(test::read_whole(*hf, 1)) == std::vector<float>(wanted.begin(), wanted.begin() + 12));
    CHECK(test::values_of<float>(test::read_whole(*hf, 2)) == counting(12));
    const auto back = map_names(hf, NameMap::hf_to_meta, &config);
    CHECK(back->tensors()[0].name == "layers.0.attention.wq.weight");
    CHECK(test::values_of<float>(test::read_whole(*back, 0)) == counting(24));
    CHECK(test::values_of<float>(test::read_pieces(*back, 1, 5)) == counting(12));
    auto odd = std::make_shared<test::MemorySource>();
    odd->add("layers.0.attention.wq.weight", DType::f32, {6, 1}, test::bytes_of(counting(6)));
    CHECK_THROWS_AS(map_names(odd, NameMap::llama_to_hf, &config), FormatError);
  }
}
