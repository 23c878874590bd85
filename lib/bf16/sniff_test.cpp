#include "lib/bf16/sniff_test.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "lib/base/process/scheduler.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/elapsed.hpp"
#include "lib/bf16/bf16_collectives.hpp"
#include "lib/compute/tensor/without_autograd.hpp"
#include "lib/flight/flight_recorder.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/training/step/step_interval.hpp"

namespace fsdp::detail {
namespace {

constexpr int kChecks = 3;  ///< of each product and transfer

/// Numbers from -1 to 1 that are the same everywhere, and no two rows of which are alike.
at::Tensor known_numbers(std::int64_t rows, std::int64_t columns, std::int64_t start, c10::ScalarType type,
                         c10::Device device) {
  constexpr std::int64_t kPeriod = 8191;  // a prime
  const auto one = at::arange(start, start + kPeriod, at::TensorOptions(at::kLong).device(device))
                       .mul_(4099)
                       .remainder_(kPeriod)
                       .to(at::kFloat)
                       .sub_(kPeriod / 2)
                       .div_(kPeriod / 2)
                       .to(type);
  const auto size = rows * columns;
  return one.repeat({(size + kPeriod - 1) / kPeriod}).narrow(0, 0, size).view({rows, columns});
}

std::string name_of(const ProductShape& shape) {
  return fmt::format("the product of {} x {} x {}", shape.rows, shape.in, shape.out);
}

}  // namespace

std::int64_t largest_block(const Decoder& decoder) {
  std::map<int, std::int64_t> blocks;
  for (const auto& spec : decoder.parameters) {
    std::int64_t elements = 1;
    for (const auto size : spec.shape) elements *= size;
    if (spec.block >= 0) blocks[spec.block] += elements;
  }
  std::int64_t largest = 1;
  for (const auto& [block, elements] : blocks) largest = std::max(largest, elements);
  return largest;
}

std::vector<ProductShape> product_shapes(const Decoder& decoder, const std::vector<bool>& trainable,
                                         std::int64_t tokens) {
  const auto most = largest_block(decoder);
  std::set<ProductShape> shapes;
  for (std::size_t i = 0; i < decoder.parameters.size(); ++i) {
    const auto& spec = decoder.parameters[i];
    if (!spec.is_matrix_of_block() || spec.stands_for >= 0) continue;
    const auto in = spec.shape[1], out = spec.shape[0];
    const auto rows = std::clamp<std::int64_t>(most / std::max(in, out), 1, std::max<std::int64_t>(tokens, 1));
    shapes.insert({rows, in, out, trainable[i]});
  }
  return {shapes.begin(), shapes.end()};
}

std::string PairSpeeds::range(const std::vector<PairSpeed>& pairs) {
  if (pairs.empty()) return "";
  const auto [slowest, fastest] = std::ranges::minmax(pairs, {}, &PairSpeed::gb_per_s);
  return fmt::format(" at {:.3g} to {:.3g} GB/s", slowest.gb_per_s, fastest.gb_per_s);
}

std::vector<std::string> PairSpeeds::warnings(const std::vector<PairSpeed>& pairs) {
  std::vector<std::string> warnings;
  for (const auto& [first, second, gb_per_s] : pairs) {
    const auto before = first_.try_emplace({first, second}, gb_per_s).first->second;
    if (gb_per_s < before / 2)
      warnings.push_back(fmt::format("slow link: ranks {} and {} copy {:.3g} GB/s, at first {:.3g} GB/s", first, second,
                                     gb_per_s, before));
  }
  return warnings;
}

SniffTest::SniffTest(Input input)
    : input_(std::move(input)), wrong_(input_.runtime.world(), input_.log, input_.exclude_file) {
  if (input_.every == 0) return;
  auto& world = input_.runtime.world();
  computes_alike_ = rounds_alike(world, input_.arithmetic);
  const auto node = world.split_by_node();
  add_pairs(*node);
  const auto across = world.split(node->rank());
  add_pairs(*across);
  test(0);
}

void SniffTest::add_pairs(ProcessGroup& ring) {
  const int size = ring.size(), rounds = size < 3 ? size - 1 : 2 + size % 2;
  for (int round = 0; round < 3; ++round) {  // the same on all ranks, so that groups have the same places in records
    auto pair = ring.split(round < rounds ? pair_color(ring.rank(), size, round) : ring.rank());
    if (pair->size() == 2) pairs_.push_back(std::move(pair));
  }
}

void SniffTest::after_step(const StepReport& step, bool) {
  if (input_.every > 0 && falls_on(step.step, static_cast<double>(input_.every))) test(step.step);
}

void SniffTest::test(std::int64_t step) {
  const WithoutAutograd guard;
  const auto start = std::chrono::steady_clock::now();
  auto& runtime = input_.runtime;
  auto& world = runtime.world();
  const FlightWork work(world.recorder(), "sniff");
  const auto state = step == 0 ? std::string("no step was made") : fmt::format("step {} is not saved", step);
  const auto release = [&] {  // NCCL takes its memory from the device itself
    if (auto* backend = runtime.backend()) backend->release_cached(runtime.device().index());
  };
  input_.takes_memory();
  runtime.synchronize();
  release();
  auto tested = format_count_of(static_cast<std::int64_t>(check_products(state)), "product");
  if (world.size() > 1) {
    if (!computes_alike_) tested += " (not compared between ranks, which round differently)";
    const auto bytes = largest_block(runtime.decoder()) *
                       static_cast<std::int64_t>(c10::elementSize(runtime.policy().precision.param_dtype));
    const auto axis = check_axes(bytes);
    release();
    const auto pairs = check_pairs();
    judge(axis, pairs, state);
    tested += fmt::format(", collectives of {}, copies between neighbours{}", format_bytes(bytes), pairs.speeds);
  }
  release();
  const double seconds = seconds_since(start);
  input_.clock.after_sniff(seconds);
  input_.log.info(fmt::format("sniffed   {}: {}, {} times each, in {:.2f} s; all bits are right",
                              step == 0 ? "before the first step" : fmt::format("step {}", step), tested, kChecks,
                              seconds));
}

std::size_t SniffTest::check_products(const std::string& state) {
  auto& runtime = input_.runtime;
  const auto& ops = runtime.ops();
  const auto type = runtime.policy().precision.param_dtype;
  const auto shapes = product_shapes(runtime.decoder(), runtime.trainable(), input_.tokens);
  Digests digests;
  std::vector<std::string> names;
  std::optional<WrongNumbers> local;
  for (const auto& shape : shapes) {
    const auto numbers = [&](std::int64_t rows, std::int64_t columns, std::int64_t start) {
      return known_numbers(rows, columns, start, type, runtime.device());
    };
    const auto x = numbers(shape.rows, shape.in, 1), weight = numbers(shape.out, shape.in, 2),
               grad = numbers(shape.rows, shape.out, 3);
    Digests first;
    for (int number = 0; number < kChecks; ++number) {
      const auto digest_of = [&](const at::Tensor& product) {
        runtime.synchronize();  // a rank that died shows here
        return digest(product);
      };
      Digests now{digest_of(ops.linear(x, weight)), digest_of(ops.linear_backward(grad, weight))};
      if (shape.trains) {
        GradSlot slot{at::empty({shape.out, shape.in}, weight.options().dtype(at::kFloat))};
        ops.weight_grad(&slot, grad, x);
        now.push_back(digest_of(slot.grad));
      }
      if (number == 0) first = now;
      if (first != now && !local) {
        local = WrongNumbers{fmt::format("{} is another in repetition {} of {}", name_of(shape), number + 1, kChecks),
                             {runtime.world().rank()},
                             true,
                             "computes wrongly"};
      }
    }
    digests.insert(digests.end(), first.begin(), first.end());
    names.push_back(name_of(shape));
    names.push_back(name_of(shape) + " for the input's gradient");
    if (shape.trains) names.push_back(name_of(shape) + " for the weight's gradient");
  }
  wrong_.require_none(local, state);
  if (computes_alike_) wrong_.require_equal(runtime.world(), digests, names, state);
  return names.size();
}

std::optional<SniffTest::WrongAxis> SniffTest::check_axes(std::int64_t bytes) {
  auto& runtime = input_.runtime;
  const auto device = runtime.device();
  nlohmann::json local;  // the first that this rank got wrong
  for (const auto* axis : runtime.mesh().axes()) {
    auto& ranks = *axis->ranks;
    if (ranks.size() == 1) continue;
    const auto collectives = make_bf16_collectives(axis->collectives, [&] { runtime.synchronize(); });
    const auto part = std::max<std::int64_t>(1, bytes / 2 / ranks.size());
    const auto note = [&](const char* what, const std::string& wrong) {
      if (wrong.empty() || !local.is_null()) return;
      std::vector<int> members;
      for (int member = 0; member < ranks.size(); ++member) members.push_back(ranks.world_rank(member));
      local = {{"what", fmt::format("{} of {} along {} is wrong, {}", what, format_bytes(part * ranks.size() * 2),
                                    axis->name, wrong)},
               {"ranks", members}};
    };
    const auto gathered = check_gather(ranks, *collectives, device, part, kChecks);
    note("an all-gather", gathered.empty() ? "" : gathered.front().text);
    note("a reduce-scatter", check_scatter(ranks, *collectives, device, part, kChecks));
    note("an all-reduce", check_reduce(ranks, *collectives, device, part * ranks.size(), kChecks));
  }
  const auto problem = first_problem(runtime.world(), local.is_null() ? "" : json_text(local));
  if (!problem) return {};
  const auto found = parse_json(problem->text, "what a rank got");
  return WrongAxis{found.at("what"), found.at("ranks")};
}

SniffTest::PairResults SniffTest::check_pairs() {
  auto& runtime = input_.runtime;
  auto& world = runtime.world();
  constexpr std::int64_t kMost = std::int64_t{8} << 20;  // elements: 16 MiB in each direction
  const auto part = std::min(kMost, largest_block(runtime.decoder()));
  auto wrong = nlohmann::json::array(), speeds = nlohmann::json::array();
  std::string text;
  for (const auto& pair : pairs_) {
    // NCCL's memory for them goes when the pair is done.
    const auto collectives = make_bf16_collectives(runtime.connect(*pair), [&] { runtime.synchronize(); });
    for (const auto& got : check_gather(*pair, *collectives, runtime.device(), part, kChecks)) {
      wrong.push_back({world.rank(), got.sender});
      if (text.empty()) text = got.text;
    }
    const auto options = at::TensorOptions(at::kBFloat16).device(runtime.device());
    const auto shard = at::zeros({part}, options), full = at::zeros({2 * part}, options);
    double fastest = 1e9;
    for (int number = 0; number < kChecks; ++number) {
      pair->barrier();
      const auto start = std::chrono::steady_clock::now();
      collectives->all_gather(shard, full);
      fastest = std::min(fastest, pair->all_reduce(seconds_since(start), Reduce::max));
    }
    if (pair->rank() == 0)
      speeds.push_back(
          {pair->world_rank(0), pair->world_rank(1), static_cast<double>(2 * part) / std::max(fastest, 1e-9) / 1e9});
  }
  PairResults results;
  std::vector<PairSpeed> pairs;
  for (const auto& of_rank : world.gather(json_text({{"wrong", wrong}, {"text", text}, {"speeds", speeds}}), 0)) {
    const auto json = parse_json(of_rank, "a rank's pairs");
    for (const auto& one : json.at("wrong")) results.wrong.push_back({one[0], one[1]});
    for (const auto& one : json.at("speeds")) pairs.push_back({one[0], one[1], one[2]});
    if (results.text.empty()) results.text = json.at("text");
  }
  results.speeds = PairSpeeds::range(pairs);
  for (const auto& warning : speeds_.warnings(pairs)) input_.log.warning(warning);
  return results;
}

void SniffTest::judge(const std::optional<WrongAxis>& axis, const PairResults& pairs, const std::string& state) {
  auto& world = input_.runtime.world();
  if (!any_rank(world, axis || !pairs.wrong.empty())) return;
  // Collectives pass parts on from rank to rank: only a copy between two ranks tells whose it is.
  const auto hosts = world.gather(host_name(), 0);
  std::optional<WrongNumbers> found;
  if (!pairs.wrong.empty()) {
    const auto odd = odd_transfers(pairs.wrong, hosts);
    found = WrongNumbers{"a copy between neighbours is wrong, " + pairs.text, odd.ranks, odd.has_majority,
                         odd.has_majority ? "took part each time" : "took part"};
  } else if (world.rank() == 0) {
    found = WrongNumbers{axis->what, axis->ranks, false, "took part, and copies between two of them were right"};
  }
  wrong_.require_none(found, state);
}

}  // namespace fsdp::detail
