#pragma once
// How weights are updated: optimizer, learning rate, clipping.
#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>

#include "lib/training/step/train_options.hpp"

namespace fsdp {

/// What an option does with its value.
using TakeText = std::function<void(const std::string&)>;

/// A type's name, or "" for none. \param option  for messages; must outlive the result
TakeText take_float_type(std::optional<c10::ScalarType>& value, const char* option);

void add_optimizer_options(CLI::App& app, TrainOptions& options);

}  // namespace fsdp
