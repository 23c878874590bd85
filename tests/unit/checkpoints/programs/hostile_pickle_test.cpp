// Pickles that would run code, never end, or fill the memory, in .pt files of both kinds and in .metadata.
#include <doctest/doctest.h>

#include <array>

#include "tests/unit/checkpoints/programs/hostile_support.hpp"

using namespace fsdp;
using test::PickleText;

namespace {

/// Memory for a few copies of the values of an input of some hundred kilobytes.
constexpr std::size_t allowed_allocation = 64u << 20;

struct Victim {
  test::TempDir directory;

  /// The messages for the three places that can hold a pickle.
  std::array<test::Outcome, 3> open(const std::string& pickle) {
    test::write_file(directory / "zip.pt", test::torch_file(pickle));
    test::write_file(directory / "legacy.pt", test::legacy_file(pickle));
    std::filesystem::create_directory(directory / "dcp");
    test::write_file(directory / "dcp" / ".metadata", pickle);
    test::reset_largest_allocation();
    return {test::read_everything(directory / "zip.pt"), test::read_everything(directory / "legacy.pt"),
            test::read_everything(directory / "dcp")};
  }

  void must_refuse(const std::string& pickle) {
    for (const auto& outcome : open(pickle)) {
      CHECK(outcome.refused);
      CHECK(outcome.message.find(directory.path().string()) != std::string::npos);
    }
    CHECK(test::largest_allocation() < allowed_allocation);
  }

  /// Accepts any result in bounded memory.
  void must_survive(const std::string& pickle) {
    open(pickle);
    CHECK(test::largest_allocation() < allowed_allocation);
  }
};

}  // namespace

