// Counts what the CUDA back end launches for one layer of CodeLlama-7b's shape, its head and its optimizer, on the stub
// driver (stub_card.hpp): nothing is computed, but every launch is the real one.
//
//   gpu_launches [--json] [--check]      --check: fails where there are more than docs/results.md says
//
// FSDP_CUDA_KERNELS=off counts PyTorch's plain operators instead.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lib/comm/device_backend.hpp"
#include "lib/model/decoder.hpp"
#include "lib/ops/ops.hpp"

namespace {

using namespace fsdp;

constexpr std::int64_t kRows = 4, kLength = 512;
constexpr int kLayers = 2;

struct Counts {
  int kernels = 0, products = 0, attention = 0, copies = 0, waits = 0;
  std::int64_t bytes = 0;  ///< of kernels of ours
  std::vector<std::string> names;
};

using TakeEvents = void (*)(void (*each)(void*, int, const char*, std::int64_t), void* context);

TakeEvents take_events() { return reinterpret_cast<TakeEvents>(::dlsym(RTLD_DEFAULT, "fsdp_stub_take_events")); }

void add_event(void* context, int kind, const char* name, std::int64_t bytes) {
  auto& counts = *static_cast<Counts*>(context);
  const bool attends = std::strstr(name, "flash_") != nullptr || std::strstr(name, "fmha_") != nullptr;
  counts.kernels += kind == 0 && !attends ? 1 : 0;
  counts.products += kind == 1 ? 1 : 0;
  counts.attention += kind == 2 || attends ? 1 : 0;
  counts.copies += kind == 3 ? 1 : 0;
  counts.waits += kind == 4 ? 1 : 0;
  counts.bytes += bytes;
  if (kind == 0) counts.names.emplace_back(name);
}

Counts counted() {
  Counts counts;
  take_events()(add_event, &counts);
  return counts;
}

ModelConfig codellama_layers() {
  ModelConfig config;
  config.architecture = Architecture::llama;
  config.num_layers = kLayers;
  config.num_heads = config.num_kv_heads = 32;
  config.embed_size = 4096;
  config.ffn_hidden_size = 11008;
  config.vocab_size = 32016;
  config.block_size = 16384;
  return config;
}

/// Parameters in bf16 whose gradients are summed in bf16.
class Step {
 public:
  explicit Step(const Ops& ops)
      : ops_(ops),
        decoder_(make_decoder(codellama_layers(), ops)),
        options_(at::TensorOptions(at::kBFloat16).device(ops.device())) {
    for (const auto& spec : decoder_.parameters) {
      auto sizes = spec.shape;
      const auto align = row_alignment(spec);
      sizes[0] = (sizes[0] + align - 1) / align * align;
      parameters_.push_back(at::empty(sizes, options_));
      slots_.push_back({at::empty(sizes, options_), false});
      for (auto* all : {&update_.params, &update_.grads, &update_.exp_avg, &update_.exp_avg_sq})
        all->push_back(at::empty(sizes, options_.dtype(at::kFloat)));
    }
    batch_.rows = kRows;
    batch_.length = kLength;
    batch_.ids_N = batch_.targets_N = at::empty({kRows * kLength}, options_.dtype(at::kInt));
  }

  /// Of the second block where there is a choice.
  void run(Counts& forward, Counts& head, Counts& backward, Counts& optimizer) {
    std::vector<std::unique_ptr<LayerState>> states(decoder_.layers.size());
    at::Tensor x_ND, grad_ND;
    for (std::size_t i = 0; i < states.size(); ++i) {
      const auto& layer = decoder_.layers[i];
      static_cast<void>(counted());
      x_ND = layer->forward(parameters_of(layer->parameters()), batch_, x_ND, &states[i]);
      forward = counted();
    }
    const auto& loss = *decoder_.loss;
    decoder_.loss->forward_backward(parameters_of(loss.parameters()), slots_of(loss.parameters()), batch_, x_ND, 1e-4,
                                    &grad_ND);
    head = counted();
    for (std::size_t i = states.size(); i-- > 1;) {
      auto& layer = *decoder_.layers[i];
      grad_ND = layer.backward(parameters_of(layer.parameters()), slots_of(layer.parameters()), batch_, grad_ND,
                               std::move(states[i]));
      if (i + 1 == states.size()) backward = counted();
    }
    static_cast<void>(counted());
    update_parameters();
    optimizer = counted();
  }

