#include "lib/formats/pickle/pickle_reader.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lib/base/text/utf8.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/little_endian.hpp"
#include "lib/formats/pickle/pickle_value.hpp"

namespace fsdp {
namespace {

/// The opcodes of all pickle protocols. Source: CPython 3.11 Lib/pickle.py.
// clang-format off
enum class PickleOp : unsigned char {
  proto = 0x80, frame = 0x95, stop = '.', mark = '(', pop = '0', dup = '2',
  none = 'N', new_true = 0x88, new_false = 0x89,
  bin_int = 'J', bin_int1 = 'K', bin_int2 = 'M', long1 = 0x8a, long4 = 0x8b, bin_float = 'G',
  bin_unicode = 'X', short_bin_unicode = 0x8c, bin_unicode8 = 0x8d,
  bin_bytes = 'B', short_bin_bytes = 'C', bin_bytes8 = 0x8e, byte_array8 = 0x96,
  empty_list = ']', list = 'l', append = 'a', appends = 'e',
  empty_tuple = ')', tuple = 't', tuple1 = 0x85, tuple2 = 0x86, tuple3 = 0x87,
  empty_dict = '}', dict = 'd', set_item = 's', set_items = 'u',
  empty_set = 0x8f, add_items = 0x90, frozen_set = 0x91,
  global = 'c', stack_global = 0x93, reduce = 'R', build = 'b', new_obj = 0x81, new_obj_ex = 0x92, bin_persid = 'Q',
  bin_put = 'q', long_bin_put = 'r', memoize = 0x94, bin_get = 'h', long_bin_get = 'j'
};
// clang-format on

/// Opcodes that neither torch.save nor DCP writes at protocols 2 to 5, with their names for messages.
constexpr std::array<std::pair<unsigned char, std::string_view>, 18> kRefusedPickleOps{{
    {'1', "POP_MARK"},
    {'F', "FLOAT"},
    {'I', "INT"},
    {'L', "LONG"},
    {'P', "PERSID"},
    {'S', "STRING"},
    {'T', "BINSTRING"},
    {'U', "SHORT_BINSTRING"},
    {'V', "UNICODE"},
    {'g', "GET"},
    {'p', "PUT"},
    {'i', "INST"},
    {'o', "OBJ"},
    {0x82, "EXT1"},
    {0x83, "EXT2"},
    {0x84, "EXT4"},
    {0x97, "NEXT_BUFFER"},
    {0x98, "READONLY_BUFFER"},
}};

/// Visits each value once and computes how many values a walk that follows every reference would visit.
class GraphCheck {
 public:
  GraphCheck(const PickleDocument& document, const PickleLimits& limits, const std::string& file)
      : limits_(limits), file_(file), seen_(document.values.size()) {}

  struct Extent {
    std::uint64_t visits = 0;  // 0: not finished
    std::uint32_t height = 0;
  };

  Extent check(PickleRef value, std::uint32_t depth) {
    if (seen_[value->index].visits != 0) return seen_[value->index];
    // A value that contains itself ends up here, too.
    if (depth >= limits_.max_depth) fail(*value, "nests deeper than " + std::to_string(limits_.max_depth) + " levels");
    Extent extent{1, 1};
    for_each_child(*value, [&](PickleRef child) {
      const Extent inner = check(child, depth + 1);
      extent.visits += inner.visits;  // both at most max_values: no overflow
      extent.height = std::max(extent.height, inner.height + 1);
      if (extent.visits > limits_.max_values) fail(*value, "repeats shared values too often");
      if (extent.height > limits_.max_depth) fail(*value, "nests too deep");
    });
    return seen_[value->index] = extent;
  }

 private:
  [[noreturn]] void fail(const PickleValue& value, const std::string& what) const {
    throw FormatError(file_, value.offset_bytes, "pickle: " + describe(value) + " " + what);
  }

