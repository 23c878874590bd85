#include "lib/formats/pickle/pickle_writer.hpp"

#include <doctest/doctest.h>

#include "lib/base/types/error.hpp"
#include "lib/formats/pickle/pickle_reader.hpp"

using namespace fsdp;
using namespace std::string_literals;

namespace {

PickleDocument read(std::string text) {
  return read_pickle({std::make_shared<const std::string>(std::move(text)), 0, "test", 0});
}

/// Reads a pickle with this body and writes it again; returns the result without the protocol and the STOP.
std::string emitted(const std::string& body, PickleStyle style, int protocol = 2) {
  const auto document = read("\x80"s + static_cast<char>(protocol) + body + ".");
  PickleWriter writer;
  emit_pickle_value(writer, *document.root, style, "name");
  const auto text = writer.finish();
  return text.substr(2, text.size() - 3);
}

constexpr auto faithful = PickleStyle::faithful, weights_only = PickleStyle::weights_only;

}  // namespace

TEST_SUITE("formats/pickle_writer") {
  TEST_CASE("emit_pickle_value: numbers, text and containers stay unchanged") {
    for (const auto& body : {
             "N"s,
             "\x88"s,
             "\x89"s,
             "K\x07"s,
             "M\x00\x02"s,
             "J\xff\xff\xff\xff"s,
             "G\x3f\xb9\x99\x99\x99\x99\x99\x9a"s,
             "\x8a\x0b\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01"s,  // 2**80
             "\x8a\x0a\x00\x00\x00\x00\x00\x00\x00\x00\x00\xc0"s,      // -2**78
             "\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00"s,          // 2**63
             "\x8a\x09\xff\xff\xff\xff\xff\xff\xff\x7f\xff"s,          // -2**63 - 1
             "\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80"s,              // -2**63
             "X\x02\x00\x00\x00\xc3\xa9q\x00"s,
             ")"s,
             "(K\x01K\x02t"s,
             "](K\x01K\x02"
             "e"s,
             "}(X\x01\x00\x00\x00"
             "aq\x00K\x01K\x05K\x02u"s,
             "ccollections\nOrderedDict\nq\x00)R(K\x01K\x02u"s,
             "ctorch\nbfloat16\nq\x00"s,
             "ctorch\nSize\nq\x00((K\x03K\x04ttR"s,
         }) {
      CAPTURE(body);
      CHECK(emitted(body, faithful) == body);
      CHECK(emitted(body, weights_only) == body);
    }
  }

  TEST_CASE("emit_pickle_value: bytes of protocol 3 become the call that protocol 2 uses") {
    CHECK(emitted("C\x03\x00\xff"
                  "a"s,
                  faithful, 3) ==
          "c_codecs\nencode\nq\x00X\x04\x00\x00\x00\x00\xc3\xbf"
          "aq\x01X\x06\x00\x00\x00latin1q\x02\x86R"s);
  }

  TEST_CASE("emit_pickle_value: sets") {
    CHECK(emitted("\x8f(K\x01K\x02\x90"s, weights_only, 4) ==
          "c__builtin__\nset\nq\x00](K\x01K\x02"
          "e\x85R"s);
    CHECK(emitted("c__builtin__\nfrozenset\n](K\x01"
                  "e\x85R"s,
                  weights_only) ==
          "c__builtin__\nset\nq\x00](K\x01"
          "e\x85R"s);
  }

  TEST_CASE(
      "emit_pickle_value: classes that weights_only refuses become plain containers, or stay in the faithful style") {
    const auto space = "cargparse\nNamespace\nq\x00)\x81}(X\x02\x00\x00\x00lrq\x01K\x05ub"s;
    CHECK(emitted(space, faithful) == space);
    CHECK(emitted(space, weights_only) == "}(X\x02\x00\x00\x00lrq\x00K\x05u"s);
    const auto defaults = "ccollections\ndefaultdict\nq\x00(c__builtin__\nlong\nq\x01tR(K\x01K\x02u"s;
    CHECK(emitted(defaults, faithful) == defaults);
    CHECK(emitted(defaults, weights_only) == "}(K\x01K\x02u"s);
  }

  TEST_CASE("emit_pickle_value: refuses what weights_only would refuse, naming value and class") {
    for (const auto& body : {"cos\nsystem\nX\x02\x00\x00\x00ls\x85R"s, "cmy.module\nThing\n)\x81"s, "cos\nsystem\n"s,
                             "](cmy.module\nThing\n)\x81"
                             "e"s}) {
      CAPTURE(body);
      CHECK_THROWS_WITH_AS(emitted(body, weights_only), doctest::Contains("value \"name\" holds"), RequestError);
    }
    CHECK_THROWS_AS(emitted("K\x00Q"s, faithful), RequestError);
    CHECK_THROWS_AS(emitted("K\x00Q"s, weights_only), RequestError);
  }

  TEST_CASE("PickleWriter::big_integer: refuses integers too long for LONG1") {
    PickleWriter writer;
    CHECK_THROWS_AS(writer.big_integer("1" + std::string(614, '0')), RequestError);
    CHECK_THROWS_AS(writer.big_integer(std::string(5000, '9')), RequestError);
  }

  TEST_CASE("PickleWriter::global: refuses a line break in a name") {
    PickleWriter writer;
    CHECK_THROWS_AS(writer.global("os", "a\nsystem"), RequestError);
  }
}
