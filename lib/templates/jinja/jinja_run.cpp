// Runs a template.
#include <algorithm>
#include <deque>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "lib/base/types/error.hpp"
#include "lib/templates/jinja/jinja.hpp"
#include "lib/templates/jinja/jinja_functions.hpp"
#include "lib/templates/jinja/syntax/jinja_syntax.hpp"

namespace fsdp {
namespace jinja {
namespace {

constexpr int kMostDepth = 600;  ///< of expressions and statements that wait for others

/// Variables of a block, by names that live as long as the template or the rendering.
struct Scope {
  Scope* outer;
  std::vector<std::pair<std::string_view, Value>> names;

  void set(std::string_view name, const Value& value) {
    for (auto& [known, old] : names) {
      if (known != name) continue;
      old = value;
      return;
    }
    names.emplace_back(name, value);
  }
};

/// The way on after a statement.
enum class Flow : std::uint8_t { go_on, break_loop, continue_loop };

class Machine {
 public:
  Machine(const std::tm& now, const JinjaLimits& limits, bool strict) : heap_(limits, strict), context_{heap_, now} {}

  JinjaText run(const Node& root, const nlohmann::ordered_json& variables) {
    try {
      auto& globals = new_scope(nullptr);
      functions_ = global_functions(context_);
      for (const auto& [name, function] : functions_) globals.set(name, function);
      // Variables are found before functions, and a template's assignments before variables.
      auto& given = new_scope(&globals);
      for (const auto& [name, value] : variables.items()) given.set(*heap_.text(name).bytes, from_json(heap_, value));
      scope_ = &new_scope(&given);
      execute(root);
    } catch (const FormatError& error) {
      throw FormatError("line " + std::to_string(line_) + ": " + error.what());
    }
    return {std::move(result_), std::move(marked_)};
  }

 private:
  class RunningLoop;

  /// Marks a node as being run while it exists.
  class Running {
   public:
    Running(Machine& machine, const Node& node) : machine_(machine) {
      machine.heap_.step();
      machine.line_ = node.line;
      if (machine.depth_ >= kMostDepth) refuse("calls are nested too deeply");
      ++machine.depth_;
    }
    ~Running() { --machine_.depth_; }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

   private:
    Machine& machine_;
  };

  Scope& new_scope(Scope* outer) {
    heap_.count(sizeof(Scope) + sizeof(Value));
    return scopes_.emplace_back(Scope{outer, {}});
  }

  /// Runs `work` with another scope.
  template <typename Work>
  auto within(Scope& scope, Work work) {
    auto* const outer = std::exchange(scope_, &scope);
    auto result = work();
    scope_ = outer;
    return result;
  }

  /// Runs `work` and returns what it writes.
  template <typename Work>
  std::string captured_by(Work work) {
    std::string text;
    auto* const outer = std::exchange(out_, &text);
    work();
    out_ = outer;
    return text;
  }

  void write(std::string_view text) {
    heap_.pass(text);
    heap_.room(out_->size() + text.size());
    *out_ += text;
  }

  Flow execute_in(Scope& scope, const Node& node) {
    return within(scope, [&] { return execute(node); });
  }

  Flow execute(const Node& node) {
    const Running running(*this, node);
    switch (node.kind) {
      case NodeKind::data:
        write(node.text);
        return Flow::go_on;
      case NodeKind::output:
        for (const auto* part : node.parts) output(evaluate(*part));
        return Flow::go_on;
      case NodeKind::block:
        for (const auto& name : node.names) scope_->set(name, Undefined{&name});
        for (const auto* part : node.parts) {
          if (const auto flow = execute(*part); flow != Flow::go_on) return flow;
        }
        return Flow::go_on;
      case NodeKind::condition:
        for (std::size_t i = 0; i + 1 < node.parts.size(); i += 2) {
          if (truth(heap_, evaluate(*node.parts[i]))) return execute(*node.parts[i + 1]);
        }
        return node.parts.size() % 2 == 1 ? execute(*node.parts.back()) : Flow::go_on;
      case NodeKind::loop:
        return start_loop(node, evaluate(*node.parts[1]), scope_, 0);
      case NodeKind::break_loop:
        return Flow::break_loop;
      case NodeKind::continue_loop:
        return Flow::continue_loop;
      default:
        return execute_block(node);
    }
  }

