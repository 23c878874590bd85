#pragma once
// Groups of training options: optimizer, learning rate and clipping; parameter-efficient methods; validation.
#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>

#include "lib/training/step/train_options.hpp"

namespace fsdp {

/// Stores the text of an option's value.
using TakeText = std::function<void(const std::string&)>;

/// Returns a parser that stores the type that a text names, or no type for "".
/// \param option  name for messages; must outlive the result
TakeText take_float_type(std::optional<c10::ScalarType>& value, const char* option);

void add_optimizer_options(CLI::App& app, TrainOptions& options);

void add_method_options(CLI::App& app, TrainOptions& options);

void add_validation_options(CLI::App& app, TrainOptions& options);

/// Replaces --keep-best without a value, or with the value true, by loss, and false by none.
void normalize_validation_options(CLI::App& app);

}  // namespace fsdp
