#pragma once
// Replaces the environment of the process.
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <string>

namespace fsdp::test {

/// While an object lives, the environment has only the given variables.
class Environment {
 public:
  using Variables = std::map<std::string, std::string>;

  explicit Environment(const Variables& variables) {
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      const auto end = text.find('=');
      before_[text.substr(0, end)] = text.substr(end + 1);
    }
    put(variables);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  ~Environment() { put(before_); }

 private:
  static void put(const Variables& variables) {
    ::clearenv();
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  }

  Variables before_;
};

}  // namespace fsdp::test
