#include "apps/common/option_names.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

namespace fsdp {
namespace {

/// Number of letters to insert, delete or replace to turn one text into the other (Levenshtein distance).
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const auto replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

std::string plain(const std::string& name) {
  auto text = name.substr(std::min(name.find_first_not_of('-'), name.size()));
  text = text.substr(0, text.find('='));
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

}  // namespace

std::string nearest_option(const CLI::App& app, const std::string& name) {
  const auto wanted = plain(name);
  std::string nearest;
  auto least = std::max<std::size_t>(1, wanted.size() / 3) + 1;  // a third of the letters may be wrong
  for (const auto* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    for (const auto& known : option->get_lnames()) {
      // A prefix of a name, such as --batch, or its last word, such as --field, counts as distance 1.
      const bool is_part = wanted.size() > 2 && (known.starts_with(wanted) || known.ends_with("-" + wanted));
      const auto distance = is_part ? 1 : edit_distance(wanted, plain(known));
      if (distance >= least) continue;
      least = distance;
      nearest = known;
    }
  }
  return nearest;
}

}  // namespace fsdp
