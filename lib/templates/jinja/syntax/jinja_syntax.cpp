#include "lib/templates/jinja/syntax/jinja_syntax.hpp"

#include <algorithm>
#include <array>

#include "lib/base/text/text_format.hpp"
#include "lib/base/text/utf8.hpp"
#include "lib/templates/jinja/jinja_functions.hpp"
#include "lib/templates/jinja/syntax/jinja_lexer.hpp"

namespace fsdp::jinja {
namespace {

constexpr int kMostNesting = 200;  ///< of expressions within expressions, and of statements within statements

}  // namespace

class Parser {
 public:
  Parser(Syntax& syntax, std::vector<Token> tokens) : syntax_(syntax), tokens_(std::move(tokens)) {}

  const Node* run() { return statements({}); }

 private:
  using Ends = std::vector<std::string_view>;

  /// Counts nested calls while it exists.
  class Level {
   public:
    explicit Level(Parser& parser) : parser_(parser) {
      if (++parser_.level_ > kMostNesting) fail(parser_.now().line, "the template is nested too deeply");
    }
    ~Level() { --parser_.level_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Parser& parser_;
  };

  const Token& now() const { return tokens_[at_]; }
  const Token& following() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token& take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool is_sign(std::string_view sign) const { return now().kind == TokenKind::sign && now().text == sign; }
  bool is_name(std::string_view name) const { return now().kind == TokenKind::name && now().text == name; }
  bool skip_sign(std::string_view sign) { return is_sign(sign) && (take(), true); }
  bool skip_name(std::string_view name) { return is_name(name) && (take(), true); }
  void expect_sign(std::string_view sign) {
    if (!skip_sign(sign)) unexpected("'" + std::string(sign) + "'");
  }
  std::string expect_name() {
    if (now().kind != TokenKind::name) unexpected("a name");
    return take().text;
  }
  void expect(TokenKind kind, const char* what) {
    if (now().kind != kind) unexpected(what);
    take();
  }
  [[noreturn]] void unexpected(const std::string& wanted) const {
    const auto& token = now();
    const std::string found = token.kind == TokenKind::end          ? "the end of the template"
                              : token.kind == TokenKind::block_end  ? "%}"
                              : token.kind == TokenKind::output_end ? "}}"
                              : token.kind == TokenKind::text       ? "a text"
                              : token.kind == TokenKind::number     ? "a number"
                                                                    : "'" + printable(token.text) + "'";
    fail(token.line, "found " + found + " where " + wanted + " is expected");
  }

  Node& add(NodeKind kind, std::vector<const Node*> parts = {}) {
    auto& node = syntax_.nodes_.emplace_back();
    node.kind = kind;
    node.line = now().line;
    for (const auto* part : parts) append(node, part);
    return node;
  }
  void append(Node& node, const Node* part) {
    node.parts.push_back(part);
    if (part != nullptr) measure(node, *part);
  }
  void measure(Node& node, const Node& part) {
    node.height = std::max(node.height, part.height + 1);
    if (node.height > 2 * kMostNesting) fail(node.line, "an expression or a block is nested too deeply");
  }

  // Statements

  /// Parses up to a tag that begins with one of `ends`, which is the next token then.
  const Node* statements(const Ends& ends) {
    const Level level(*this);
    auto& block = add(NodeKind::block);
    while (now().kind != TokenKind::end) {
      if (now().kind == TokenKind::data) {
        auto& data = add(NodeKind::data);
        data.text = std::move(take().text);
        append(block, &data);
      } else if (now().kind == TokenKind::output_begin) {
        take();
        append(block, &add(NodeKind::output, {tuple()}));
        expect(TokenKind::output_end, "}}");
      } else {
        take();
        if (now().kind == TokenKind::name && std::find(ends.begin(), ends.end(), now().text) != ends.end())
          return &block;
        if (const auto* node = statement()) append(block, node);
        expect(TokenKind::block_end, "%}");
      }
    }
    if (!ends.empty()) unexpected("{% " + std::string(ends.back()) + " %}");
    return &block;
  }

