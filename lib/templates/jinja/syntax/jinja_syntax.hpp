#pragma once
// The syntax tree of a template.
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lib/templates/jinja/jinja_value.hpp"

namespace fsdp::jinja {

struct Builtin;

enum class NodeKind : std::uint8_t {
  // Statements. Their parts:
  data,          ///< none; text
  output,        ///< expressions
  block,         ///< statements; names: unset at its beginning (unset_names())
  condition,     ///< test, block, test, block, ..., and a block if there is an else
  loop,          ///< target, iterable, filter or null, block, block of else or null; flag: recursive
  set,           ///< target, expression
  set_block,     ///< target, filters of `captured` or null, block
  macro,         ///< block, defaults of the last parameters; names: parameters; text: name
  call_block,    ///< call, then as macro
  filter_block,  ///< filters of `captured`, block
  with,          ///< block, then targets and expressions in turn
  generation,    ///< block
  break_loop,
  continue_loop,
  // Expressions:
  constant,
  name,        ///< text
  member,      ///< object; text: name after the dot. As a target: an attribute of the namespace `object`
  item,        ///< object, key
  slice,       ///< object, and three bounds or nulls
  list,        ///< elements
  tuple,       ///< elements
  dict,        ///< keys and values in turn
  call,        ///< function; arguments
  filter,      ///< input; text: name; arguments
  test,        ///< input; text: name; arguments
  captured,    ///< none: the output that the statement has captured
  negation,    ///< of a truth value
  negative,    ///< of a number
  positive,    ///< of a number
  both,        ///< left, right: and
  either,      ///< left, right: or
  compare,     ///< operands; names: operators between them
  concat,      ///< operands
  arithmetic,  ///< left, right; text: operation as in calculate()
  conditional  ///< value, test, and value of else or null
};

struct Node {
  struct Argument {
    std::string name;  ///< empty: by position
    const Node* value;
    std::uint8_t stars = 0;  ///< 1: a list of arguments, 2: a dictionary of named ones
  };
  NodeKind kind = NodeKind::data;
  int line = 0;
  int height = 1;  ///< of the tree from here
  std::string text;
  std::vector<const Node*> parts;
  std::vector<std::string> names;
  std::vector<Argument> arguments;
  bool flag = false;
  Value constant;
  const Builtin* builtin = nullptr;  ///< of a filter or a test
  bool uses_rest = false;            ///< a macro reads varargs,
  bool uses_named_rest = false;      ///< kwargs,
  bool uses_caller = false;          ///< caller
};

using UnsetNames = std::map<const Node*, std::vector<std::string>>;

/// Names by the blocks of scopes in which nothing is under them until the scope assigns them, whatever variables the
/// template is given: {% for x in xs %}{{ a }}{% endfor %}{% set a = 1 %} never prints a variable `a`.
/// Source: jinja2/idtracking.py
UnsetNames unset_names(const Node& root);

class Syntax {
 public:
  /// \throws FormatError naming the line
  Syntax(std::string_view source, JinjaEnvironment environment);
  Syntax(const Syntax&) = delete;
  Syntax& operator=(const Syntax&) = delete;

  const Node& root() const { return *root_; }
  bool has_generation() const { return has_generation_; }
  JinjaEnvironment environment() const { return environment_; }

 private:
  friend class Parser;
  std::deque<Node> nodes_;
  const Node* root_ = nullptr;
  JinjaEnvironment environment_;
  bool has_generation_ = false;
};

}  // namespace fsdp::jinja
