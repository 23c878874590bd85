#include "lib/files/formats/pickle_reader.hpp"

#include <unordered_map>

#include "lib/base/error.hpp"
#include "lib/files/formats/pickle_check.hpp"
#include "lib/files/formats/pickle_input.hpp"
#include "lib/files/formats/pickle_opcodes.hpp"

namespace fsdp {
namespace {

using detail::PickleOp;

/// The stack machine. Every method that takes from the stack stops at the last mark.
class Unpickler {
 public:
  Unpickler(const PickleSource& source, const PickleLimits& limits) : source_(source), limits_(limits), input_(source) {
    document_.text = source.text;
  }

  PickleDocument run() {
    while (!step()) {
    }
    detail::check_pickle_graph(document_, limits_, source_.file);
    document_.length_bytes = source_.text->size() - source_.begin_bytes - input_.left_bytes();
    return std::move(document_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { input_.fail(what); }

  /// Executes one opcode; true after STOP.
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
    for (const auto& [known, name] : detail::refused_pickle_ops) {
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
  /// The last `count` values, in order.
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
    auto data = detail::read_pickle_literal(op, input_);
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
  /// The name of a class or function. That of a class inside another is getattr(outer, inner): "Outer.Inner" here.
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
  detail::PickleInput input_;
  bool seen_proto_ = false;
  std::vector<PickleValue*> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint32_t, PickleValue*> memo_;  // a map: an index may be anything
};

}  // namespace

PickleDocument read_pickle(const PickleSource& source, const PickleLimits& limits) {
  return Unpickler(source, limits).run();
}

}  // namespace fsdp
