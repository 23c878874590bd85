#include "lib/bf16/sniff_test.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

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

std::vector<ProductShape> product_shapes(const Decoder& decoder, std::int64_t tokens) {
  const auto most = largest_block(decoder);
  std::set<ProductShape> shapes;
  const auto add = [&](std::int64_t in, std::int64_t out) {
    shapes.insert({std::clamp<std::int64_t>(most / std::max(in, out), 1, std::max<std::int64_t>(tokens, 1)), in, out});
  };
  for (const auto& spec : decoder.parameters) {
    if (spec.is_matrix_of_block() && spec.stands_for < 0) add(spec.shape[1], spec.shape[0]);
  }
  add(decoder.config.embed_size, decoder.config.vocab_size);
  return {shapes.begin(), shapes.end()};
}

PairSummary summarize(const std::vector<PairSpeed>& pairs) {
  constexpr std::size_t kFewest = 4;  // of fewer the median tells nothing
  PairSummary summary;
  if (pairs.empty()) return summary;
  const auto [slowest, fastest] = std::ranges::minmax(pairs, {}, &PairSpeed::gb_per_s);
  summary.speeds = fmt::format(" at {:.3g} to {:.3g} GB/s", slowest.gb_per_s, fastest.gb_per_s);
  for (const bool is_on_node : {true, false}) {
    std::vector<PairSpeed> kind;
    std::ranges::copy_if(pairs, std::back_inserter(kind),
                         [&](const auto& one) { return one.is_on_node == is_on_node; });
    if (kind.size() < kFewest) continue;
    std::ranges::sort(kind, {}, &PairSpeed::gb_per_s);
    const double median = kind[kind.size() / 2].gb_per_s;
    for (const auto& one : kind) {
      if (one.gb_per_s >= median / 2) break;
      summary.warnings.push_back(
          fmt::format("slow link: ranks {} and {} copy {:.3g} GB/s, the median pair {}{:.3g} GB/s", one.first,
                      one.second, one.gb_per_s, is_on_node ? "of a node " : "of two nodes ", median));
    }
  }
  return summary;
}

SniffTest::SniffTest(Input input)
    : input_(std::move(input)), wrong_(input_.runtime.world(), input_.log, input_.exclude_file) {
  if (input_.every == 0) return;
  auto& world = input_.runtime.world();
  computes_alike_ = every_rank(world, text_of_root(world, [&] { return input_.arithmetic; }) == input_.arithmetic);
  const auto node = world.split_by_node();
  add_pairs(*node, true);
  const auto across = world.split(node->rank());
  add_pairs(*across, false);
  test(0);
}

void SniffTest::add_pairs(ProcessGroup& ring, bool is_on_node) {
  const int size = ring.size(), rounds = size < 3 ? size - 1 : 2 + size % 2;
  for (int round = 0; round < rounds; ++round) {
    auto pair = ring.split(pair_color(ring.rank(), size, round));
    if (pair->size() == 2) pairs_.push_back({std::move(pair), is_on_node});
  }
}

void SniffTest::after_step(const StepReport& step, bool) {
  if (input_.every > 0 && falls_on(step.step, static_cast<double>(input_.every))) test(step.step);
}

void SniffTest::test(std::int64_t step) {
  const WithoutAutograd guard;
  const auto start = std::chrono::steady_clock::now();
  auto& world = input_.runtime.world();
  const FlightWork work(world.recorder(), "sniff");
  const auto state = step == 0 ? std::string("no step was made") : fmt::format("step {} is not saved", step);
  input_.runtime.synchronize();
  const auto num_products = check_products(state);
  std::string transfers;
  if (world.size() > 1) {
    const auto bytes = check_axes(state);
    const auto speeds = check_pairs(state);
    transfers = fmt::format(", all-gathers and reduce-scatters of {}, copies between neighbours{}", format_bytes(bytes),
                            speeds);
  }
  const double seconds = seconds_since(start);
  input_.clock.after_sniff(seconds);
  input_.log.info(fmt::format("sniffed   {}: {}{}, {} times each, in {:.2f} s; all bits are right",
                              step == 0 ? "before the first step" : fmt::format("step {}", step),
                              format_count_of(static_cast<std::int64_t>(num_products), "product"), transfers, kChecks,
                              seconds));
}

std::size_t SniffTest::check_products(const std::string& state) {
  auto& runtime = input_.runtime;
  const auto& ops = runtime.ops();
  const auto type = runtime.policy().precision.param_dtype;
  const auto shapes = product_shapes(runtime.decoder(), input_.tokens);
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
      GradSlot slot{at::empty({shape.out, shape.in}, weight.options().dtype(at::kFloat))};
      ops.weight_grad(&slot, grad, x);
      now.push_back(digest_of(slot.grad));
      if (number == 0) first = now;
      if (first != now && !local) {
        local = WrongNumbers{fmt::format("{} is another in repetition {} of {}", name_of(shape), number + 1, kChecks),
                             {runtime.world().rank()},
                             true,
                             "computes wrongly"};
      }
    }
    digests.insert(digests.end(), first.begin(), first.end());
    names.insert(names.end(), {name_of(shape), name_of(shape) + " for the input's gradient",
                               name_of(shape) + " for the weight's gradient"});
  }
  wrong_.require_none(local, state);
  if (computes_alike_) wrong_.require_equal(runtime.world(), digests, names, state);
  return names.size();
}