 private:
  void update_parameters() {
    std::vector<GradPart> parts;
    std::vector<PublishedRows> rows;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      parts.push_back({update_.grads[i], update_.grads[i].numel()});
      rows.push_back({parameters_[i], update_.params[i]});
    }
    update_.grad_divisor = 1 + ops_.sum_squares(parts);
    update_.step = 1;
    ops_.adamw(update_);
    ops_.publish(rows);
  }

  std::vector<at::Tensor> parameters_of(const std::vector<int>& indices) const {
    std::vector<at::Tensor> list;
    for (const int i : indices) list.push_back(parameters_[static_cast<std::size_t>(i)]);
    return list;
  }
  std::vector<GradSlot*> slots_of(const std::vector<int>& indices) {
    std::vector<GradSlot*> list;
    for (const int i : indices) list.push_back(&slots_[static_cast<std::size_t>(i)]);
    return list;
  }

  const Ops& ops_;
  Decoder decoder_;
  at::TensorOptions options_;
  std::vector<at::Tensor> parameters_;
  std::vector<GradSlot> slots_;
  AdamWUpdate update_;
  MicroBatch batch_;
};

nlohmann::ordered_json as_json(const Counts& counts) {
  return {{"kernels", counts.kernels}, {"products", counts.products}, {"attention", counts.attention}};
}

int report(bool json, bool check) {
  std::string why_not;
  const auto backend = load_cuda_backend(&why_not);
  if (backend == nullptr) {
    fmt::print("skipped: {}\n", why_not);
    return 77;
  }
  const at::NoGradGuard no_grad;
  const auto ops = backend->make_ops(0);
  Step step(*ops);
  Counts forward, head, backward, optimizer;
  for (int round = 0; round < 2; ++round) step.run(forward, head, backward, optimizer);  // tables are made once
  const double megabytes = static_cast<double>(forward.bytes + backward.bytes) / (kRows * kLength) / 1e6;
  const int units = kLayers + 1;
  const double per_unit = static_cast<double>(optimizer.kernels + optimizer.copies) / units;
  const int waits = forward.waits + head.waits + backward.waits + optimizer.waits;
  if (json) {
    const nlohmann::ordered_json all{{"block_forward", as_json(forward)},
                                     {"block_backward", as_json(backward)},
                                     {"head", as_json(head)},
                                     {"host_syncs_per_step", waits},
                                     {"bytes_per_token_and_layer", megabytes * 1e6},
                                     {"launches_per_unit", per_unit}};
    fmt::print("{}\n", all.dump(2));
  } else {
    const auto line = [](const char* what, const Counts& c) {
      fmt::print("{:<15} {:>3} kernels {:>3} products {:>3} attention {:>3} copies {:>3} waits\n", what, c.kernels,
                 c.products, c.attention, c.copies, c.waits);
    };
    line("block forward", forward);
    line("block backward", backward);
    line("head", head);
    line("optimizer", optimizer);
    fmt::print("{:.3f} MB per token and layer in kernels of ours, {:.1f} launches per unit by the optimizer\n",
               megabytes, per_unit);
  }
  if (std::getenv("FSDP_STUB_NAMES") != nullptr) {
    for (const auto* part : {&forward, &head, &backward, &optimizer}) {
      for (const auto& name : part->names) fmt::print(stderr, "{}\n", name);
      fmt::print(stderr, "--\n");
    }
  }
  if (!check) return 0;
  const bool few = forward.kernels <= 5 && forward.products <= 7 && backward.kernels <= 7 && backward.products <= 14 &&
                   head.kernels <= 12 && optimizer.waits <= 1 && forward.waits + head.waits + backward.waits == 0 &&
                   per_unit <= 4 && megabytes <= 0.45;
  if (!few) fmt::print("more than expected\n");
  return few ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  bool json = false, check = false;
  for (int i = 1; i < argc; ++i) {
    json = json || std::strcmp(argv[i], "--json") == 0;
    check = check || std::strcmp(argv[i], "--check") == 0;
  }
  if (take_events() == nullptr) {  // not on the stub driver: begin again on it
    if (std::getenv("LD_PRELOAD") != nullptr) return fmt::print(stderr, "another LD_PRELOAD is in the way\n"), 1;
    ::setenv("LD_PRELOAD", FSDP_STUB_DRIVER, 1);
    ::execv("/proc/self/exe", argv);
    return 1;
  }
  const int code = report(json, check);
  std::fflush(stdout);
  std::_Exit(code);  // kernels' handles are gone before what holds them
}
