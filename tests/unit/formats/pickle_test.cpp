#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "lib/base/types/error.hpp"
#include "lib/formats/pickle/pickle_reader.hpp"
#include "lib/formats/pickle/pickle_writer.hpp"
#include "lib/formats/torch_blob.hpp"
#include "tests/unit/formats/formats_test_support.hpp"

using namespace fsdp;
using nlohmann::json;
using namespace std::string_literals;

namespace {

PickleDocument read(const std::string& text, const PickleLimits& limits = {}) {
  return read_pickle({std::make_shared<const std::string>(text), 0, "test.pkl", 1000}, limits);
}

json read_json(const std::string& text) { return pickle_to_json(*read(text).root, "test.pkl"); }

/// A pickle of protocol 2 with these opcodes.
std::string p2(const std::string& ops) { return "\x80\x02"s + ops + "."; }

std::string written(const json& value) {
  PickleWriter writer;
  writer.json(value);
  return writer.finish();
}

}  // namespace

TEST_SUITE("formats/pickle") {
  TEST_CASE("read_pickle: reads back what PickleWriter wrote") {
    const json values[] = {nullptr,
                           true,
                           false,
                           0,
                           255,
                           256,
                           65535,
                           65536,
                           -1,
                           2147483647,
                           -2147483648ll,
                           2147483648ll,
                           std::numeric_limits<std::int64_t>::min(),
                           std::numeric_limits<std::int64_t>::max(),
                           std::numeric_limits<std::uint64_t>::max(),
                           0.1,
                           -1e300,
                           "",
                           "gr\u00fc\u00dfe",
                           std::string(70000, 'x'),
                           json::array(),
                           json::object(),
                           {1, {2, "a"}, {{"k", nullptr}}},
                           {{"a", "same"}, {"b", "same"}, {"same", {"a", "b"}}}};
    for (const auto& value : values) {
      CAPTURE(value);
      CHECK(read_json(written(value)) == value);
    }
    CHECK(std::isinf(read_json(written(std::numeric_limits<double>::infinity())).get<double>()));
  }

  TEST_CASE("PickleWriter: recalls more than 256 distinct strings") {
    json list = json::array();
    for (int i = 0; i < 1000; ++i) list.push_back("key " + std::to_string(i % 500));
    CHECK(read_json(written(list)) == list);
  }

  TEST_CASE("PickleWriter: refuses values that pickles cannot hold") {
    CHECK_THROWS_AS(written(json::binary({1, 2})), RequestError);
    CHECK_THROWS_AS(written("\xff"), RequestError);
    json deep;
    for (int i = 0; i < 200; ++i) deep = json::array({deep});
    CHECK_THROWS_AS(written(deep), RequestError);
  }

  TEST_CASE("read_pickle: calls, classes and persistent ids are recorded, not executed") {
    const auto document = read(p2("cos\nsystem\nX\x04\0\0\0true\x85R"s));  // os.system("true")
    const auto* object = document.root->object_of("os", "system");
    REQUIRE(object != nullptr);
    CHECK_FALSE(object->is_new);
    CHECK(object->args->tuple()->items.at(0)->string()->text == "true");
    CHECK_THROWS_WITH_AS(pickle_to_json(*document.root, "test.pkl"), doctest::Contains("os.system"), FormatError);

    const auto made = read(p2("cargparse\nNamespace\n)\x81}X\1\0\0\0aK\1sb"s));
    const auto* space = made.root->object_of("argparse", "Namespace");
    REQUIRE(space != nullptr);
    CHECK(space->is_new);
    CHECK(*space->state->dict()->items.at(0).second->integer() == 1);

    CHECK(*read(p2("K\7Q"s)).root->persistent()->id->integer() == 7);
  }

  TEST_CASE("read_pickle: protocol 4 framing, memo, sets, bytes") {
    const auto document = read("\x80\4\x95\x0e\0\0\0\0\0\0\0\x8f\x94(K\1K\2\x90h\0\x86"s + "C\2\0\xff\x86."s);
    const auto* outer = document.root->tuple();
    REQUIRE(outer != nullptr);
    const auto* pair = outer->items.at(0)->tuple();
    CHECK(pair->items.at(0) == pair->items.at(1));  // both refer to one set
    CHECK(pair->items.at(0)->set()->items.size() == 2);
    CHECK(outer->items.at(1)->bytes()->data == "\0\xff"s);
    CHECK(read("\x80\4\x8c\2os\x8c\6system\x93."s).root->is_global("os", "system"));
  }

  TEST_CASE("read_pickle: big integers become digits") {
    const auto digits = [](const std::string& ops) { return read(p2(ops)).root->big_integer()->digits; };
    CHECK(digits("\x8a\x0b\0\0\0\0\0\0\0\0\0\0\1"s) == "1208925819614629174706176");  // 2**80
    CHECK(digits("\x8a\x09\0\0\0\0\0\0\0\0\xc0"s) == "-1180591620717411303424");      // -2**70
    CHECK(*read(p2("\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\xff"s)).root->integer() == -1);
    CHECK(*read(p2("\x8a\0"s)).root->integer() == 0);
  }

  TEST_CASE("read_pickle: stops after STOP and returns the length of the pickle") {
    const auto text = std::make_shared<const std::string>("??" + p2("K\1") + p2("K\2"));
    const auto first = read_pickle({text, 2, "test.pkl", 0});
    CHECK(*first.root->integer() == 1);
    CHECK(*read_pickle({text, 2 + first.length_bytes, "test.pkl", 0}).root->integer() == 2);
  }

  TEST_CASE("read_pickle: refuses foreign opcodes by name and offset") {
    CHECK_THROWS_WITH_AS(read(p2("S'a'\n"s)), doctest::Contains("test.pkl: at byte 1002: pickle: opcode STRING"),
                         FormatError);
    CHECK_THROWS_WITH_AS(read(p2("(ios\nsystem\n"s)), doctest::Contains("INST"), FormatError);
    CHECK_THROWS_WITH_AS(read(p2("\x82\1"s)), doctest::Contains("EXT1"), FormatError);
    CHECK_THROWS_WITH_AS(read(p2("\xee"s)), doctest::Contains("unknown opcode 238"), FormatError);
    CHECK_THROWS_WITH_AS(read("K\1."), doctest::Contains("PROTO"), FormatError);
    CHECK_THROWS_WITH_AS(read("\x80\x06K\1."), doctest::Contains("protocol 6"), FormatError);
  }

  TEST_CASE("read_pickle: refuses a broken stack") {
    const std::string broken[] = {""s,
                                  "0"s,
                                  "(K\1"s,
                                  "K\1K\2"s,
                                  "t"s,
                                  "(u"s,
                                  "K\1a"s,
                                  "]a"s,
                                  "}K\1s"s,
                                  "}(K\1u"s,
                                  "R"s,
                                  "K\1)R"s,
                                  "cos\nsystem\nK\1R"s,
                                  "h\0"s,
                                  "K\1(b"s,
                                  "]}b"s,
                                  "cos\nx\n)R}b}b"s,
                                  "K\1Q0"s,
                                  "(q\0"s,
                                  "K\1K\2\x93"s,
                                  "(2"s};
    for (const auto& ops : broken) {
      CAPTURE(ops);
      CHECK_THROWS_AS(read(p2(ops)), FormatError);
    }
  }

  TEST_CASE("read_pickle: refuses truncation at any byte") {
    const std::string whole = written({{"a", {1, 70000, 5000000000}}, {"b", 0.5}, {"a2", "a"}});
    for (std::size_t length = 0; length < whole.size(); ++length) {
      CAPTURE(length);
      CHECK_THROWS_AS(read(whole.substr(0, length)), FormatError);
    }
  }

  TEST_CASE("read_pickle: declared sizes beyond the input allocate nothing") {
    const std::string huge[] = {"X\xff\xff\xff\xff"s,
                                "\x8d\xff\xff\xff\xff\xff\xff\xff\x7f"s,
                                "B\xff\xff\xff\xff"s,
                                "\x8e\xff\xff\xff\xff\xff\xff\xff\xff"s,
                                "\x96\xff\xff\xff\xff\xff\xff\xff\xff"s,
                                "\x8b\xff\xff\xff\x7f"s,
                                "\x95\xff\xff\xff\xff\xff\xff\xff\xffN"s};
    for (const auto& ops : huge) {
      CAPTURE(ops);
      CHECK_THROWS_AS(read(p2(ops)), FormatError);
    }
    CHECK(read(p2("Nr\xff\xff\xff\xff"s)).root->is_none());  // a memo index is not a size
  }

  TEST_CASE("read_pickle: refuses deep nesting, cycles and exponential sharing") {
    std::string deep(100'000, ']');
    deep += std::string(99'999, 'a');
    CHECK_THROWS_WITH_AS(read(p2(deep)), doctest::Contains("nests deeper"), FormatError);
    CHECK_THROWS_AS(read(p2("]q\0h\0a"s)), FormatError);            // a list that contains itself
    CHECK_THROWS_AS(read(p2("cx\ny\n)Rq\0(h\0tb"s)), FormatError);  // an object whose state contains it
    std::string laughs = "]q\0"s;                                   // each list holds the previous one ten times
    for (char i = 1; i < 20; ++i) {
      laughs += "](";
      for (int k = 0; k < 10; ++k) laughs += "h"s + static_cast<char>(i - 1);
      laughs += "eq"s + i;
    }
    laughs = "(" + laughs + "t";
    CHECK_THROWS_WITH_AS(read(p2(laughs)), doctest::Contains("too often"), FormatError);
    CHECK_THROWS_WITH_AS(read(p2("(NNNNNNt"s), {.max_values = 5}), doctest::Contains("more than 5"), FormatError);
  }

  TEST_CASE("read_pickle: refuses strings that are not UTF-8") {
    for (const auto* bad : {"\xff", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe4\xb8", "a\x80"}) {
      const std::string text(bad);
      CAPTURE(text);
      CHECK_THROWS_AS(read(p2("X"s + static_cast<char>(text.size()) + "\0\0\0"s + text)), FormatError);
    }
    CHECK(read_json(p2("X\4\0\0\0\xf0\x9f\x98\x80"s)) == "\U0001f600");
  }

  TEST_CASE("read_pickle: randomly damaged input gives a document or a FormatError") {
    const std::string whole = written({{"a", {1, 70000, 5000000000}}, {"b", 0.5}, {"a2", "a"}, {"d", {{"a", "b"}}}});
    std::mt19937 generator(7);
    int survived = 0;
    for (int round = 0; round < 20'000; ++round) {
      std::string damaged = whole;
      for (int k = 0; k < 1 + round % 4; ++k) damaged[generator() % damaged.size()] = static_cast<char>(generator());
      try {
        describe(*read(damaged).root);
        ++survived;
      } catch (const FormatError&) {
      }
    }
    CHECK(survived > 0);
    CHECK(survived < 20'000);
  }
}