std::int64_t SniffTest::check_axes(const std::string& state) {
  auto& runtime = input_.runtime;
  const auto bytes = largest_block(runtime.decoder()) *
                     static_cast<std::int64_t>(c10::elementSize(runtime.policy().precision.param_dtype));
  for (const auto* axis : runtime.mesh().axes()) {
    if (axis->size() == 1) continue;
    const auto collectives = make_bf16_collectives(axis->collectives, [&] { runtime.synchronize(); });
    const auto part = std::max<std::int64_t>(1, bytes / 2 / axis->size());
    const auto check = [&](const char* what, const std::vector<WrongPart>& parts) {
      std::vector<WrongTransfer> wrong;
      for (const auto& one : parts) wrong.push_back({runtime.world().rank(), one.sender});
      require_right(fmt::format("{} of {} along {}", what, format_bytes(part * axis->size() * 2), axis->name), wrong,
                    parts.empty() ? "" : parts.front().text, state);
    };
    check("an all-gather", check_gather(*axis->ranks, *collectives, runtime.device(), part, kChecks));
    check("a reduce-scatter", check_scatter(*axis->ranks, *collectives, runtime.device(), part, kChecks));
  }
  return bytes;
}

std::string SniffTest::check_pairs(const std::string& state) {
  auto& runtime = input_.runtime;
  auto& world = runtime.world();
  constexpr std::int64_t kMost = std::int64_t{8} << 20;  // elements: 16 MiB in each direction
  const auto part = std::min(kMost, largest_block(runtime.decoder()));
  std::vector<WrongTransfer> wrong;
  std::string text;
  auto speeds = nlohmann::json::array();  // of the pairs in which this rank is the first
  for (const auto& pair : pairs_) {
    // NCCL's memory for them goes when the test ends.
    const auto collectives = make_bf16_collectives(runtime.connect(*pair.ranks), [&] { runtime.synchronize(); });
    for (const auto& got : check_gather(*pair.ranks, *collectives, runtime.device(), part, kChecks)) {
      wrong.push_back({world.rank(), got.sender});
      if (text.empty()) text = got.text;
    }
    const auto options = at::TensorOptions(at::kBFloat16).device(runtime.device());
    const auto shard = at::zeros({part}, options), full = at::zeros({2 * part}, options);
    double fastest = 1e9;
    for (int number = 0; number < kChecks; ++number) {
      pair.ranks->barrier();
      const auto start = std::chrono::steady_clock::now();
      collectives->all_gather(shard, full);
      fastest = std::min(fastest, pair.ranks->all_reduce(seconds_since(start), Reduce::max));
    }
    if (pair.ranks->rank() == 0)
      speeds.push_back({{"ranks", {pair.ranks->world_rank(0), pair.ranks->world_rank(1)}},
                        {"is_on_node", pair.is_on_node},
                        {"gb_per_s", static_cast<double>(2 * part) / std::max(fastest, 1e-9) / 1e9}});
  }
  require_right("a copy between neighbours", wrong, text, state);

  const auto all = world.gather(json_text(speeds), 0);
  std::vector<PairSpeed> pairs;
  for (const auto& of_rank : all) {
    for (const auto& one : parse_json(of_rank, "a rank's pairs"))
      pairs.push_back({one.at("ranks")[0], one.at("ranks")[1], one.at("is_on_node"), one.at("gb_per_s")});
  }
  const auto summary = summarize(pairs);
  for (const auto& warning : summary.warnings) input_.log.warning(warning);
  return summary.speeds;
}

void SniffTest::require_right(const std::string& what, const std::vector<WrongTransfer>& wrong, const std::string& text,
                              const std::string& state) {
  auto& world = input_.runtime.world();
  if (!any_rank(world, !wrong.empty())) return;
  auto local = nlohmann::json::array();
  for (const auto& one : wrong) local.push_back({one.receiver, one.sender});
  const auto all = world.gather(json_text({{"wrong", local}, {"text", text}}), 0);
  std::optional<WrongNumbers> found;
  if (world.rank() == 0) {
    std::vector<WrongTransfer> transfers;
    std::string first;
    for (const auto& of_rank : all) {
      const auto json = parse_json(of_rank, "what a rank got");
      for (const auto& one : json.at("wrong")) transfers.push_back({one[0], one[1]});
      if (first.empty()) first = json.at("text");
    }
    const auto odd = odd_transfers(transfers);
    found = WrongNumbers{fmt::format("{} is wrong, {}", what, first), odd.ranks, odd.has_majority,
                         odd.has_majority ? "took part each time" : "took part"};
  }
  wrong_.require_none(found, state);
}

}  // namespace fsdp::detail
