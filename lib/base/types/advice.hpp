#pragma once
// Help against an error or a warning, without the words of any program: the library names the remedy, and the
// program that shows the message has a sentence for each (apps/common/remedies.cpp), which names its own options.
#include <string>
#include <utility>

namespace fsdp {

/// Enumerators: lib/base/types/remedy.hpp.
enum class Remedy : int;

/// A remedy and its subject: the tensor to leave out, the folder to give.
struct Advice {
  Advice() = default;
  Advice(Remedy what, std::string whose = {}) : remedy(what), subject(std::move(whose)) {}

  Remedy remedy{};  ///< Remedy::none
  std::string subject;
};

}  // namespace fsdp