  /// Parses the rest of a tag and the block after it, up to a tag that begins with one of `ends`.
  const Node* body(const Ends& ends) {
    skip_sign(":");
    expect(TokenKind::block_end, "%}");
    return statements(ends);
  }
  /// Like body(), but stops at the given end tag and consumes it.
  const Node* whole_body(std::string_view end) {
    const auto* block = body({end});
    take();
    return block;
  }

  const Node* statement() {
    struct Statement {
      std::string_view name;
      const Node* (Parser::*parse)();
    };
    static constexpr std::array kStatements{Statement{"if", &Parser::condition},
                                            Statement{"for", &Parser::loop},
                                            Statement{"set", &Parser::set},
                                            Statement{"macro", &Parser::macro},
                                            Statement{"call", &Parser::call_block},
                                            Statement{"filter", &Parser::filter_block},
                                            Statement{"with", &Parser::with},
                                            Statement{"generation", &Parser::generation},
                                            Statement{"print", &Parser::print_statement}};
    const int line = now().line;
    const auto name = expect_name();
    for (const auto& one : kStatements) {
      if (one.name == name) return (this->*one.parse)();
    }
    if (name == "break" || name == "continue") {
      if (!in_loop_) fail(line, "{% " + name + " %} is outside of a loop");
      return &add(name == "break" ? NodeKind::break_loop : NodeKind::continue_loop);
    }
    for (const auto* known : {"include", "import", "from", "extends", "block", "autoescape"}) {
      if (name == known) fail(line, "{% " + name + " %} is not supported in chat templates");
    }
    fail(line, "{% " + printable(name) + " %} is no statement, or stands where none of its kind is open");
  }

  const Node* condition() {
    auto& node = add(NodeKind::condition);
    while (true) {
      append(node, tuple(false));
      append(node, body({"elif", "else", "endif"}));
      if (skip_name("elif")) continue;
      if (skip_name("else")) append(node, body({"endif"}));
      skip_name("endif");
      return &node;
    }
  }

  const Node* loop() {
    auto& node = add(NodeKind::loop, {target()});
    if (!skip_name("in")) unexpected("in");
    append(node, tuple(false));
    append(node, skip_name("if") ? expression() : nullptr);
    node.flag = skip_name("recursive");
    const bool outer = std::exchange(in_loop_, true);
    append(node, body({"else", "endfor"}));
    in_loop_ = outer;
    append(node, skip_name("else") ? body({"endfor"}) : nullptr);
    take();
    return &node;
  }

  const Node* set() {
    const auto* place = target(true);
    if (skip_sign("=")) return &add(NodeKind::set, {place, tuple()});
    auto& node = add(NodeKind::set_block, {place});
    append(node, is_sign("|") ? filters(&add(NodeKind::captured)) : nullptr);
    append(node, whole_body("endset"));
    return &node;
  }

  const Node* print_statement() {
    auto& node = add(NodeKind::output, {expression()});
    while (skip_sign(",")) append(node, expression());
    return &node;
  }

  const Node* filter_block() {
    auto& node = add(NodeKind::filter_block, {filters(&add(NodeKind::captured), true)});
    append(node, whole_body("endfilter"));
    return &node;
  }

  const Node* with() {
    std::vector<const Node*> parts{nullptr};
    while (now().kind != TokenKind::block_end && !is_sign(":")) {
      if (parts.size() > 1) expect_sign(",");
      parts.push_back(target());
      expect_sign("=");
      parts.push_back(expression());
    }
    parts.front() = whole_body("endwith");
    return &add(NodeKind::with, parts);
  }

  const Node* generation() {
    syntax_.has_generation_ = true;
    const bool outer = std::exchange(in_loop_, false);
    auto& node = add(NodeKind::generation, {whole_body("endgeneration")});
    in_loop_ = outer;
    return &node;
  }

  const Node* macro() {
    auto& node = add(NodeKind::macro);
    node.text = expect_name();
    macro_body(node, "endmacro", true);
    return &node;
  }

  const Node* call_block() {
    auto& node = add(NodeKind::call_block);
    std::vector<const Node*> defaults;
    if (is_sign("(")) defaults = parameters(node);
    const auto* call = expression();
    if (call->kind != NodeKind::call) unexpected("a call");
    append(node, call);
    macro_body(node, "endcall", false, std::move(defaults));
    return &node;
  }

