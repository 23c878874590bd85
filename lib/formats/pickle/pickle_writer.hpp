#pragma once
// Writes pickles of protocol 2, which torch.save uses.
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>

#include "lib/formats/pickle/pickle_value.hpp"

namespace fsdp {

/// Emits opcodes in the order of the calls; the caller keeps the stack balanced. A string or global that repeats is
/// written once and then recalled from the memo.
class PickleWriter {
 public:
  PickleWriter();

  void none() { op('N'); }
  void boolean(bool value) { op(value ? '\x88' : '\x89'); }
  void integer(std::int64_t value);
  void unsigned_integer(std::uint64_t value);
  /// \param digits  decimal, perhaps with a sign. \throws RequestError beyond 255 bytes
  void big_integer(std::string_view digits);
  void real(double value);
  void string(std::string_view text);
  /// Writes bytes as a call of _codecs.encode, since protocol 2 has no opcode for bytes.
  void bytes(std::string_view data);
  /// \throws RequestError when a name has a line break
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

  /// Writes None, bool, int, float, str, list or dict, nested. \throws RequestError on binary values and deep nesting
  void json(const nlohmann::json& value);

  /// Ends the pickle and returns its bytes; the writer cannot be used after this.
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
  faithful,  ///< every object keeps its class, as far as protocol 2 can say (it has no literal for frozensets)
  /// Only what torch.load(weights_only=True) accepts: defaultdict, argparse.Namespace and types.SimpleNamespace become
  /// dicts, frozensets become sets.
  weights_only
};

/// Appends `value` as one value on the stack of the pickle.
/// \param name  of the value, for messages
/// \throws RequestError on a reference to a storage, and on a class that the style does not allow
void emit_pickle_value(PickleWriter& pickle, const PickleValue& value, PickleStyle style, const std::string& name);

}  // namespace fsdp