TEST_SUITE("source/hostile_pickle") {
  TEST_CASE("functions that a pickle must not reach are refused and not called") {
    Victim victim;
    const auto mark = victim.directory / "called";
    const std::string command = "touch " + mark.string();
    for (const auto& [module, name] :
         std::initializer_list<std::pair<std::string, std::string>>{{"os", "system"},
                                                                    {"posix", "system"},
                                                                    {"nt", "system"},
                                                                    {"subprocess", "Popen"},
                                                                    {"subprocess", "check_output"},
                                                                    {"builtins", "eval"},
                                                                    {"builtins", "exec"},
                                                                    {"builtins", "getattr"},
                                                                    {"builtins", "__import__"},
                                                                    {"__builtin__", "eval"},
                                                                    {"__builtin__", "compile"},
                                                                    {"runpy", "_run_code"},
                                                                    {"importlib", "import_module"},
                                                                    {"torch", "load"},
                                                                    {"torch.hub", "load"},
                                                                    {"torch.serialization", "load"},
                                                                    {"torch._utils", "_rebuild_wrapper_subclass"},
                                                                    {"functools", "partial"},
                                                                    {"pickle", "loads"},
                                                                    {"shutil", "rmtree"},
                                                                    {"ctypes", "CDLL"},
                                                                    {"numpy", "load"}}) {
      CAPTURE(module);
      CAPTURE(name);
      victim.must_refuse(PickleText().global(module, name).string(command).op('\x85').op('R').done());
      victim.must_refuse(PickleText().global(module, name).string(command).op('\x85').op('\x81').done());
      // In a dict, beside harmless values.
      victim.must_refuse(
          PickleText().op('}').string("w").global(module, name).string(command).op('\x85').op('R').op('s').done());
      // Protocol 4 takes both names from the stack.
      PickleText stacked(4);
      for (const auto& text : {module, name}) stacked.raw("\x8c").op(static_cast<char>(text.size())).raw(text);
      victim.must_refuse(stacked.op('\x93').string(command).op('\x85').op('R').done());
    }
    CHECK_FALSE(std::filesystem::exists(mark));
  }

  TEST_CASE("allowed functions cannot be made to call others") {
    Victim victim;
    // defaultdict with a factory, a tensor subclass rebuilt by os.system, a codec, an OrderedDict made of a function.
    victim.must_refuse(
        PickleText().global("collections", "defaultdict").global("os", "system").op('\x85').op('R').done());
    victim.must_refuse(PickleText()
                           .global("torch._tensor", "_rebuild_from_type_v2")
                           .op('(')
                           .global("os", "system")
                           .global("torch", "Tensor")
                           .string("true")
                           .op('\x85')
                           .op('}')
                           .op('t')
                           .op('R')
                           .done());
    victim.must_survive(
        PickleText().global("_codecs", "encode").string("x").string("zlib_codec").op('\x86').op('R').done());
    victim.must_survive(
        PickleText().global("collections", "OrderedDict").global("torch", "Size").op('\x85').op('R').done());
    // BUILD with a state that would overwrite attributes.
    victim.must_survive(PickleText()
                            .global("argparse", "Namespace")
                            .op(')')
                            .op('\x81')
                            .op('}')
                            .string("__class__")
                            .global("torch", "Size")
                            .op('s')
                            .op('b')
                            .done());
  }

  TEST_CASE("other opcodes that call functions are refused") {
    Victim victim;
    victim.must_refuse(PickleText().op('(').string("true").raw("ios\nsystem\n").done());
    victim.must_refuse(PickleText().op('(').global("os", "system").string("true").op('o').done());
    victim.must_refuse(PickleText().raw("\x82\x01").done());
    victim.must_refuse(PickleText().raw("Pstorage\n").done());
  }

  TEST_CASE("nesting without end") {
    Victim victim;
    constexpr int deep = 200'000;
    victim.must_refuse(PickleText().repeat("]", deep).repeat("a", deep - 1).done());
    victim.must_refuse(PickleText().op(')').repeat("\x85", deep).done());
    victim.must_refuse(PickleText().repeat("(", deep).repeat("t", deep).done());
    PickleText dicts;
    for (int i = 0; i < deep / 10; ++i) dicts.op('}').string("k");
    victim.must_refuse(dicts.op('N').repeat("s", deep / 10).done());
    // A list that contains itself.
    victim.must_refuse(
        PickleText().op(']').raw(std::string_view("q\0", 2)).raw(std::string_view("h\0", 2)).op('a').done());
  }

  TEST_CASE("a few bytes that stand for billions of values") {
    Victim victim;
    // Thirty levels, each with ten references to the one before.
    PickleText laughs;
    laughs.op(']').raw(std::string_view("q\0", 2));
    for (char level = 1; level <= 30; ++level) {
      laughs.op(']').op('(');
      for (int i = 0; i < 10; ++i) laughs.op('h').op(static_cast<char>(level - 1));
      laughs.op('e').op('q').op(level);
    }
    victim.must_refuse(laughs.done());
    PickleText tuples;
    tuples.op(')');
    for (int level = 0; level < 100; ++level) tuples.raw("2\x86");  // DUP, TUPLE2
    victim.must_refuse(tuples.done());
    // A huge memo index.
    victim.must_survive(PickleText().op('N').op('r').number<4>(0xfffffffe).done());
    victim.must_refuse(PickleText().op('j').number<4>(0xfffffffe).done());
  }

  TEST_CASE("declared lengths beyond the input") {
    Victim victim;
    for (const std::uint64_t length :
         {0x7fffffffffffffffull, 0x8000000000000000ull, 0xffffffffffffffffull, 1ull << 40}) {
      for (const char op : {'\x8d', '\x8e', '\x96', '\x95'}) {  // BINUNICODE8, BINBYTES8, BYTEARRAY8, FRAME
        victim.must_refuse(PickleText(5).op(op).number<8>(length).raw("abc").done());
      }
    }
    for (const std::uint64_t length : {0xffffffffull, 0x7fffffffull, 0x10000000ull}) {
      for (const char op : {'X', 'B', '\x8b'}) {  // BINUNICODE, BINBYTES, LONG4
        victim.must_refuse(PickleText(4).op(op).number<4>(length).raw("abc").done());
      }
    }
    // A big integer of a hundred kilobytes, whose conversion to decimal digits takes quadratic time.
    PickleText big;
    victim.must_survive(big.op('\x8b').number<4>(100'000).repeat("\x7f", 100'000).done());
  }

  TEST_CASE("a name of two megabytes in a rank's files, and flat state that has a number for it") {
    const test::TempDir directory;
    const std::string name(2u << 20, 'n');
    constexpr std::array<std::uint64_t, 2> matrix{4, 2}, rows{2, 1};
    constexpr std::array<std::uint64_t, 1> flat{8}, next{1};
    PickleText model, optimizer;
    test::push_tensor(model.op('}').string(name), 8, 0, matrix, rows);
    optimizer.op('}').op('(').string("state").op('}').integer(0).op('}').string("exp_avg");
    test::push_tensor(optimizer, 8, 0, flat, next);
    optimizer.raw("ss").string("param_groups").op(']').op('}').string("params").op(']').integer(0).raw("asau");
    const std::array<std::string, 1> storage{std::string(32, 'a')};
    test::write_file(directory / "model_world_size_1_rank_0.pt", test::torch_file(model.op('s').done(), storage));
    test::write_file(directory / "optim_world_size_1_rank_0.pt", test::torch_file(optimizer.done(), storage));
    const auto outcome = test::read_everything(directory.path());
    CHECK(outcome.message == "");
    CHECK(outcome.tensors.contains("model." + name));
    CHECK(outcome.tensors.contains("optim.state." + name + ".exp_avg"));
  }
}