  const PickleLimits& limits_;
  const std::string& file_;
  std::vector<Extent> seen_;
};

/// Reads a little-endian integer in two's complement: an int64 where it fits, else decimal digits.
PickleValue::Data pickle_integer(std::string_view bytes) {
  const bool negative = !bytes.empty() && (static_cast<unsigned char>(bytes.back()) & 0x80) != 0;
  if (bytes.size() <= 8) {
    std::uint64_t bits = negative ? ~std::uint64_t{0} : 0;
    for (std::size_t i = bytes.size(); i-- > 0;) bits = bits << 8 | static_cast<unsigned char>(bytes[i]);
    return static_cast<std::int64_t>(bits);
  }
  // Magnitude in limbs of nine decimal digits, least significant first; -x == ~x + 1.
  constexpr std::uint64_t base = 1'000'000'000;
  std::vector<std::uint32_t> limbs{0};
  const auto multiply_add = [&limbs](std::uint64_t factor, std::uint64_t carry) {
    for (auto& limb : limbs) {
      carry += limb * factor;
      limb = static_cast<std::uint32_t>(carry % base);
      carry /= base;
    }
    if (carry != 0) limbs.push_back(static_cast<std::uint32_t>(carry));
  };
  for (std::size_t i = bytes.size(); i-- > 0;) {
    const auto byte = static_cast<unsigned char>(bytes[i]);
    multiply_add(256, negative ? 0xffu - byte : byte);
  }
  if (negative) multiply_add(1, 1);
  while (limbs.size() > 1 && limbs.back() == 0) limbs.pop_back();
  std::string digits = (negative ? "-" : "") + std::to_string(limbs.back());
  for (std::size_t i = limbs.size() - 1; i-- > 0;) {
    const std::string limb = std::to_string(limbs[i]);
    digits += std::string(9 - limb.size(), '0') + limb;
  }
  // Nine or more bytes may still hold a number that fits an int64.
  errno = 0;
  const long long value = std::strtoll(digits.c_str(), nullptr, 10);
  if (errno == 0) return std::int64_t{value};
  return PickleBigInt{std::move(digits)};
}

/// Makes sure that recursion over document.root is safe.
/// \throws FormatError on cycles, on depth beyond the limit, and on sharing that makes a full walk visit more than the
/// limit of values
void check_pickle_graph(const PickleDocument& document, const PickleLimits& limits, const std::string& file) {
  GraphCheck(document, limits, file).check(document.root, 0);
}

class PickleInput {
 public:
  explicit PickleInput(const PickleSource& source);

  std::uint8_t next_opcode();
  std::uint64_t opcode_offset() const { return opcode_offset_; }  ///< in the file
  std::uint64_t left_bytes() const { return rest_.size(); }

  std::string_view take(std::uint64_t count);
  template <typename Integer>
  Integer number() {
    return detail::read_le<Integer>(take(sizeof(Integer)), 0);
  }
  std::string_view utf8(std::uint64_t count);
  /// Takes UTF-8 text up to the next newline, and the newline; returns the text without the newline.
  std::string_view line();

  /// \throws FormatError at the current opcode
  [[noreturn]] void fail(const std::string& what) const;
  /// \throws PickleEndsEarly at the current opcode
  [[noreturn]] void end_early(const std::string& what) const;

