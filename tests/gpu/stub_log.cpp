#include "tests/gpu/stub_log.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string_view>
#include <type_traits>
#include <utility>

#include "lib/compute/ops/fused_kernels.hpp"
#include "tests/gpu/stub_card.hpp"

namespace stub {
namespace {

using namespace fsdp::fused;
using Touches = std::vector<Touched>;

std::int64_t size_of(Type type) { return type == Type::f32 ? 4 : 2; }

/// Memory that a pass can write counts as written, although some passes only read it.
template <typename T>
void touch(Touches& all, T* data, std::int64_t bytes) {
  if (data != nullptr) all.push_back({data, bytes, !std::is_const_v<T>});
}
template <typename... T>
void touch_each(Touches& all, std::int64_t bytes, T*... data) {
  (touch(all, data, bytes), ...);
}

Touches of_norm(const Norm& a) {
  Touches all;
  const auto row = a.dim * size_of(a.type), matrix = a.rows * row;
  touch_each(all, matrix, a.sum_ND, a.out_ND, a.x_ND, a.y_ND);
  touch_each(all, row, a.y_bias_D, a.gamma_D, a.beta_D);
  touch(all, a.mean_N, 4 * a.rows);
  touch(all, a.rstd_N, 4 * a.rows);
  return all;
}

Touches of_norm_backward(const NormBackwardPass& a) {
  Touches all;
  const auto row = a.dim * size_of(a.type), matrix = a.rows * row;
  touch_each(all, matrix, a.dx_ND, a.again_ND, a.grad_ND, a.residual_ND, a.x_ND);
  touch(all, a.gamma_D, row);
  touch(all, a.beta_D, row);
  touch(all, a.mean_N, 4 * a.rows);
  touch(all, a.rstd_N, 4 * a.rows);
  touch(all, a.partial, norm_blocks(a.rows) * (a.mean_N != nullptr ? 3 : 1) * a.dim * 4);
  return all;
}

Touches of_column_sums(const ColumnSums& a) {
  Touches all;
  touch(all, a.partial, a.blocks * a.targets * a.dim * 4);
  for (const auto& to : a.to) touch(all, to.data, a.dim * size_of(to.type));
  return all;
}

Touches of_column_pass(const ColumnPass& a) {
  Touches all;
  const auto row = a.dim * size_of(a.type), matrix = a.rows * row;
  touch(all, a.x_ND, matrix);  // read
  if (a.kind != ColumnPassKind::sum) touch(all, a.x_ND, matrix);
  touch(all, a.out_ND, matrix);
  touch(all, a.y_ND, matrix);
  touch(all, a.bias_D, row);
  touch(all, a.keys_N, 8 * a.rows);
  touch(all, a.partial, column_blocks(a.rows) * a.dim * 4);
  return all;
}

Touches of_gated(const Gated& a) {
  Touches all;
  const auto bytes = a.rows * a.width * size_of(a.type);
  for (int round = 0; round < (a.backward ? 2 : 1); ++round) {
    touch_each(all, bytes, a.out_NF, a.gate_NF, a.up_NF);
  }
  return all;
}

Touches of_heads(const Heads& a) {
  Touches all;
  const auto element = size_of(a.type);
  std::int64_t heads = 0;
  for (int i = 0; i < a.num_parts; ++i) heads += a.parts[i].heads;
  // All rows with the gaps between them; the last row has no gap.
  touch(all, a.to_NC, ((a.rows - 1) * a.to_stride + heads * a.head_size) * element);
  for (int i = 0; i < a.num_parts; ++i) touch(all, a.parts[i].data, a.rows * a.parts[i].heads * a.head_size * element);
  const auto table = (a.first_position + a.row_length) * (a.head_size / 2) * 4;
  touch(all, a.cos_PH, table);
  touch(all, a.sin_PH, table);
  touch(all, a.positions_N, 4 * a.rows);
  return all;
}

Touches of_embed(const Embed& a) {
  Touches all;
  const auto matrix = a.rows * a.dim * size_of(a.type);
  touch(all, a.out_ND, matrix);
  touch(all, a.token_VD, 1);  // the ids decide which rows
  const bool from_zero = a.positions_N == nullptr;
  touch(all, a.position_PD, from_zero ? (a.first_position + a.row_length) * a.dim * size_of(a.type) : 1);
  touch(all, a.ids_N, 4 * a.rows);
  touch(all, a.positions_N, 4 * a.rows);
  return all;
}

Touches of_embed_backward(const EmbedBackward& a) {
  Touches all;
  touch(all, a.grad_ND, a.rows * a.dim * size_of(a.type));
  touch(all, a.ids_N, 4 * a.rows);
  touch(all, a.to.data, a.ids_N == nullptr ? std::min(a.rows, a.row_length) * a.dim * size_of(a.to.type) : 1);
  return all;
}

Touches of_cross_entropy(const CrossEntropy& a) {
  Touches all;
  for (int round = 0; round < (a.with_grad ? 2 : 1); ++round)
    touch(all, a.logits_NV, a.rows * a.width * size_of(a.type));
  touch(all, a.targets_N, 4 * a.rows);
  touch(all, a.weights_N, 4 * a.rows);
  touch(all, a.losses_N, 4 * a.rows);
  touch(all, a.sums, 16);
  touch(all, a.grad_scale_at, 4);
  return all;
}

Touches of_entropies(const Entropies& a) {
  Touches all;
  for (int round = 0; round < 2; ++round) touch(all, a.logits_NV, a.rows * a.width * size_of(a.type));
  touch(all, a.targets_N, 4 * a.rows);
  touch(all, a.entropies_N, 4 * a.rows);
  return all;
}

Touches of_sum_losses(const CrossEntropy& a) {
  Touches all;
  touch(all, a.losses_N, 4 * a.rows);
  touch(all, a.targets_N, 4 * a.rows);
  touch(all, a.weights_N, 4 * a.rows);
  touch(all, a.sums, 16);
  return all;
}

Touches of_sum_squares(const SumSquares& a) {
  Touches all;
  for (int i = 0; i < a.tensors; ++i) touch(all, a.data[i], size_of(a.type[i]) * a.elements[i]);
  touch(all, a.partial, 8 * a.first_block[a.tensors]);
  return all;
}

Touches of_total_sum(const TotalSum& a) {
  Touches all;
  touch(all, a.partial, 8 * a.blocks);
  touch(all, a.sum, 8);
  return all;
}

Touches of_decide_step(const DecideStep& a) {
  Touches all;
  touch(all, a.squares, 8);
  touch(all, a.nats, 8);
  touch(all, a.before, 8 * kDecisionSize);
  touch(all, a.decision, 8 * kDecisionSize);
  return all;
}

Touches of_dropout_keys(const DropoutKeys& a) {
  Touches all;
  touch(all, a.samples, 8 * ((a.rows + a.rows_per_sample - 1) / a.rows_per_sample));
  touch(all, a.keys, 8 * a.rows);
  return all;
}

Touches of_adamw(const AdamW& a) {
  Touches all;
  for (int i = 0; i < a.tensors; ++i) {
    for (int round = 0; round < 2; ++round) {
      touch_each(all, 4 * a.elements[i], a.param[i], a.exp_avg[i], a.exp_avg_sq[i]);
    }
    touch(all, a.grad[i], size_of(a.grad_type[i]) * a.elements[i]);
    touch(all, a.cast_params[i], size_of(a.cast_type) * a.elements[i]);
  }
  touch(all, a.decision, 8 * kDecisionSize);
  return all;
}

Touches of_elementwise(const Elementwise& a) {
  Touches all;
  for (int i = 0; i < a.tensors; ++i) {
    for (int round = 0; round < 2; ++round) {
      touch(all, a.param[i], size_of(a.param_type[i]) * a.elements[i]);
      for (int s = 0; s < a.num_states; ++s) touch(all, a.states[s][i], size_of(a.state_types[s]) * a.elements[i]);
    }
    touch(all, a.grad[i], size_of(a.grad_type[i]) * a.elements[i]);
    touch(all, a.cast_params[i], size_of(a.cast_type) * a.elements[i]);
  }
  touch(all, a.decision, 8 * kDecisionSize);
  return all;
}

Touches of_blockwise(const Blockwise& a) {
  Touches all;
  const auto moment = [&](const Moment& m) {
    if (m.codes == nullptr) return;
    for (int round = 0; round < 2; ++round) {
      touch(all, m.codes, m.codes_count > 16 ? a.elements : a.elements / 2);
      touch(all, m.scales, 4 * a.blocks);
    }
    touch(all, m.values, 4 * m.codes_count);
    touch(all, m.thresholds, 4 * (m.codes_count - 1));
  };
  for (int round = 0; round < 2; ++round) touch(all, a.param, 4 * a.elements);
  touch(all, a.grad, 4 * a.elements);
  moment(a.first);
  moment(a.second);
  touch(all, a.edges, 32);
  return all;
}

Touches of_cast_shards(const CastShards& a) {
  Touches all;
  for (int i = 0; i < a.tensors; ++i) {
    touch(all, a.from[i], 4 * a.elements[i]);
    touch(all, a.to[i], size_of(a.type) * a.elements[i]);
  }
  return all;
}

Touches of_upcast_sums(const UpcastSums& a) {
  Touches all;
  for (int i = 0; i < a.tensors; ++i) {
    touch(all, a.from[i], size_of(a.type) * a.elements[i]);
    for (int round = 0; round < (a.add[i] ? 2 : 1); ++round) touch(all, a.to[i], 4 * a.elements[i]);
  }
  return all;
}

Touches of_nf4(const Nf4& a) {
  Touches all;
  const auto blocks = (a.elements + 63) / 64;
  touch(all, a.out, a.elements * size_of(a.type));
  touch(all, a.packed, 32 * blocks);
  touch(all, a.absmax, 4 * blocks);
  touch(all, a.codes, blocks);
  touch(all, a.nested, (blocks + 255) / 256 * 4);
  touch(all, a.offset, 4);
  return all;
}

Touches of_fp8(const Fp8& a, bool cast) {
  Touches all;
  // All rows with the gaps between them; the last row has no gap. Passes count as if they read everything.
  touch(all, a.x_RC, ((a.rows - 1) * a.stride + a.columns) * size_of(a.type));
  touch(all, a.largest, 4 * a.blocks);
  if (!cast) return all;
  touch(all, a.rows_RC, a.rows * a.columns);
  touch(all, a.columns_CR, a.padded_rows * a.columns);
  touch(all, a.inverse, 4);
  return all;
}
Touches of_fp8_transpose(const Fp8Transpose& a) {
  Touches all;
  touch(all, a.rows_RC, a.rows * a.columns);
  touch(all, a.columns_CR, a.rows * a.columns);
  return all;
}
Touches of_fp8_largest(const Fp8& a) { return of_fp8(a, false); }
Touches of_fp8_cast(const Fp8& a) { return of_fp8(a, true); }

Touches of_band(const Band& a) {
  Touches all;
  const auto scores = a.matrices * a.rows * a.stride, element = size_of(a.type);
  const auto tokens = a.matrices / a.kv_heads * a.length;
  touch(all, a.scores, 4 * scores);
  if (a.probs != a.scores) touch(all, a.probs, element * scores);
  for (int round = 0; round < 2; ++round) touch(all, a.grads, element * scores);
  touch(all, a.log_sums, 4 * a.matrices * a.length * a.group);
  touch_each(all, tokens * a.kv_heads * a.group * a.head_size * element, a.out_ND, a.grad_out_ND);
  return all;
}

template <typename Pass>
auto reader(Touches (*read)(const Pass&)) {
  return [read](const void* pass) { return read(*static_cast<const Pass*>(pass)); };
}

}  // namespace

bool is_ours(const std::string& name) { return name.find("4fsdp4cuda") != std::string::npos; }

std::vector<Touched> touched_by_aten(const std::string& name, void* const* arguments) {
  Touches all;
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  if (has("vectorized_elementwise_kernel") || has("unrolled_elementwise_kernel")) {
    // (int elements, functor, std::array<char*, K> data, ...): the result, then the inputs.
    constexpr std::string_view kArray = "St5arrayIPcLm";
    const auto at = name.find(kArray);
    if (at == std::string::npos) return all;
    const auto number = std::strtoul(name.c_str() + at + kArray.size(), nullptr, 10);
    const auto elements = *static_cast<const std::int32_t*>(arguments[0]);
    auto* const* data = static_cast<char* const*>(arguments[2]);
    for (std::size_t i = 0; i < number; ++i) all.push_back({data[i], elements, i == 0});
  } else if (has("flash_fwd") || has("flash_bwd")) {
    // Flash_fwd_params begins with the addresses of q, k and v.
    auto* const* data = static_cast<char* const*>(arguments[0]);
    for (std::size_t i = 0; i < 3; ++i) all.push_back({data[i], 1, false});
  }
  std::erase_if(all, [](const Touched& one) { return !memory().contains(one.data); });
  return all;
}

std::vector<Touched> touched_by(const std::string& name, const void* pass) {
  using Reader = std::function<Touches(const void*)>;
  static const std::vector<std::pair<std::string, Reader>> readers{{"norm_forward", reader(of_norm)},
                                                                   {"norm_backward", reader(of_norm_backward)},
                                                                   {"column_sums", reader(of_column_sums)},
                                                                   {"column_pass", reader(of_column_pass)},
                                                                   {"gated", reader(of_gated)},
                                                                   {"move_heads", reader(of_heads)},
                                                                   {"embed_backward", reader(of_embed_backward)},
                                                                   {"embed", reader(of_embed)},
                                                                   {"cross_entropy", reader(of_cross_entropy)},
                                                                   {"entropies", reader(of_entropies)},
                                                                   {"sum_losses", reader(of_sum_losses)},
                                                                   {"sum_squares", reader(of_sum_squares)},
                                                                   {"total_sum", reader(of_total_sum)},
                                                                   {"decide_step", reader(of_decide_step)},
                                                                   {"dropout_keys", reader(of_dropout_keys)},
                                                                   {"adamw", reader(of_adamw)},
                                                                   {"elementwise", reader(of_elementwise)},
                                                                   {"blockwise", reader(of_blockwise)},
                                                                   {"cast_shards", reader(of_cast_shards)},
                                                                   {"upcast_sums", reader(of_upcast_sums)},
                                                                   {"dequantize_nf4", reader(of_nf4)},
                                                                   {"fp8_largest", reader(of_fp8_largest)},
                                                                   {"fp8_cast", reader(of_fp8_cast)},
                                                                   {"fp8_transpose", reader(of_fp8_transpose)},
                                                                   {"band_softmax", reader(of_band)}};
  for (const auto& [part, read] : readers) {
    if (name.find(part) != std::string::npos) return read(pass);
  }
  std::fprintf(stderr, "stub driver: %s: nothing here knows what it touches\n", name.c_str());
  std::abort();
}

void Log::add(Event event) {
  const std::scoped_lock lock(mutex_);
  if (wanted_) events_.push_back(std::move(event));
}

std::vector<Event> Log::take() {
  const std::scoped_lock lock(mutex_);
  wanted_ = true;
  return std::exchange(events_, {});
}

Log& log() {
  static auto* const the_log = new Log;  // never destroyed: kernels may be launched during static destruction
  return *the_log;
}

}  // namespace stub

/// For the program that runs on the driver. \param each  called for every event since the previous call
extern "C" __attribute__((visibility("default"))) void fsdp_stub_take_events(
    void (*each)(void* context, int kind, const char* name, std::int64_t bytes), void* context) {
  for (const auto& event : stub::log().take())
    each(context, static_cast<int>(event.kind), event.name.c_str(), event.bytes);
}