  Flow execute_block(const Node& node) {
    switch (node.kind) {
      case NodeKind::set:
        assign(*node.parts[0], evaluate(*node.parts[1]));
        break;
      case NodeKind::set_block: {
        Flow flow = Flow::go_on;
        const auto text = captured_by([&] { flow = execute_in(new_scope(scope_), *node.parts[2]); });
        if (flow != Flow::go_on) return flow;
        assign(*node.parts[0], filtered(text, node.parts[1]));
        break;
      }
      case NodeKind::filter_block: {
        Flow flow = Flow::go_on;
        const auto text = captured_by([&] { flow = execute_in(new_scope(scope_), *node.parts[1]); });
        if (flow != Flow::go_on) return flow;
        const auto result = filtered(text, node.parts[0]);
        if (!is<Text>(result))
          refuse(std::string("{% filter %} makes a value of type ") + type_name(result) + ", expected a text");
        output(result);
        break;
      }
      case NodeKind::macro:
        scope_->set(node.text, macro(node, 0));
        break;
      case NodeKind::call_block:
        output(call_node(*node.parts[0], macro(node, 1)));
        break;
      case NodeKind::with: {
        auto& scope = new_scope(scope_);
        for (std::size_t i = 1; i + 1 < node.parts.size(); i += 2) {
          const auto value = evaluate(*node.parts[i + 1]);
          within(scope, [&] { return assign(*node.parts[i], value); });
        }
        return execute_in(scope, *node.parts[0]);
      }
      case NodeKind::generation: {
        if (out_ != &result_)
          refuse("{% generation %} within a macro, a call or a captured text: where its text goes is unknown");
        if (std::exchange(in_generation_, true)) refuse("{% generation %} within {% generation %}");
        const auto begin = result_.size();
        auto& scope = new_scope(scope_);
        // jinja2 makes the block a macro that is called without arguments.
        static const std::string kCaller = "caller";
        scope.set("varargs", heap_.list({}, List::Shape::tuple));
        scope.set("kwargs", heap_.dict());
        scope.set(kCaller, Undefined{&kCaller});
        execute_in(scope, *node.parts[0]);
        marked_.push_back({begin, result_.size()});
        in_generation_ = false;
        break;
      }
      default:
        output(evaluate(node));
    }
    return Flow::go_on;
  }

  void output(const Value& value) {
    if (const auto* text = std::get_if<Text>(&value)) return write(*text->bytes);
    write(print(heap_, value));
  }

  Value filtered(const std::string& text, const Node* filters) {
    const Value value = heap_.text(text);
    if (filters == nullptr) return value;
    const auto outer = std::exchange(captured_, value);
    auto result = evaluate(*filters);
    captured_ = outer;
    return result;
  }

  /// Sets the variables that `target` names. \return true
  bool assign(const Node& target, const Value& value) {
    if (target.kind == NodeKind::tuple) {
      const auto items = elements(heap_, value);
      if (items.size() != target.parts.size()) {
        refuse(std::to_string(target.parts.size()) + " variables are set to " + std::to_string(items.size()) +
               " values");
      }
      for (std::size_t i = 0; i < items.size(); ++i) assign(*target.parts[i], items[i]);
    } else if (target.kind == NodeKind::member) {
      const auto object = evaluate(*target.parts[0]);
      auto* const* dict = std::get_if<Dict*>(&object);
      if (dict == nullptr || !(*dict)->is_namespace) refuse("'" + target.parts[0]->text + "' is no namespace");
      if (target.text.starts_with('_')) refuse("a namespace has no private attribute '" + target.text + "'");
      put(heap_, **dict, heap_.text(target.text), value);
    } else {
      heap_.count(sizeof(Value));
      heap_.step(scope_->names.size() / 16);
      scope_->set(target.text, value);
    }
    return true;
  }

  // Loops

  Flow start_loop(const Node& node, const Value& iterable, Scope* scope, int depth);

  // Macros

  /// \param block  the part that is the macro's block; defaults follow
  Value macro(const Node& node, std::size_t block) {
    const auto name = node.kind == NodeKind::macro ? node.text : "caller";
    auto* made = heap_.function(name, [this, &node, block, scope = scope_](const Arguments& arguments) -> Value {
      const Running running(*this, node);
      auto& inner = new_scope(scope);
      auto* const outer = std::exchange(scope_, &inner);
      bind(node, block, arguments);
      auto text = captured_by([&] { execute(*node.parts[block]); });
      scope_ = outer;
      return heap_.text(std::move(text));
    });
    std::vector<Value> parameters;
    for (const auto& parameter : node.names) parameters.emplace_back(Text{&parameter});
    made->members = {{"arguments", heap_.list(std::move(parameters), List::Shape::tuple)},
                     {"catch_kwargs", node.uses_named_rest},
                     {"catch_varargs", node.uses_rest},
                     {"caller", node.uses_caller}};
    return made;
  }