 private:
  const PickleSource& source_;
  std::string_view rest_;
  std::uint64_t opcode_offset_ = 0;
};

PickleValue::Data read_long(PickleInput& input, std::uint32_t count) {
  constexpr std::uint32_t limit = 1024;  // turning n bytes into digits takes n^2 steps
  if (count > limit) input.fail("an integer of " + std::to_string(count) + " bytes; at most 1024 are accepted");
  return pickle_integer(input.take(count));
}

PickleValue::Data read_float(PickleInput& input) {
  std::uint64_t bits = 0;
  for (const char byte : input.take(8)) bits = bits << 8 | static_cast<unsigned char>(byte);
  return std::bit_cast<double>(bits);
}

PickleInput::PickleInput(const PickleSource& source) : source_(source) {
  if (source.begin_bytes > source.text->size()) throw std::logic_error("read_pickle: begins past the text");
  rest_ = std::string_view(*source.text).substr(source.begin_bytes);
}

void PickleInput::fail(const std::string& what) const {
  throw FormatError(source_.file, opcode_offset_, "pickle: " + what);
}

void PickleInput::end_early(const std::string& what) const {
  throw PickleEndsEarly(source_.file, opcode_offset_, "pickle: " + what);
}

std::uint8_t PickleInput::next_opcode() {
  opcode_offset_ = source_.file_offset_bytes + (source_.text->size() - rest_.size());
  return number<std::uint8_t>();
}

std::string_view PickleInput::take(std::uint64_t count) {
  if (count > rest_.size()) {
    end_early("ends early: " + std::to_string(count) + " more bytes expected, " + std::to_string(rest_.size()) +
              " left");
  }
  const auto taken = rest_.substr(0, count);
  rest_.remove_prefix(count);
  return taken;
}

std::string_view PickleInput::utf8(std::uint64_t count) {
  const auto text = take(count);
  if (!is_utf8(text)) fail("a string is not UTF-8");
  return text;
}

std::string_view PickleInput::line() {
  const auto end = rest_.find('\n');
  if (end == std::string_view::npos) end_early("a name has no end");
  const auto text = utf8(end);
  take(1);
  return text;
}

/// Reads the value of an opcode that carries one (None, bool, int, float, str, bytes); returns nothing for other
/// opcodes.
std::optional<PickleValue::Data> read_pickle_literal(PickleOp op, PickleInput& input) {
  switch (op) {
    case PickleOp::none:
      return PickleNone{};
    case PickleOp::new_true:
      return true;
    case PickleOp::new_false:
      return false;
    case PickleOp::bin_int:
      return std::int64_t{input.number<std::int32_t>()};
    case PickleOp::bin_int1:
      return std::int64_t{input.number<std::uint8_t>()};
    case PickleOp::bin_int2:
      return std::int64_t{input.number<std::uint16_t>()};
    case PickleOp::long1:
      return read_long(input, input.number<std::uint8_t>());
    case PickleOp::long4:
      return read_long(input, input.number<std::uint32_t>());
    case PickleOp::bin_float:
      return read_float(input);
    case PickleOp::bin_unicode:
      return PickleString{input.utf8(input.number<std::uint32_t>())};
    case PickleOp::short_bin_unicode:
      return PickleString{input.utf8(input.number<std::uint8_t>())};
    case PickleOp::bin_unicode8:
      return PickleString{input.utf8(input.number<std::uint64_t>())};
    case PickleOp::bin_bytes:
      return PickleBytes{input.take(input.number<std::uint32_t>())};
    case PickleOp::short_bin_bytes:
      return PickleBytes{input.take(input.number<std::uint8_t>())};
    case PickleOp::bin_bytes8:
    case PickleOp::byte_array8:
      return PickleBytes{input.take(input.number<std::uint64_t>())};
    default:
      return std::nullopt;
  }
}

/// The stack machine of pickle. No method takes values from below the last mark.
class Unpickler {
 public:
  Unpickler(const PickleSource& source, const PickleLimits& limits) : source_(source), limits_(limits), input_(source) {
    document_.text = source.text;
  }

