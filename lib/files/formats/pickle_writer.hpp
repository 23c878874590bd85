#pragma once
// Writes pickles of protocol 2, the one torch.save uses.
// Writes values read from one pickle into another.
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>

#include "lib/files/formats/pickle_value.hpp"

namespace fsdp {

/// Emits opcodes in the order of the calls; the caller keeps the stack discipline. Strings and globals that repeat
/// are written once and recalled from the memo.
class PickleWriter {
 public:
  PickleWriter();

  void none() { op('N'); }
  void boolean(bool value) { op(value ? '\x88' : '\x89'); }
  void integer(std::int64_t value);
  void unsigned_integer(std::uint64_t value);
  /// \param digits  decimal, perhaps with a sign; \throws UsageError beyond 255 bytes
  void big_integer(std::string_view digits);
  void real(double value);
  void string(std::string_view text);
  /// As protocol 2 says bytes: a call of _codecs.encode.
  void bytes(std::string_view data);
  /// \throws UsageError when a name has a line break
  void global(std::string_view module, std::string_view name);

  void empty_dict() { op('}'); }
  void empty_list() { op(']'); }
  void empty_tuple() { op(')'); }
  void mark() { op('('); }
  void set_items() { op('u'); }  ///< (dict, mark, key, value, ...) -> dict
  void append_items() { op('e'); }
  void tuple() { op('t'); }  ///< (mark, ...) -> tuple
  void tuple1() { op('\x85'); }
  void tuple2() { op('\x86'); }
  void reduce() { op('R'); }  ///< (callable, args) -> callable(*args)
  void new_object() { op('\x81'); }
  void build() { op('b'); }
  void persistent_id() { op('Q'); }

  /// None, bool, int, float, str, list or dict, nested. \throws UsageError for binary values and deep nesting
  void json(const nlohmann::json& value);

  /// Ends the pickle and hands it out; the writer is spent.
  std::string finish();

 private:
  void op(char code) { text_.push_back(code); }
  void json(const nlohmann::json& value, int depth);
  bool recall(const std::string& memo_key);
  void memoize(std::string memo_key);

  std::string text_;
  std::unordered_map<std::string, std::uint32_t> memo_;
};

enum class PickleStyle {
  faithful,  ///< every object of the class that it was; what protocol 2 cannot tell apart (frozenset literals) aside
  /// What torch.load(weights_only=True) takes: defaultdict, argparse.Namespace and types.SimpleNamespace become dicts,
  /// frozensets sets.
  weights_only
};

/// Appends `value`, as one value on the pickle's stack.
/// \param name  for messages
/// \throws UsageError on a reference to a storage, and on a class that the style does not allow
void emit_pickle_value(PickleWriter& pickle, const PickleValue& value, PickleStyle style, const std::string& name);

}  // namespace fsdp
