#pragma once
// The remedy that an error names.
#include "lib/base/types/error.hpp"

namespace fsdp::test {

/// The advice of the Error that `action` throws; none when nothing is thrown.
template <typename Action>
Advice advice_of(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.advice();
  }
  return {};
}

}  // namespace fsdp::test