  /// Sets the parameters of a macro in the current scope.
  void bind(const Node& node, std::size_t block, const Arguments& arguments) {
    const auto name = node.kind == NodeKind::macro ? "macro '" + node.text + "'" : std::string("caller()");
    auto named = arguments.named;
    const auto take = [&](std::string_view wanted) -> std::optional<Value> {
      heap_.step(named.size() / 16);
      const auto found = std::find_if(named.begin(), named.end(), [&](const auto& one) { return one.first == wanted; });
      if (found == named.end()) return {};
      const auto value = found->second;
      named.erase(found);
      return value;
    };
    const auto count = node.names.size(), defaults = node.parts.size() - block - 1;
    std::vector<std::size_t> missing;
    for (std::size_t i = 0; i < count; ++i) {
      auto value = take(node.names[i]);
      if (i < arguments.positional.size()) {
        if (value) refuse(name + " has the argument '" + node.names[i] + "' twice");
        value = arguments.positional[i];
      }
      if (!value && i + defaults >= count) missing.push_back(i);
      scope_->set(node.names[i], value.value_or(Undefined{&node.names[i]}));
    }
    // A default sees the other arguments, and not a variable under the name of one.
    for (const auto i : missing) scope_->set(node.names[i], evaluate(*node.parts[block + 1 + i + defaults - count]));
    static const std::string kCaller = "caller";
    if (node.uses_caller) scope_->set(kCaller, take(kCaller).value_or(Undefined{&kCaller}));
    std::vector<Value> rest;
    for (std::size_t i = count; i < arguments.positional.size(); ++i) rest.push_back(arguments.positional[i]);
    if (!rest.empty() && !node.uses_rest) refuse(name + " has too many arguments");
    if (node.uses_rest) scope_->set("varargs", heap_.list(std::move(rest), List::Shape::tuple));
    if (!named.empty() && !node.uses_named_rest) refuse(name + " has no argument '" + named.front().first + "'");
    if (!node.uses_named_rest) return;
    std::vector<std::pair<Value, Value>> others;
    for (const auto& [key, value] : named) others.emplace_back(heap_.text(key), value);
    scope_->set("kwargs", heap_.dict(std::move(others)));
  }

  // Expressions

  Arguments arguments_of(const Node& node) {
    Arguments arguments;
    for (const auto& [name, expression, stars] : node.arguments) {
      const auto value = evaluate(*expression);
      if (stars == 0 && name.empty()) arguments.positional.push_back(value);
      if (stars == 0 && !name.empty()) arguments.named.emplace_back(name, value);
      if (stars == 1) {
        for (const auto& item : elements(heap_, value)) arguments.positional.push_back(item);
      }
      if (stars == 2) {
        auto* const* dict = std::get_if<Dict*>(&value);
        if (dict == nullptr) refuse("** needs a dictionary");
        for (const auto& [key, item] : (*dict)->items) {
          arguments.named.emplace_back(bytes_of(key, "the name of an argument"), item);
          heap_.pass(arguments.named.back().first);
        }
      }
    }
    return arguments;
  }

  Value call_node(const Node& node, const std::optional<Value>& caller) {
    const auto function = evaluate(*node.parts[0]);
    auto arguments = arguments_of(node);
    if (caller) arguments.named.emplace_back("caller", *caller);
    return call(function, arguments);
  }

  Value variable(const std::string& name) {
    for (const auto* scope = scope_; scope != nullptr; scope = scope->outer) {
      heap_.step(scope->names.size() / 16);
      for (const auto& [known, value] : scope->names) {
        if (known == name) return value;
      }
    }
    return Undefined{&name};
  }

  std::vector<Value> values_of(const std::vector<const Node*>& parts) {
    std::vector<Value> values;
    values.reserve(parts.size());
    for (const auto* part : parts) values.push_back(part == nullptr ? Value(None{}) : evaluate(*part));
    return values;
  }

