#include <doctest/doctest.h>

#include "lib/base/types/remedy.hpp"
#include "lib/checkpoints/transform/select.hpp"
#include "lib/checkpoints/transform/transform.hpp"
#include "tests/support/advice_of.hpp"
#include "tests/unit/checkpoints/programs/convert_test_support.hpp"

using namespace fsdp;

namespace {

using Names = std::vector<std::string>;

/// Tensors of one byte, which is the number of the tensor.
std::shared_ptr<test::MemorySource> with(const std::vector<StatePath>& paths) {
  auto source = std::make_shared<test::MemorySource>();
  for (const auto& path : paths) {
    source->add(test::joined(path), DType::u8, {1}, {static_cast<std::byte>(source->tensors().size())}, path);
  }
  return source;
}

std::shared_ptr<test::MemorySource> flat(const Names& names) {
  std::vector<StatePath> paths;
  for (const auto& name : names) paths.push_back({name});
  return with(paths);
}

Names selected(const std::shared_ptr<test::MemorySource>& source, const SelectOptions& options) {
  return test::names_of(*select(source, options));
}

SelectOptions model_only() {
  SelectOptions options;
  options.model_only = true;
  return options;
}

}  // namespace

TEST_SUITE("convert/select") {
  TEST_CASE("select: include and exclude") {
    const auto source = flat({"a.h.0.w", "a.h.1.w", "a.h.10.w", "b.w"});
    source->add_value("a.step");
    source->add_value("c");
    SelectOptions options;
    options.include = {"a.*"};
    CHECK(selected(source, options) == Names{"a.h.0.w", "a.h.1.w", "a.h.10.w"});
    CHECK(select(source, options)->values().size() == 1);
    options.exclude = {"*.h.1?.*", "a.h.0.w"};
    CHECK(selected(source, options) == Names{"a.h.1.w"});
    CHECK(test::read_whole(*select(source, options), 0) == test::Bytes{std::byte{1}});
    options = {};
    options.include = {"b.w", "a.h.1.w"};
    CHECK(selected(source, options) == Names{"a.h.1.w", "b.w"});
    options.include = {"b"};
    CHECK_THROWS_AS(select(source, options), RequestError);
    options.include = {""};
    CHECK_THROWS_AS(select(source, options), RequestError);
    options.include = {"*b*w*"};
    CHECK(selected(source, options) == Names{"b.w"});
    options.include = {"**a**?w"};
    CHECK(selected(source, options).size() == 3);
    options.include = {"c", "a.*"};
    options.must_match = true;
    CHECK(selected(source, options).size() == 3);
    options.exclude = {"a.h.2.w"};
    CHECK_THROWS_WITH_AS(select(source, options), doctest::Contains("'a.h.2.w' matches no name"), RequestError);
    CHECK(test::advice_of([&] { select(source, options); }).remedy == Remedy::of_exclude);
    options = {};
    options.include = {"?"};
    CHECK(selected(source, options).empty());
    CHECK(select(source, options)->values().size() == 1);
  }

  TEST_CASE("select: renaming keeps the containers that both names have") {
    const auto source =
        with({{"model", "h.0.w"}, {"optim", "state", "h.0.w", "m"}, {"x"}, {"groups", std::int64_t{0}, "lr"}});
    SelectOptions options;
    options.rename = {{"h\\.(\\d+)\\.", "layers.$1."}, {"^x$", "y.z"}, {"groups\\.0\\.lr", "groups.0.rate"}};
    const auto result = select(source, options);
    CHECK(test::names_of(*result) == Names{"model.layers.0.w", "optim.state.layers.0.w.m", "y.z", "groups.0.rate"});
    CHECK(result->tensors()[0].path == StatePath{"model", "layers.0.w"});
    CHECK(result->tensors()[1].path == StatePath{"optim", "state", "layers.0.w.m"});
    CHECK(result->tensors()[2].path == StatePath{"y.z"});
    CHECK(result->tensors()[3].path == StatePath{"groups", std::int64_t{0}, "rate"});
    options.rename = {{"^model\\.", ""}};
    CHECK(select(source, options)->tensors()[0].path == StatePath{"h.0.w"});
    CHECK(select(source, options)->tensors()[1].path == source->tensors()[1].path);
    options.rename = {{"[", "x"}};
    CHECK_THROWS_AS(select(source, options), RequestError);
    options.rename = {{".*", "same"}};
    CHECK_THROWS_AS(select(source, options), RequestError);
    options.rename = {{"^x$", ""}};
    CHECK_THROWS_AS(select(source, options), RequestError);
    options.rename = {{"x", "y"}};
    CHECK_THROWS_AS(select(flat({std::string(5000, 'x')}), options), RequestError);
  }

  TEST_CASE("select: keeps only the model, without its container") {
    auto source = with({{"model", "transformer.wte.weight"}, {"optim", "state", "a", "m"}, {"step"}, {"model", "b"}});
    source->add_value("lr_scheduler.x", {"lr_scheduler", "x"});
    source->add_value("model._extra_state", {"model", "_extra_state"});
    const auto result = select(source, model_only());
    CHECK(test::names_of(*result) == Names{"transformer.wte.weight", "b"});
    CHECK(result->tensors()[1].path == StatePath{"b"});
    REQUIRE(result->values().size() == 1);
    CHECK(result->values()[0].name == "_extra_state");
    CHECK(result->values()[0].path == StatePath{"_extra_state"});
    // Renaming sees the names without the container, patterns see them with it.
    SelectOptions options = model_only();
    options.include = {"model.*"};
    options.rename = {{"^b$", "c"}};
    CHECK(selected(source, options) == Names{"transformer.wte.weight", "c"});
    options.include = {"optim.*"};
    CHECK_THROWS_AS(select(source, options), RequestError);
  }

  TEST_CASE("select: marks the tensors that belong to the model") {
    // A restart file of minimal_fsdp, safetensors made of nested dicts, and plain state dicts of a Llama, whose names
    // begin with "model.".
    CHECK(selected(with({{"model_state", "w"}, {"optimizer_state", "state", "w", "m"}}), model_only()) == Names{"w"});
    CHECK(selected(flat({"model.transformer.w", "model.b", "optim.state.b.m", "lr_scheduler.x"}), model_only()) ==
          Names{"transformer.w", "b"});
    CHECK(selected(flat({"model.embed_tokens.weight", "model.norm.weight"}), model_only()) ==
          Names{"model.embed_tokens.weight", "model.norm.weight"});
    CHECK(selected(flat({"model.layers.0.w", "lm_head.weight", "optimizer.state.0.m"}), model_only()) ==
          Names{"model.layers.0.w", "lm_head.weight"});
    CHECK(selected(flat({"model.model.layers.0.w", "model.lm_head.weight"}), model_only()) ==
          Names{"model.layers.0.w", "lm_head.weight"});
    CHECK(selected(with({{"model", "model.layers.0.w"}, {"model", "lm_head.weight"}}), model_only()) ==
          Names{"model.layers.0.w", "lm_head.weight"});
    CHECK(selected(flat({"transformer.w", "model.b"}), model_only()) == Names{"transformer.w", "model.b"});
  }

  TEST_CASE("view_complex_as_real: changes shape and name, and reads any range") {
    auto source = std::make_shared<test::MemorySource>();
    std::vector<float> pairs(12);
    for (std::size_t i = 0; i < pairs.size(); ++i) pairs[i] = static_cast<float>(i);
    source->add("a.c", DType::c64, {3, 2}, test::bytes_of(pairs), {"a", "c"});
    source->add("d", DType::c128, {}, test::bytes_of<double>({1, 2}));
    source->add("e", DType::f32, {2}, test::bytes_of<float>({3, 4}));
    const auto result = view_complex_as_real(source);
    CHECK(test::names_of(*result) == Names{"a.c@view_as_real", "d@view_as_real", "e"});
    CHECK(result->tensors()[0].path == StatePath{"a", "c@view_as_real"});
    CHECK(result->tensors()[0].shape == Shape{3, 2, 2});
    CHECK(result->tensors()[1].shape == Shape{2});
    CHECK(result->tensors()[1].dtype == DType::f64);
    for (std::uint64_t first = 0; first <= 12; ++first) {
      for (std::uint64_t count = 0; first + count <= 12; ++count) {
        test::Bytes out(count * 4);
        result->read(0, first, count, out, nullptr);
        const auto from = pairs.begin() + static_cast<std::ptrdiff_t>(first);
        CHECK(test::values_of<float>(out) == std::vector<float>(from, from + static_cast<std::ptrdiff_t>(count)));
      }
    }
    source->add("d@view_as_real", DType::f32, {0}, {});
    CHECK_THROWS_AS(view_complex_as_real(source), RequestError);
  }
}