  std::vector<const Node*> parameters(Node& node) {
    std::vector<const Node*> defaults;
    expect_sign("(");
    while (!is_sign(")")) {
      if (!node.names.empty()) expect_sign(",");
      node.names.push_back(expect_name());
      if (skip_sign("=")) {
        defaults.push_back(expression());
      } else if (!defaults.empty()) {
        unexpected("= and a default");
      }
    }
    take();
    return defaults;
  }

  /// Adds the block and the defaults.
  void macro_body(Node& node, std::string_view end, bool has_parameters, std::vector<const Node*> defaults = {}) {
    if (has_parameters) defaults = parameters(node);
    auto* outer = std::exchange(macro_, &node);
    const bool outer_loop = std::exchange(in_loop_, false);
    append(node, whole_body(end));
    macro_ = outer;
    in_loop_ = outer_loop;
    for (const auto* value : defaults) append(node, value);
  }

  /// A name, an attribute of a namespace, or several of them.
  const Node* target(bool with_members = false) {
    const Level level(*this);
    std::vector<const Node*> parts;
    bool is_tuple = false;
    do {
      if (is_name("in") || is_sign("=") || is_sign(")")) break;
      if (skip_sign("(")) {
        parts.push_back(target());
        expect_sign(")");
      } else {
        parts.push_back(single_target(with_members));
      }
      is_tuple = is_tuple || is_sign(",");
    } while (skip_sign(","));
    if (parts.empty()) unexpected("a name");
    return is_tuple ? &add(NodeKind::tuple, parts) : parts.front();
  }

  const Node* single_target(bool with_members) {
    auto& node = add(NodeKind::name);
    node.text = expect_name();
    for (const auto* constant : {"true", "false", "none", "True", "False", "None"}) {
      if (node.text == constant) fail(node.line, "'" + node.text + "' cannot be set");
    }
    if (!with_members || !skip_sign(".")) return &node;
    auto& member = add(NodeKind::member, {&node});
    member.text = expect_name();
    return &member;
  }

  // Expressions, from the weakest operator on

  const Node* tuple(bool with_conditional = true, bool in_brackets = false) {
    const Level level(*this);
    std::vector<const Node*> parts;
    bool is_tuple = false;
    const auto is_end = [&] {
      return now().kind == TokenKind::output_end || now().kind == TokenKind::block_end || is_sign(")");
    };
    while (!is_end()) {
      parts.push_back(with_conditional ? expression() : either());
      if (!skip_sign(",")) break;
      is_tuple = true;
    }
    if (!is_tuple && parts.size() == 1) return parts.front();
    if (!is_tuple && !in_brackets) unexpected("an expression");
    return &add(NodeKind::tuple, parts);
  }

  const Node* expression() {
    const Level level(*this);
    const auto* value = either();
    while (skip_name("if")) {
      const auto* test = either();
      value = &add(NodeKind::conditional, {value, test, skip_name("else") ? expression() : nullptr});
    }
    return value;
  }

  const Node* either() {
    const auto* left = both();
    while (skip_name("or")) left = &add(NodeKind::either, {left, both()});
    return left;
  }
  const Node* both() {
    const auto* left = negation();
    while (skip_name("and")) left = &add(NodeKind::both, {left, negation()});
    return left;
  }
  const Node* negation() {
    const Level level(*this);
    if (skip_name("not")) return &add(NodeKind::negation, {negation()});
    return comparison();
  }

  const Node* comparison() {
    constexpr std::array<std::string_view, 6> kOperators{"==", "!=", "<", "<=", ">", ">="};
    std::vector<const Node*> operands{sum()};
    std::vector<std::string> operators;
    while (true) {
      if (now().kind == TokenKind::sign &&
          std::find(kOperators.begin(), kOperators.end(), now().text) != kOperators.end()) {
        operators.push_back(take().text);
      } else if (skip_name("in")) {
        operators.emplace_back("in");
      } else if (is_name("not") && following().kind == TokenKind::name && following().text == "in") {
        take();
        take();
        operators.emplace_back("not in");
      } else {
        break;
      }
      operands.push_back(sum());
    }
    if (operators.empty()) return operands.front();
    auto& node = add(NodeKind::compare, operands);
    node.names = std::move(operators);
    return &node;
  }

