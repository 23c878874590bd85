#include "lib/corpus/equal_documents.hpp"

#include <algorithm>
#include <memory>
#include <queue>

#include "lib/base/files/nameless_file.hpp"
#include "lib/base/types/hash_functions.hpp"

namespace fsdp {

std::uint64_t hash_of_ids(std::span<const std::int32_t> ids) {
  auto hash = splitmix64(ids.size());
  for (const auto id : ids) hash = splitmix64(hash ^ static_cast<std::uint32_t>(id));
  return hash;
}

// --- SeenHashes

/// The slot that has the hash, or would.
std::size_t SeenHashes::place_of(std::uint64_t hash) const {
  const auto mask = slots_.size() - 1;
  auto place = static_cast<std::size_t>(hash) & mask;
  while (slots_[place] != 0 && slots_[place] != hash) place = (place + 1) & mask;
  return place;
}

void SeenHashes::grow() {
  const auto old = std::move(slots_);
  slots_.assign(std::max<std::size_t>(1024, 2 * old.size()), 0);
  for (const auto hash : old) {
    if (hash != 0) slots_[place_of(hash)] = hash;
  }
}

bool SeenHashes::insert(std::uint64_t hash) {
  if (hash == 0) {
    const bool is_new = !has_zero_;
    has_zero_ = true;
    size_ += is_new ? 1 : 0;
    return is_new;
  }
  if (2 * (size_ + 1) > slots_.size()) grow();
  auto& slot = slots_[place_of(hash)];
  if (slot == hash) return false;
  slot = hash;
  ++size_;
  return true;
}

bool SeenHashes::contains(std::uint64_t hash) const {
  if (hash == 0) return has_zero_;
  return !slots_.empty() && slots_[place_of(hash)] == hash;
}

// --- EqualDocuments

/// Reads a sorted run of entries from the file.
class EqualDocuments::Run {
 public:
  Run(const File& file, std::uint64_t first, std::uint64_t count) : file_(file), next_(first), end_(first + count) {
    advance();
  }
  const std::optional<Entry>& now() const { return now_; }
  void advance() {
    if (at_ == block_.size()) fill();
    now_ = at_ < block_.size() ? std::optional(block_[at_++]) : std::nullopt;
  }

 private:
  void fill() {
    constexpr std::uint64_t kBlock = 4096;
    block_.resize(std::min(kBlock, end_ - next_));
    file_.read_at(next_ * sizeof(Entry), std::as_writable_bytes(std::span(block_)));
    next_ += block_.size();
    at_ = 0;
  }

  const File& file_;
  std::uint64_t next_, end_;
  std::vector<Entry> block_;
  std::size_t at_ = 0;
  std::optional<Entry> now_;
};

EqualDocuments::EqualDocuments(std::filesystem::path beside, std::size_t most)
    : beside_(std::move(beside)), most_(most) {}

void EqualDocuments::add(std::uint64_t hash, const DocumentPlace& place) {
  if (entries_.size() == most_) write_run();
  entries_.push_back({hash, place});
}

void EqualDocuments::write_run() {
  if (!file_.is_open()) file_ = nameless_file(beside_, "hashes");
  std::ranges::sort(entries_);
  file_.write(std::as_bytes(std::span(entries_)));
  run_sizes_.push_back(entries_.size());
  entries_.clear();
}

void EqualDocuments::for_groups(const std::function<void(std::span<const DocumentPlace>)>& body) {
  std::vector<DocumentPlace> group;
  std::uint64_t hash = 0;
  const auto end_group = [&] {
    if (group.size() > 1) body(group);
    group.clear();
  };
  const auto take = [&](const Entry& entry) {
    if (entry.hash != hash) end_group();
    hash = entry.hash;
    group.push_back(entry.place);
  };
  if (run_sizes_.empty()) {
    std::ranges::sort(entries_);
    for (const auto& entry : entries_) take(entry);
    return end_group();
  }
  write_run();
  std::vector<std::unique_ptr<Run>> runs;
  std::uint64_t first = 0;
  for (const auto size : run_sizes_) {
    runs.push_back(std::make_unique<Run>(file_, first, size));
    first += size;
  }
  const auto is_later = [&](std::size_t a, std::size_t b) { return *runs[a]->now() > *runs[b]->now(); };
  std::priority_queue<std::size_t, std::vector<std::size_t>, decltype(is_later)> next(is_later);
  for (std::size_t i = 0; i < runs.size(); ++i) next.push(i);
  while (!next.empty()) {
    const auto run = next.top();
    next.pop();
    take(*runs[run]->now());
    runs[run]->advance();
    if (runs[run]->now()) next.push(run);
  }
  end_group();
}

}  // namespace fsdp