  Value evaluate(const Node& node) {
    const Running running(*this, node);
    switch (node.kind) {
      case NodeKind::constant:
        return node.constant;
      case NodeKind::name:
        return variable(node.text);
      case NodeKind::captured:
        return captured_;
      case NodeKind::member:
        return member_of(context_, evaluate(*node.parts[0]), node.text);
      case NodeKind::item: {
        const auto object = evaluate(*node.parts[0]);
        return item_of(context_, object, evaluate(*node.parts[1]));
      }
      case NodeKind::call:
        return call_node(node, {});
      case NodeKind::filter:
      case NodeKind::test: {
        const auto input = evaluate(*node.parts[0]);
        return apply(context_, *node.builtin, input, arguments_of(node));
      }
      case NodeKind::both:
      case NodeKind::either: {
        auto left = evaluate(*node.parts[0]);
        return truth(heap_, left) == (node.kind == NodeKind::both) ? evaluate(*node.parts[1]) : left;
      }
      case NodeKind::negation:
        return !truth(heap_, evaluate(*node.parts[0]));
      case NodeKind::conditional:
        if (truth(heap_, evaluate(*node.parts[1]))) return evaluate(*node.parts[0]);
        return node.parts[2] != nullptr ? evaluate(*node.parts[2]) : Value(Undefined{});
      case NodeKind::compare:
        return compare(node);
      case NodeKind::arithmetic: {
        const auto left = evaluate(*node.parts[0]);
        return calculate(heap_, node.text.front(), left, evaluate(*node.parts[1]));
      }
      default:
        return compose(node);
    }
  }

  Value compose(const Node& node) {
    const auto values = values_of(node.parts);
    switch (node.kind) {
      case NodeKind::list:
        return heap_.list(values);
      case NodeKind::tuple:
        return heap_.list(values, List::Shape::tuple);
      case NodeKind::slice:
        return slice_of(context_, values[0], values[1], values[2], values[3]);
      case NodeKind::concat: {
        std::string text;
        for (const auto& value : values) {
          text += print(heap_, value);
          heap_.room(text.size());
        }
        return heap_.text(std::move(text));
      }
      case NodeKind::dict: {
        auto* dict = heap_.dict();
        for (std::size_t i = 0; i + 1 < values.size(); i += 2) put(heap_, *dict, values[i], values[i + 1]);
        return dict;
      }
      default:
        // 0 + -0.0 would be 0.0
        if (const auto* x = std::get_if<double>(&values[0])) return node.kind == NodeKind::negative ? -*x : *x;
        return calculate(heap_, node.kind == NodeKind::negative ? '-' : '+', Integer{0}, values[0]);
    }
  }

  Value compare(const Node& node) {
    auto left = evaluate(*node.parts[0]);
    for (std::size_t i = 0; i < node.names.size(); ++i) {
      const auto right = evaluate(*node.parts[i + 1]);
      const auto& name = node.names[i];
      const bool holds = name == "in"       ? contains(context_, right, left)
                         : name == "not in" ? !contains(context_, right, left)
                         : name == "=="     ? equal(heap_, left, right)
                         : name == "!="     ? !equal(heap_, left, right)
                         : name == "<"      ? less(heap_, left, right)
                         : name == ">"      ? less(heap_, right, left)
                         : name == "<="     ? less(heap_, left, right) || equal(heap_, left, right)
                                            : less(heap_, right, left) || equal(heap_, left, right);
      if (!holds) return false;
      left = right;
    }
    return true;
  }

  Heap heap_;
  Context context_;
  std::vector<std::pair<std::string, Value>> functions_;
  std::deque<Scope> scopes_;
  std::deque<std::unique_ptr<Loop>> loops_;
  Scope* scope_ = nullptr;
  std::string result_;
  std::string* out_ = &result_;
  std::vector<TextRange> marked_;
  bool in_generation_ = false;
  Value captured_;
  int depth_ = 0;
  int line_ = 1;
};

/// A loop, and what `loop` is in its body.
class Machine::RunningLoop : public Loop {
 public:
  RunningLoop(Machine& machine, const Node& node, Scope* scope, std::vector<Value> items, int depth)
      : machine_(machine),
        node_(node),
        scope_(scope),
        items_(std::move(items)),
        filter_(node.parts[2]),
        depth_(depth) {}

  /// Goes to the next element. \return false at the end
  bool advance() {
    auto next = after_ ? std::exchange(after_, std::nullopt) : fetch();
    if (!next) return false;
    ++index_;
    before_ = std::exchange(current_, *next);
    return true;
  }

  const Value& current() const { return current_; }