  /// Parses operands that `part` parses, joined from the left by some of `signs`.
  const Node* joined(const std::vector<std::string_view>& signs, const Node* (Parser::*part)()) {
    const auto* left = (this->*part)();
    while (now().kind == TokenKind::sign && std::find(signs.begin(), signs.end(), now().text) != signs.end()) {
      const auto sign = take().text;
      auto& node = add(NodeKind::arithmetic, {left, (this->*part)()});
      node.text = sign == "//" ? "f" : sign == "**" ? "p" : sign;
      left = &node;
    }
    return left;
  }
  const Node* sum() { return joined({"+", "-"}, &Parser::concatenation); }
  const Node* product() { return joined({"*", "/", "//", "%"}, &Parser::power); }
  const Node* power() { return joined({"**"}, &Parser::filtered); }

  const Node* concatenation() {
    std::vector<const Node*> parts{product()};
    while (skip_sign("~")) parts.push_back(product());
    return parts.size() == 1 ? parts.front() : &add(NodeKind::concat, parts);
  }

  const Node* filtered() { return filters(signed_value()); }
  const Node* signed_value() {
    const Level level(*this);
    if (skip_sign("-")) return postfix(&add(NodeKind::negative, {signed_value()}));
    if (skip_sign("+")) return postfix(&add(NodeKind::positive, {signed_value()}));
    return postfix(primary());
  }

  const Node* primary() {
    const Level level(*this);
    auto& token = take();
    if (token.kind == TokenKind::name) return name_or_constant(token.text);
    if (token.kind == TokenKind::number) return constant(token.number);
    if (token.kind == TokenKind::text) {
      auto& node = add(NodeKind::constant);
      node.text = std::move(token.text);
      while (now().kind == TokenKind::text) node.text += take().text;
      node.constant = Text{&node.text};
      return &node;
    }
    if (token.kind == TokenKind::sign && token.text == "(") {
      const auto* node = tuple(true, true);
      expect_sign(")");
      return node;
    }
    if (token.kind == TokenKind::sign && token.text == "[") return &add(NodeKind::list, sequence("]", false));
    if (token.kind == TokenKind::sign && token.text == "{") return &add(NodeKind::dict, sequence("}", true));
    if (token.kind != TokenKind::end) --at_;
    unexpected("an expression");
  }

  std::vector<const Node*> sequence(std::string_view end, bool with_keys) {
    std::vector<const Node*> parts;
    while (!skip_sign(end)) {
      if (!parts.empty()) {
        expect_sign(",");
        if (skip_sign(end)) break;
      }
      parts.push_back(expression());
      if (!with_keys) continue;
      expect_sign(":");
      parts.push_back(expression());
    }
    return parts;
  }

  const Node* constant(const Value& value) {
    auto& node = add(NodeKind::constant);
    node.constant = value;
    return &node;
  }

  const Node* name_or_constant(const std::string& name) {
    if (name == "true" || name == "True") return constant(true);
    if (name == "false" || name == "False") return constant(false);
    if (name == "none" || name == "None") return constant(None{});
    if (macro_ != nullptr) {
      macro_->uses_rest = macro_->uses_rest || name == "varargs";
      macro_->uses_named_rest = macro_->uses_named_rest || name == "kwargs";
      macro_->uses_caller = macro_->uses_caller || name == "caller";
    }
    auto& node = add(NodeKind::name);
    node.text = name;
    return &node;
  }

  const Node* postfix(const Node* node) {
    while (true) {
      if (skip_sign(".")) {
        if (now().kind == TokenKind::number) {
          node = &add(NodeKind::item, {node, constant(take().number)});
          continue;
        }
        auto& member = add(NodeKind::member, {node});
        member.text = expect_name();
        node = &member;
      } else if (skip_sign("[")) {
        node = subscript(node);
      } else if (is_sign("(")) {
        node = call(node);
      } else {
        return node;
      }
    }
  }