  PickleDocument run() {
    while (!step()) {
    }
    check_pickle_graph(document_, limits_, source_.file);
    document_.length_bytes = source_.text->size() - source_.begin_bytes - input_.left_bytes();
    return std::move(document_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { input_.fail(what); }

  /// Executes one opcode. Returns true after STOP.
  bool step() {
    const std::uint8_t code = input_.next_opcode();
    const auto op = static_cast<PickleOp>(code);
    if (!seen_proto_ && op != PickleOp::proto) fail("does not start with a protocol number (PROTO)");
    if (op == PickleOp::stop) {
      document_.root = pop();
      if (!stack_.empty() || !marks_.empty()) fail("values are left over at STOP");
      return true;
    }
    if (!literal(op) && !list_or_tuple(op) && !dict_or_set(op) && !object(op) && !memo_or_stack(op)) refuse(code);
    return false;
  }

  [[noreturn]] void refuse(unsigned char code) const {
    for (const auto& [known, name] : kRefusedPickleOps) {
      if (known == code) fail("opcode " + std::string(name) + " is refused: torch.save does not write it");
    }
    fail("unknown opcode " + std::to_string(code));
  }

  void push(PickleValue::Data data) {
    if (document_.values.size() >= limits_.max_values) {
      fail("makes more than " + std::to_string(limits_.max_values) + " values");
    }
    auto& value = document_.values.emplace_back();
    value.offset_bytes = input_.opcode_offset();
    value.index = static_cast<std::uint32_t>(document_.values.size() - 1);
    value.data = std::move(data);
    stack_.push_back(&value);
  }
  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  PickleValue& top() {
    if (stack_.size() <= floor()) fail("takes a value that is not there");
    return *stack_.back();
  }
  PickleValue* pop() {
    auto* value = &top();
    stack_.pop_back();
    return value;
  }
  template <typename Kind>
  PickleValue* pop_kind(const char* what) {
    auto* value = pop();
    if (!std::holds_alternative<Kind>(value->data)) fail(std::string(what) + " expected, found " + describe(*value));
    return value;
  }
  /// Takes the last `count` values, in the order in which they were pushed.
  std::vector<PickleRef> pop_many(std::size_t count) {
    if (stack_.size() - floor() < count) fail("takes a value that is not there");
    std::vector<PickleRef> taken(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return taken;
  }
  std::vector<PickleRef> pop_to_mark() {
    if (marks_.empty()) fail("a mark is missing");
    auto taken = pop_many(stack_.size() - marks_.back());
    marks_.pop_back();
    return taken;
  }

  bool literal(PickleOp op) {
    auto data = read_pickle_literal(op, input_);
    if (data) push(std::move(*data));
    return data.has_value();
  }

  bool list_or_tuple(PickleOp op) {
    switch (op) {
      case PickleOp::empty_list:
        push(PickleList{});
        return true;
      case PickleOp::list:
        push(PickleList{pop_to_mark()});
        return true;
      case PickleOp::append:
        append(pop_many(1));
        return true;
      case PickleOp::appends:
        append(pop_to_mark());
        return true;
      case PickleOp::empty_tuple:
        push(PickleTuple{});
        return true;
      case PickleOp::tuple:
        push(PickleTuple{pop_to_mark()});
        return true;
      case PickleOp::tuple1:
        push(PickleTuple{pop_many(1)});
        return true;
      case PickleOp::tuple2:
        push(PickleTuple{pop_many(2)});
        return true;
      case PickleOp::tuple3:
        push(PickleTuple{pop_many(3)});
        return true;
      default:
        return false;
    }
  }
  bool dict_or_set(PickleOp op) {
    switch (op) {
      case PickleOp::empty_dict:
        push(PickleDict{});
        return true;
      case PickleOp::dict:
        push_dict();
        return true;
      case PickleOp::set_item:
        set_items(pop_many(2));
        return true;
      case PickleOp::set_items:
        set_items(pop_to_mark());
        return true;
      case PickleOp::empty_set:
        push(PickleSet{});
        return true;
      case PickleOp::add_items:
        add_items(pop_to_mark());
        return true;
      case PickleOp::frozen_set:
        push(PickleSet{pop_to_mark()});
        return true;
      default:
        return false;
    }
  }
  static PickleObject* object_in(PickleValue& value) {
    auto* held = std::get_if<std::unique_ptr<PickleObject>>(&value.data);
    return held != nullptr ? held->get() : nullptr;
  }
  void append(const std::vector<PickleRef>& items) {
    auto* list = std::get_if<PickleList>(&top().data);
    if (list == nullptr && object_in(top()) != nullptr) list = &object_in(top())->items;
    if (list == nullptr) fail("appends to " + describe(top()));
    list->items.insert(list->items.end(), items.begin(), items.end());
  }
  void add_items(const std::vector<PickleRef>& items) {
    auto* set = std::get_if<PickleSet>(&top().data);
    if (set == nullptr) fail("adds set items to " + describe(top()));
    set->items.insert(set->items.end(), items.begin(), items.end());
  }
  void push_dict() {
    const auto items = pop_to_mark();
    push(PickleDict{});
    set_items(items);
  }
  void set_items(const std::vector<PickleRef>& items) {
    auto* dict = std::get_if<PickleDict>(&top().data);
    if (dict == nullptr && object_in(top()) != nullptr) dict = &object_in(top())->entries;
    if (dict == nullptr) fail("sets items of " + describe(top()));
    if (items.size() % 2 != 0) fail("a dict key has no value");
    for (std::size_t i = 0; i < items.size(); i += 2) dict->items.emplace_back(items[i], items[i + 1]);
  }

  bool object(PickleOp op) {
    switch (op) {
      case PickleOp::global:
        push_global();
        return true;
      case PickleOp::stack_global: {
        const auto names = pop_many(2);
        if (names[0]->string() == nullptr || names[1]->string() == nullptr) fail("STACK_GLOBAL needs two strings");
        push(PickleGlobal{names[0]->string()->text, names[1]->string()->text});
        return true;
      }
      case PickleOp::reduce:
        push_object(false, nullptr);
        return true;
      case PickleOp::new_obj:
        push_object(true, nullptr);
        return true;
      case PickleOp::new_obj_ex:
        push_object(true, pop_kind<PickleDict>("NEWOBJ_EX: a dict"));
        return true;
      case PickleOp::build:
        build();
        return true;
      case PickleOp::bin_persid:
        push(PicklePersistent{pop()});
        return true;
      default:
        return false;
    }
  }
  void push_global() {
    const auto module = input_.line();
    push(PickleGlobal{module, input_.line()});
  }
  void push_object(bool is_new, PickleRef kwargs) {
    auto made = std::make_unique<PickleObject>();
    made->is_new = is_new;
    made->kwargs = kwargs;
    made->args = pop_kind<PickleTuple>("a tuple of arguments");
    made->callable = pop_callable();
    push(std::move(made));
  }
  /// Takes the name of a class or function. The name of a class inside another comes as getattr(outer, inner) and
  /// becomes "Outer.Inner".
  PickleRef pop_callable() {
    const auto& found = top();
    const auto* call = found.object_of("__builtin__", "getattr");
    if (call == nullptr) call = found.object_of("builtins", "getattr");
    const auto* args = call == nullptr ? nullptr : call->args->tuple();
    const bool is_inner = args != nullptr && args->items.size() == 2 && args->items[0]->global() != nullptr &&
                          args->items[1]->string() != nullptr;
    if (!is_inner) return pop_kind<PickleGlobal>("the name of a class or function");
    const auto* outer = args->items[0]->global();
    const auto& name =
        document_.names.emplace_back(std::string(outer->name) + "." + std::string(args->items[1]->string()->text));
    pop();
    push(PickleGlobal{outer->module, name});
    return pop();
  }
  void build() {
    const auto* state = pop();
    auto* target = object_in(top());
    if (target == nullptr) fail("sets the state of " + describe(top()));
    if (target->state != nullptr) fail("sets the state of " + describe(top()) + " twice");
    target->state = state;
  }

  bool memo_or_stack(PickleOp op) {
    switch (op) {
      case PickleOp::proto:
        check_protocol(input_.number<std::uint8_t>());
        return true;
      case PickleOp::frame:
        check_frame(input_.number<std::uint64_t>());
        return true;
      case PickleOp::mark:
        marks_.push_back(stack_.size());
        return true;
      case PickleOp::pop:
        pop();
        return true;
      case PickleOp::dup:
        stack_.push_back(&top());
        return true;
      case PickleOp::bin_put:
        memo_[input_.number<std::uint8_t>()] = &top();
        return true;
      case PickleOp::long_bin_put:
        memo_[input_.number<std::uint32_t>()] = &top();
        return true;
      case PickleOp::memoize:
        memo_[static_cast<std::uint32_t>(memo_.size())] = &top();
        return true;
      case PickleOp::bin_get:
        recall(input_.number<std::uint8_t>());
        return true;
      case PickleOp::long_bin_get:
        recall(input_.number<std::uint32_t>());
        return true;
      default:
        return false;
    }
  }
  void check_protocol(unsigned protocol) {
    if (protocol < 2 || protocol > 5) fail("protocol " + std::to_string(protocol) + "; 2 to 5 are accepted");
    if (std::exchange(seen_proto_, true)) fail("a second protocol number");
  }
  void check_frame(std::uint64_t length) const {
    if (length > input_.left_bytes()) input_.end_early("a frame is longer than the file");
  }
  void recall(std::uint32_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) fail("memo entry " + std::to_string(index) + " was never stored");
    stack_.push_back(found->second);
  }

  const PickleSource& source_;
  const PickleLimits& limits_;
  PickleDocument document_;
  PickleInput input_;
  bool seen_proto_ = false;
  std::vector<PickleValue*> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint32_t, PickleValue*> memo_;  // a map, since a file may hold any index
};

}  // namespace

PickleDocument read_pickle(const PickleSource& source, const PickleLimits& limits) {
  return Unpickler(source, limits).run();
}

}  // namespace fsdp
