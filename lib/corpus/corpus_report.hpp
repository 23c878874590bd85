#pragma once
// Lengths of documents, empty ones, and documents that are there more than once.
#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lib/corpus/equal_documents.hpp"

namespace fsdp {

/// Numbers of documents by their lengths in ids. Lengths up to 65,535 are exact, longer ones are rounded down by less
/// than 1.6 %.
class LengthCounts {
 public:
  void add(std::int64_t length);
  std::int64_t documents() const { return documents_; }
  std::int64_t ids() const { return ids_; }
  /// The length that `share` of the documents do not exceed. \param share  above 0, at most 1
  std::int64_t quantile(double share) const;
  std::int64_t shortest() const { return shortest_; }
  std::int64_t longest() const { return longest_; }

  struct Bar {
    std::int64_t from, to;  ///< lengths [from, to]
    std::int64_t documents;
  };
  /// Documents of lengths 0, 1, 2 to 3, 4 to 7, and so on.
  std::vector<Bar> bars() const;

 private:
  std::map<std::int64_t, std::int64_t> counts_;
  std::int64_t documents_ = 0, ids_ = 0, shortest_ = 0, longest_ = 0;
};

/// Collects the facts about documents while they are encoded.
class CorpusReport {
 public:
  /// Places in words: "a.jsonl: line 9", and of the document that is equal to it and came first.
  struct Example {
    std::string document, first;
  };
  struct Source {
    std::string file;
    std::int64_t documents = 0, ids = 0, empty = 0;
    std::int64_t copies = 0;  ///< documents that are in this file before
  };
  /// Documents of a token file beside those that are encoded, such as a validation set.
  struct Against {
    std::string file;
    std::int64_t documents = 0;
    std::int64_t found = 0;  ///< of the encoded documents in it
    std::vector<Example> examples;
  };
  struct Copies {
    std::int64_t groups = 0;   ///< of equal documents
    std::int64_t inside = 0;   ///< documents that are in the same file before
    std::int64_t between = 0;  ///< documents that are in another file before, and not in their own
    std::int64_t largest = 0;  ///< documents of the largest group
    std::vector<Example> examples;
  };

  static constexpr std::size_t kMostExamples = 5;

  /// \param beside  a file, in whose folder hashes wait that do not fit into memory
  /// \param drops   leave out documents that were there before, or are in the files of compare_with()
  CorpusReport(const std::filesystem::path& beside, bool drops);

  /// Names a token file of documents whose leaks into the encoded ones are to be told. To be called before add().
  /// \param tokenizer  description of the one that encodes the documents
  /// \throws FormatError for a file of rows or of packed documents, and of another tokenizer; IoError
  void compare_with(const std::filesystem::path& token_file, const std::string& tokenizer);
  /// \param place  "FILE: line 9", as DocumentStream::where() has it
  /// \return false: the document is to be left out
  bool add(const std::string& place, std::span<const std::int32_t> ids);
  /// Finds the copies. To be called once, after the last document.
  void finish();

  const LengthCounts& lengths() const { return lengths_; }
  const std::vector<Source>& sources() const { return sources_; }
  const std::vector<Against>& against() const { return against_; }
  const Copies& copies() const { return copies_; }
  std::int64_t empty() const { return empty_; }
  bool drops() const { return drops_; }
  std::int64_t dropped() const { return dropped_; }

 private:
  std::uint32_t source_of(const std::string& place);
  std::string words(const DocumentPlace& place) const;
  void take_group(std::span<const DocumentPlace> places);

  bool drops_;
  EqualDocuments equal_;
  SeenHashes seen_;                            ///< where copies are dropped
  std::vector<SeenHashes> hashes_of_against_;  ///< of each file
  std::vector<Source> sources_;
  std::vector<std::string> prefixes_;  ///< of the places of each source: "a.jsonl: line "
  std::map<std::string, std::uint32_t> by_prefix_;
  std::string last_prefix_;
  std::uint32_t last_source_ = 0;
  std::vector<Against> against_;
  LengthCounts lengths_;
  Copies copies_;
  std::int64_t empty_ = 0, dropped_ = 0;
};

}  // namespace fsdp