  Value member(const std::string& name) override {
    const Integer index = index_;
    if (name == "index") return index;
    if (name == "index0") return index - 1;
    if (name == "first") return index == 1;
    if (name == "last") return !peek();
    if (name == "length") return Integer{length()};
    if (name == "revindex") return Integer{length()} - index + 1;
    if (name == "revindex0") return Integer{length()} - index;
    if (name == "depth") return Integer{depth_ + 1};
    if (name == "depth0") return Integer{depth_};
    if (name == "previtem") return index == 1 ? Value(Undefined{}) : before_;
    if (name == "nextitem") return peek().value_or(Undefined{});
    if (name == "cycle") {
      return machine_.heap_.function(name, [index](const Arguments& arguments) {
        if (arguments.positional.empty()) refuse("loop.cycle() has no values");
        const auto count = static_cast<Integer>(arguments.positional.size());
        return arguments.positional[static_cast<std::size_t>((index - 1) % count)];
      });
    }
    if (name == "changed") {
      return machine_.heap_.function(name, [this](const Arguments& arguments) -> Value {
        const Value now = machine_.heap_.list(arguments.positional, List::Shape::tuple);
        if (told_ && equal(machine_.heap_, *told_, now)) return false;
        told_ = now;
        return true;
      });
    }
    return Undefined{&name, "LoopContext"};
  }

  Value call(const Arguments& arguments) override {
    if (!node_.flag) refuse("the loop is called, and is not 'recursive'");
    if (arguments.positional.size() != 1 || !arguments.named.empty()) refuse("loop() takes one list");
    const Running running(machine_, node_);
    return machine_.heap_.text(
        machine_.captured_by([&] { machine_.start_loop(node_, arguments.positional.front(), scope_, depth_ + 1); }));
  }

  std::size_t length() override {
    if (total_) return *total_;
    if (filter_ == nullptr) {
      total_ = items_.size();
    } else {
      std::vector<Value> rest;
      while (const auto next = fetch()) rest.push_back(*next);
      total_ = index_ + rest.size() + (after_ ? 1 : 0);
      items_ = std::move(rest);
      next_ = 0;
      filter_ = nullptr;
    }
    return *total_;
  }

 private:
  const std::optional<Value>& peek() {
    if (!after_) after_ = fetch();
    return after_;
  }

  std::optional<Value> fetch() {
    while (next_ < items_.size()) {
      const auto item = items_[next_++];
      if (filter_ == nullptr) return item;
      const bool passes = machine_.within(machine_.new_scope(scope_), [&] {
        machine_.assign(*node_.parts[0], item);
        return truth(machine_.heap_, machine_.evaluate(*filter_));
      });
      if (passes) return item;
    }
    return {};
  }

  Machine& machine_;
  const Node& node_;
  Scope* scope_;
  std::vector<Value> items_;
  std::size_t next_ = 0;
  const Node* filter_;
  int depth_;
  std::size_t index_ = 0;  ///< elements that were current, including this one
  Value current_, before_;
  std::optional<Value> after_;  ///< the next element, if it was looked at
  std::optional<std::size_t> total_;
  std::optional<Value> told_;  ///< of changed()
};

Flow Machine::start_loop(const Node& node, const Value& iterable, Scope* scope, int depth) {
  auto items = elements(heap_, iterable);
  heap_.count(sizeof(RunningLoop) + items.size() * sizeof(Value));
  auto owner = std::make_unique<RunningLoop>(*this, node, scope, std::move(items), depth);
  auto& loop = *owner;
  loops_.push_back(std::move(owner));
  bool completed = false;  // As Jinja, which takes an else when no pass comes to its end.
  while (loop.advance()) {
    auto& inner = new_scope(scope);
    inner.set("loop", &loop);
    const auto flow = within(inner, [&] {
      assign(*node.parts[0], loop.current());
      return execute(*node.parts[3]);
    });
    if (flow == Flow::break_loop) break;
    completed = completed || flow == Flow::go_on;
  }
  return !completed && node.parts[4] != nullptr ? execute_in(new_scope(scope), *node.parts[4]) : Flow::go_on;
}

}  // namespace
}  // namespace jinja

JinjaTemplate::JinjaTemplate(std::string_view source, JinjaEnvironment environment)
    : syntax_(std::make_unique<jinja::Syntax>(source, environment)) {}
JinjaTemplate::~JinjaTemplate() = default;

JinjaText JinjaTemplate::render(const nlohmann::ordered_json& variables, const std::tm& now,
                                const JinjaLimits& limits) const {
  const bool strict = syntax_->environment() == JinjaEnvironment::strict;
  return jinja::Machine(now, limits, strict).run(syntax_->root(), variables);
}

bool JinjaTemplate::has_generation() const { return syntax_->has_generation(); }

}  // namespace fsdp
