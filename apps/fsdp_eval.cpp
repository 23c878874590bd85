// fsdp-eval: loss, perplexity and text of a checkpoint; the model's structure comes from the checkpoint.
#include <nlohmann/json.hpp>

#include "apps/torch_main.hpp"
#include "lib/run/evaluate_job.hpp"

int main(int argc, char** argv) {
  CLI::App app{
      "Evaluates a checkpoint: token-exact loss and perplexity on a token file, text from a prompt.\n"
      "The model's structure comes from the checkpoint; any number of ranks gives the same numbers.\n"
      "Exit codes: 0 done, 1 failed, 2 usage, 4 bad input.",
      "fsdp-eval"};
  fsdp::let_later_options_win(app);
  fsdp::EvaluateOptions options;
  using fsdp::spellings;
  app.add_option("checkpoint", options.checkpoint,
                 "a checkpoint: a directory (step-NNNNNNNN, latest, or PyTorch's), a .pt or safetensors file, or a "
                 "directory with config.json and model.safetensors")
      ->required();
  app.add_option(spellings("model-config"), options.model_config,
                 "config.json, or its directory, for a checkpoint that does not say what its model is");
  app.add_option("--data", options.data, "HDF5 file with input_ids [rows, ids]");
  app.add_option(spellings("seq-len"), options.seq_len, "longest sequence; 0: the model's")->capture_default_str();
  app.add_option(spellings("batch-size"), options.batch_size, "sequences per rank at once")->capture_default_str();
  app.add_option("--prompt", options.prompt, "generate from this text");
  app.add_option(spellings("num-tokens"), options.sampling.num_tokens, "tokens to generate")->capture_default_str();
  app.add_option("--temperature", options.sampling.temperature, "0: the most likely token each time")
      ->capture_default_str();
  app.add_option(spellings("top-k"), options.sampling.top_k, "draw from the k most likely tokens; 0: all")
      ->capture_default_str();
  app.add_option(spellings("top-p"), options.sampling.top_p,
                 "draw from the most likely tokens that have this probability together")
      ->capture_default_str();
  app.add_option("--seed", options.sampling.seed, "of the drawing")->capture_default_str();
  app.add_flag(spellings("no-cache"), options.sampling.no_cache,
               "compute the whole sequence for every token (a check; slow)");
  app.add_option("--precision", options.sharding.precision, "float32, bf16 or fp16")->capture_default_str();
  app.add_option("--sharding", options.sharding.sharding, "how parameters are split over the ranks")
      ->capture_default_str();
  fsdp::add_runtime_options(app, options.runtime);
  app.set_config("--config", "", "read options from a file");
  app.set_version_flag("--version", [] { return fsdp::torch_version_text("fsdp-eval"); });
  if (const int code = fsdp::parse(app, argc, argv); code >= 0) return code;
  return fsdp::run_torch_job(options.runtime,
                             [&](fsdp::ProcessGroup& world, const fsdp::Logger& log, nlohmann::json& report) {
                               fsdp::require_same_options(world, app);
                               return fsdp::run_evaluate(world, options, log, report);
                             });
}
