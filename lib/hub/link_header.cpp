#include "lib/hub/link_header.hpp"

#include <algorithm>

#include "lib/base/error.hpp"
#include "lib/base/lower_case.hpp"

namespace fsdp {
namespace {

constexpr std::string_view kBlanks = " \t";

struct Link {
  std::string target;
  std::optional<std::string> relations;  ///< of several `rel` the first counts
};

/// Reads one link after the other.
class LinkReader {
 public:
  explicit LinkReader(std::string_view field) : rest_(field) {}

  /// \return nothing at the end. \throws FormatError
  std::optional<Link> next() {
    while (skip(",")) {
    }
    if (rest_.empty()) return std::nullopt;
    expect('<');
    const auto end = rest_.find('>');
    if (end == rest_.npos) fail();
    Link link{std::string(rest_.substr(0, end)), std::nullopt};
    rest_.remove_prefix(end + 1);
    while (skip(";")) read_parameter(link);
    if (!rest_.empty() && rest_.front() != ',') fail();
    return link;
  }

 private:
  [[noreturn]] static void fail() { throw FormatError("is no list of links"); }

  void skip_blanks() { rest_.remove_prefix(std::min(rest_.find_first_not_of(kBlanks), rest_.size())); }

  /// Blanks around it are passed over.
  bool skip(std::string_view separator) {
    skip_blanks();
    if (!rest_.starts_with(separator)) return false;
    rest_.remove_prefix(separator.size());
    skip_blanks();
    return true;
  }

  void expect(char c) {
    if (rest_.empty() || rest_.front() != c) fail();
    rest_.remove_prefix(1);
  }

  /// Lenient: everything that ends no token is one.
  std::string take_token() {
    const auto end = std::min(rest_.find_first_of(" \t,;=\""), rest_.size());
    const auto token = std::string(rest_.substr(0, end));
    rest_.remove_prefix(end);
    return token;
  }

  std::string take_quoted() {
    std::string text;
    for (expect('"'); !rest_.empty() && rest_.front() != '"'; rest_.remove_prefix(1)) {
      if (rest_.front() == '\\' && rest_.size() > 1) rest_.remove_prefix(1);
      text += rest_.front();
    }
    expect('"');
    return text;
  }

  void read_parameter(Link& link) {
    const auto name = ascii_lower(take_token());
    std::string value;
    if (skip("=")) value = !rest_.empty() && rest_.front() == '"' ? take_quoted() : take_token();
    if (name == "rel" && !link.relations) link.relations = ascii_lower(value);
  }

  std::string_view rest_;
};

bool has_relation(std::string_view relations, std::string_view wanted) {
  while (!relations.empty()) {
    relations.remove_prefix(std::min(relations.find_first_not_of(kBlanks), relations.size()));
    const auto one = relations.substr(0, relations.find_first_of(kBlanks));
    if (one == wanted) return true;
    relations.remove_prefix(one.size());
  }
  return false;
}

}  // namespace

std::optional<std::string> next_link(std::string_view field) {
  LinkReader links(field);
  try {
    while (const auto link = links.next()) {
      if (link->relations && has_relation(*link->relations, "next")) return link->target;
    }
  } catch (const FormatError&) {
    if (ascii_lower(std::string(field)).find("next") != std::string::npos)
      throw FormatError(
          "the server's Link header is no list of links (RFC 8288), so where its listing goes on cannot "
          "be told");
  }
  return std::nullopt;
}

}  // namespace fsdp