  const Node* subscript(const Node* object) {
    std::vector<const Node*> keys;
    while (!skip_sign("]")) {
      if (!keys.empty()) expect_sign(",");
      const Node* first = is_sign(":") ? nullptr : expression();
      if (!is_sign(":")) {
        keys.push_back(first);
        continue;
      }
      std::vector<const Node*> bounds{object, first};
      while (bounds.size() < 4) {
        const bool is_given = skip_sign(":") && !is_sign(":") && !is_sign("]") && !is_sign(",");
        bounds.push_back(is_given ? expression() : nullptr);
      }
      if (!keys.empty() || !skip_sign("]")) unexpected("']'");
      return &add(NodeKind::slice, bounds);
    }
    if (keys.empty()) unexpected("a key");
    return &add(NodeKind::item, {object, keys.size() == 1 ? keys.front() : &add(NodeKind::tuple, keys)});
  }

  const Node* call(const Node* function) {
    auto& node = add(NodeKind::call, {function});
    arguments(node);
    return &node;
  }

  void arguments(Node& node) {
    const Level level(*this);
    expect_sign("(");
    std::uint8_t stars = 0;
    bool is_named = false;
    while (!skip_sign(")")) {
      if (!node.arguments.empty()) {
        expect_sign(",");
        if (skip_sign(")")) break;
      }
      Node::Argument argument{};
      if (is_sign("*") || is_sign("**")) argument.stars = take().text == "*" ? 1 : 2;
      if (argument.stars == 0 && now().kind == TokenKind::name && following().kind == TokenKind::sign &&
          following().text == "=") {
        argument.name = take().text;
        take();
      }
      const bool by_position = argument.stars == 0 && argument.name.empty();
      if (stars == 2 || (argument.stars == 1 && stars == 1) || (by_position && (is_named || stars > 0)))
        unexpected("another order of arguments");
      stars = std::max(stars, argument.stars);
      is_named = is_named || !argument.name.empty();
      argument.value = expression();
      measure(node, *argument.value);
      node.arguments.push_back(std::move(argument));
    }
  }

  const Node* filters(const Node* node, bool starts_with_name = false) {
    while (true) {
      if (starts_with_name || skip_sign("|")) {
        starts_with_name = false;
        auto& filter = add(NodeKind::filter, {node});
        filter.text = expect_name();
        filter.builtin = find_filter(filter.text);
        if (filter.builtin == nullptr && syntax_.environment() == JinjaEnvironment::strict)
          filter.builtin = find_strict_filter(filter.text);
        if (filter.builtin == nullptr) fail(filter.line, "there is no filter '" + printable(filter.text) + "' here");
        if (is_sign("(")) arguments(filter);
        node = &filter;
      } else if (node->kind != NodeKind::captured && is_name("is")) {
        node = test(node);
      } else if (node->kind != NodeKind::captured && is_sign("(")) {
        node = call(node);
      } else {
        return node;
      }
    }
  }

  const Node* test(const Node* input) {
    take();
    const bool negated = skip_name("not");
    auto& node = add(NodeKind::test, {input});
    node.text = expect_name();
    node.builtin = find_test(node.text);
    if (node.builtin == nullptr) fail(node.line, "there is no test '" + printable(node.text) + "'");
    if (is_sign("(")) {
      arguments(node);
    } else if (takes_argument()) {
      if (is_name("is")) unexpected("no second test");
      Node::Argument argument{.name = {}, .value = postfix(primary())};
      measure(node, *argument.value);
      node.arguments.push_back(std::move(argument));
    }
    return negated ? &add(NodeKind::negation, {&node}) : &node;
  }

  bool takes_argument() const {
    if (now().kind == TokenKind::name) return !is_name("else") && !is_name("or") && !is_name("and");
    return now().kind == TokenKind::text || now().kind == TokenKind::number || is_sign("[") || is_sign("{");
  }

  Syntax& syntax_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int level_ = 0;
  bool in_loop_ = false;
  Node* macro_ = nullptr;
};

Syntax::Syntax(std::string_view source, JinjaEnvironment environment) : environment_(environment) {
  if (!is_utf8(source)) refuse("the template is not UTF-8");
  root_ = Parser(*this, tokens_of(source, environment)).run();
  const auto unset = unset_names(*root_);
  for (auto& node : nodes_) {
    if (const auto found = unset.find(&node); found != unset.end()) node.names = found->second;
  }
}

}  // namespace fsdp::jinja
