#include <map>
#include <vector>

#include "lib/templates/jinja/syntax/jinja_syntax.hpp"

namespace fsdp::jinja {
namespace {

/// The names of one scope, in the order in which Jinja's compiler meets them. Blocks within it have scopes of their
/// own.
class Frame {
 public:
  explicit Frame(const Frame* outer) : outer_(outer) {}

  void parameter(const Node& target) {
    if (target.kind == NodeKind::name) names_[target.text] = false;
    for (const auto* part : target.parts) parameter(*part);
  }
  void parameter(const std::string& name) { names_[name] = false; }

  void visit(const Node* node) {
    if (node == nullptr) return;
    switch (node->kind) {
      case NodeKind::name:
        if (!knows(node->text)) names_[node->text] = false;
        break;
      case NodeKind::condition:
        visit(node->parts[0]);
        ++branches_;
        for (std::size_t i = 1; i < node->parts.size(); ++i) visit(node->parts[i]);
        --branches_;
        break;
      case NodeKind::loop:
        visit(node->parts[1]);
        inner_.push_back(node);
        break;
      case NodeKind::set:
        visit(node->parts[1]);
        store(*node->parts[0]);
        break;
      case NodeKind::set_block:
        store(*node->parts[0]);
        inner_.push_back(node);
        break;
      case NodeKind::macro:
        store(node->text);
        inner_.push_back(node);
        break;
      case NodeKind::with:
        for (std::size_t i = 2; i < node->parts.size(); i += 2) visit(node->parts[i]);
        inner_.push_back(node);
        break;
      case NodeKind::call_block:
      case NodeKind::filter_block:
        visit(node->parts[0]);
        inner_.push_back(node);
        break;
      case NodeKind::generation:
        inner_.push_back(node);
        break;
      default:
        for (const auto* part : node->parts) visit(part);
        for (const auto& argument : node->arguments) visit(argument.value);
    }
  }

  /// Adds what this frame, whose statements are `block`, and the frames within leave unset until they assign it.
  void finish(const Node* block, UnsetNames& unset) const {
    for (const auto& [name, is_unset] : names_) {
      if (is_unset) unset[block].push_back(name);
    }
    for (const auto* node : inner_) enter(*node, unset);
  }

 private:
  bool knows(const std::string& name) const {
    return names_.contains(name) || (outer_ != nullptr && outer_->knows(name));
  }

  /// A name is unset if this scope assigns it before it reads it, always, and no outer scope has it.
  void store(const std::string& name) { names_.try_emplace(name, branches_ == 0 && !knows(name)); }
  void store(const Node& target) {
    if (target.kind == NodeKind::name) return store(target.text);
    if (target.kind == NodeKind::member) return visit(target.parts[0]);
    for (const auto* part : target.parts) store(*part);
  }

  void enter(const Node& node, UnsetNames& unset) const {
    const auto run = [&](const Node* block, auto declare) {
      if (block == nullptr) return;
      Frame frame(this);
      declare(frame);
      frame.visit(block);
      frame.finish(block, unset);
    };
    const auto nothing = [](Frame&) {};
    switch (node.kind) {
      case NodeKind::loop:
        run(node.parts[3], [&](Frame& frame) { frame.parameter(*node.parts[0]); });
        return run(node.parts[4], nothing);
      case NodeKind::set_block:
        return run(node.parts[2], nothing);
      case NodeKind::with:
        return run(node.parts[0], [&](Frame& frame) {
          for (std::size_t i = 1; i < node.parts.size(); i += 2) frame.parameter(*node.parts[i]);
        });
      case NodeKind::macro:
      case NodeKind::call_block: {
        const std::size_t block = node.kind == NodeKind::macro ? 0 : 1;
        return run(node.parts[block], [&](Frame& frame) {
          for (const auto& name : node.names) frame.parameter(name);
          for (std::size_t i = block + 1; i < node.parts.size(); ++i) frame.visit(node.parts[i]);
        });
      }
      case NodeKind::filter_block:
        return run(node.parts[1], nothing);
      default:
        run(node.parts[0], nothing);
    }
  }

  const Frame* outer_;
  std::map<std::string, bool> names_;  ///< true: unset until it is assigned
  std::vector<const Node*> inner_;     ///< statements that have their own scopes
  int branches_ = 0;                   ///< conditions around the node that is visited
};

}  // namespace

UnsetNames unset_names(const Node& root) {
  UnsetNames unset;
  Frame frame(nullptr);
  frame.visit(&root);
  frame.finish(&root, unset);
  return unset;
}

}  // namespace fsdp::jinja
