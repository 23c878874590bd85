// How much longer do the products of a block take beside kernels that hold multiprocessors, as NCCL's do for as long as
// a gather travels, and does cuBLAS's target of multiprocessors help? For scripts/gpu-check speed; prints figures and
// judges none. Runs only where it is asked for:
//
//   gpu_device --test-suite=gpu/contention --no-skip
//
// "contention: K blocks[ in clusters of 4], no target|target N: MS ms, TIMES times" of the twelve products, and
// "product: ..." of each.
//
// The kernel beside them: K thread blocks of 640 threads, as NCCL's largest, on a stream of the highest priority.
// NCCL's take 96 registers a thread, 60 K of a multiprocessor's 64 K, so that no block of a product fits beside one.
// Here all shared memory that a block can have does the same: 227 KiB of Hopper's 228, of which a product's block takes
// up to all. From Hopper on NCCL launches clusters of four blocks (NCCL_CGA_CLUSTER_SIZE), which share a group of
// multiprocessors. Products are clusters, too: blocks that lie one by one break more of their places. Both are
// measured. Unlike NCCL's the blocks move no memory.
#include "tests/support/torch_doctest.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <map>
#include <thread>
#include <vector>

#include "tests/gpu/gpu_support.hpp"

namespace {

using namespace fsdp;
using namespace std::chrono_literals;

constexpr std::int64_t kRowsOfProducts = 8192;
constexpr int kMostBlocks = 24;
constexpr int kRounds = 3, kRepeats = 5;
constexpr std::uint64_t kLimitNanoseconds = 1'000'000'000;

// PTX, which the driver compiles: nvcc compiles for the back end alone, and what a test launches must not be part of
// it.
//
//   void spin(volatile int* flags, unsigned long long limit) {
//     if (threadIdx.x == 0) {
//       flags[1 + blockIdx.x] = kRuns;
//       __threadfence_system();
//       const auto begin = globaltimer();
//       do stop = flags[0]; while (!stop && globaltimer() - begin < limit);
//       flags[1 + blockIdx.x] = stop ? kStopped : kAtLimit;
//       __threadfence_system();
//     }
//     __syncthreads();
//   }
constexpr const char* kHead = ".version 6.0\n.target sm_70\n.address_size 64\n";
constexpr const char* kHeadWithClusters = ".version 7.8\n.target sm_90\n.address_size 64\n";
constexpr const char* kClusters = ".explicitcluster\n.reqnctapercluster 4, 1, 1\n";
constexpr const char* kEntry = ".visible .entry spin(.param .u64 spin_flags, .param .u64 spin_limit)\n";
constexpr const char* kSpin = R"({
  .reg .pred %first, %on, %early;
  .reg .b32 %thread, %block, %stop, %state;
  .reg .b64 %flags, %limit, %own, %begin, %now;
  ld.param.u64 %flags, [spin_flags];
  ld.param.u64 %limit, [spin_limit];
  cvta.to.global.u64 %flags, %flags;
  mov.u32 %thread, %tid.x;
  setp.ne.s32 %first, %thread, 0;
  @%first bra END;
  mov.u32 %block, %ctaid.x;
  mul.wide.u32 %own, %block, 4;
  add.s64 %own, %flags, %own;
  mov.u32 %state, 1;
  st.volatile.global.u32 [%own+4], %state;
  membar.sys;
  mov.u64 %begin, %globaltimer;
AGAIN:
  ld.volatile.global.u32 %stop, [%flags];
  mov.u64 %now, %globaltimer;
  sub.s64 %now, %now, %begin;
  setp.eq.s32 %on, %stop, 0;
  setp.lt.u64 %early, %now, %limit;
  and.pred %early, %early, %on;
  @%early bra AGAIN;
  selp.b32 %state, 3, 2, %on;
  st.volatile.global.u32 [%own+4], %state;
  membar.sys;
END:
  bar.sync 0;
  ret;
}
)";
constexpr int kRuns = 1, kStopped = 2;

/// Functions of the libraries that the back end has loaded, whose symbols are global. They are not linked: this program
/// starts on machines without CUDA.
template <class Function>
Function* loaded(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
}
template <class Function>
Function* needed(const char* name, void* library = RTLD_DEFAULT) {
  auto* function = reinterpret_cast<Function*>(::dlsym(library, name));
  if (function == nullptr) FAIL("no library has " << std::string(name));
  return function;
}
template <class Function>
Function* of_driver(const char* name) {
  static void* const driver = ::dlopen("libcuda.so.1", RTLD_LAZY);
  return needed<Function>(name, driver);
}
void check_call(int code, const char* call) {
  if (code != 0) FAIL(std::string(call) << " returned " << code);
}
/// False on the stub driver, where no kernel ever begins.
bool computes() { return ::dlsym(RTLD_DEFAULT, "fsdp_stub_take_events") == nullptr; }

/// The kernel, which holds multiprocessors from hold() to release(), at most kLimitNanoseconds.
class Holder {
 public:
  /// \param has_clusters  of the device
  explicit Holder(bool has_clusters)
      : flags_(at::zeros({1 + kMostBlocks}, at::TensorOptions(at::kInt).pinned_memory(true))) {
    constexpr int kMostSharedMemory = 97;         // cudaDevAttrMaxSharedMemoryPerBlockOptin
    constexpr unsigned kBesideDefaultStream = 1;  // cudaStreamNonBlocking
    check_call(needed<int(int*, int, int)>("cudaDeviceGetAttribute")(&shared_bytes_, kMostSharedMemory, 0),
               "cudaDeviceGetAttribute");
    kernel_ = kernel_of(std::string(kHead) + kEntry + kSpin);
    if (has_clusters) clusters_ = kernel_of(std::string(kHeadWithClusters) + kEntry + kClusters + kSpin);
    constexpr int kHighestOfAll = -1000;  // CUDA clamps it
    check_call(needed<int(void**, unsigned, int)>("cudaStreamCreateWithPriority")(&stream_, kBesideDefaultStream,
                                                                                  kHighestOfAll),
               "cudaStreamCreateWithPriority");
  }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;
  ~Holder() { release(); }

  /// Returns when `blocks` blocks hold a multiprocessor each. \pre no work is queued on the device
  void hold(int blocks, bool in_clusters) {
    blocks_ = blocks;
    if (blocks == 0) return;
    flags_.zero_();
    void* flags = flags_.mutable_data_ptr();  // has the same address on the device
    std::uint64_t limit = kLimitNanoseconds;
    std::array<void*, 2> arguments{&flags, &limit};
    constexpr unsigned kThreads = 640;
    using Launch =
        int(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
    check_call(of_driver<Launch>("cuLaunchKernel")(in_clusters ? clusters_ : kernel_, static_cast<unsigned>(blocks), 1,
                                                   1, kThreads, 1, 1, static_cast<unsigned>(shared_bytes_), stream_,
                                                   arguments.data(), nullptr),
               "cuLaunchKernel");
    if (!all(kRuns, 500ms)) FAIL("the blocks did not all begin");
  }
  /// Ends the blocks, and fails if they have ended before.
  void release() {
    if (blocks_ == 0) return;
    flag(0).store(1);
    const bool held = all(kStopped, 2s);
    blocks_ = 0;
    CHECK_MESSAGE(held, "the blocks ended before the products did");
  }

 private:
  void* kernel_of(const std::string& ptx) const {
    constexpr int kDynamicSharedMemory = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    void *module = nullptr, *kernel = nullptr;
    check_call(of_driver<int(void**, const void*)>("cuModuleLoadData")(&module, ptx.c_str()), "cuModuleLoadData");
    check_call(of_driver<int(void**, void*, const char*)>("cuModuleGetFunction")(&kernel, module, "spin"),
               "cuModuleGetFunction");
    check_call(of_driver<int(void*, int, int)>("cuFuncSetAttribute")(kernel, kDynamicSharedMemory, shared_bytes_),
               "cuFuncSetAttribute");
    return kernel;
  }
  std::atomic_ref<int> flag(int i) const { return std::atomic_ref<int>(flags_.mutable_data_ptr<int>()[i]); }
  bool all(int state, std::chrono::milliseconds limit) const {
    if (!computes()) return true;
    const auto end = std::chrono::steady_clock::now() + limit;
    for (int i = 0; i < blocks_; ++i) {
      while (flag(1 + i).load() < state) {
        if (std::chrono::steady_clock::now() > end) return false;
        std::this_thread::sleep_for(20us);
      }
      if (flag(1 + i).load() != state) return false;
    }
    return true;
  }

  at::Tensor flags_;  ///< to stop, then the state of each block
  void *kernel_ = nullptr, *clusters_ = nullptr;
  void* stream_ = nullptr;
  int shared_bytes_ = 0, blocks_ = 0;
};

/// Sets for how many multiprocessors cuBLAS makes its products, 0 for all: of PyTorch's handle of this thread, which
/// all products without a bias use. (PyTorch's own carve-out, at::Context, reaches cuBLASLt alone in 2.11.)
class Target {
 public:
  Target() : set_(loaded<int(void*, int)>("cublasSetSmCountTarget")) {
    if (auto* handle = loaded<void*()>("_ZN2at4cuda24getCurrentCUDABlasHandleEv")) {
      handle_ = handle();
    } else if (auto* of_later = loaded<void*(bool)>("_ZN2at4cuda24getCurrentCUDABlasHandleEb")) {
      handle_ = of_later(true);
    }
  }
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;
  ~Target() {
    if (exists()) static_cast<void>(set_(handle_, 0));
  }
  bool exists() const { return set_ != nullptr && handle_ != nullptr; }
  void set(int count) const {
    if (exists()) check_call(set_(handle_, count), "cublasSetSmCountTarget");
  }

 private:
  int (*set_)(void*, int);
  void* handle_ = nullptr;
};

/// The twelve products of a block of CodeLlama-7b, in the order of a step: four forward, then each layer's two
/// backward.
class Products {
 public:
  explicit Products(const Ops& ops) : ops_(ops) {
    constexpr std::array<Layer, 4> kLayers{
        {{"q|k|v", 3 * 4096, 4096}, {"attention out", 4096, 4096}, {"inner", 2 * 11008, 4096}, {"down", 4096, 11008}}};
    for (const auto& layer : kLayers) {
      layers_.push_back({layer.name,
                         random({kRowsOfProducts, layer.in}),
                         random({layer.out, layer.in}),
                         random({kRowsOfProducts, layer.out}),
                         random({kRowsOfProducts, layer.in}),
                         {}});
      layers_.back().slot.grad = random({layer.out, layer.in});
    }
    for (const char* layer : {"q|k|v", "attention out", "inner", "down"})
      names.push_back(layer + std::string(", forward"));
    for (const char* layer : {"down", "inner", "attention out", "q|k|v"}) {
      names.push_back(layer + std::string(", input's gradient"));
      names.push_back(layer + std::string(", weight's gradient"));
    }
  }

  /// Calls `after` after each product that was launched.
  template <class After>
  void launch(const After& after) {
    for (auto& layer : layers_) {
      ops_.linear_into(layer.out, layer.x, layer.weight);
      after();
    }
    for (auto layer = layers_.rbegin(); layer != layers_.rend(); ++layer) {
      ops_.linear_backward_into(layer->dx, layer->out, layer->weight);
      after();
      layer->slot.written = false;
      ops_.weight_grad(&layer->slot, layer->out, layer->x);
      after();
    }
  }
  /// Waits for the compute stream, not for the device.
  void wait() const { static_cast<void>(ops_.to_host(layers_.front().slot.grad.narrow(0, 0, 1))); }

  std::vector<std::string> names;

 private:
  struct Layer {
    const char* name;
    std::int64_t out, in;
  };
  struct Buffers {
    const char* name;
    at::Tensor x, weight, out, dx;
    GradSlot slot;
  };
  at::Tensor random(at::IntArrayRef sizes) const {
    return at::randn(sizes, at::TensorOptions(at::kBFloat16).device(ops_.device())).mul_(0.02);
  }

  const Ops& ops_;
  std::vector<Buffers> layers_;
};

struct Case {
  int blocks, target;  ///< target: 0 without
  bool clusters = false;
  auto operator<=>(const Case&) const = default;
};
/// Milliseconds of each repeat: of all products together, then of each.
using Times = std::vector<std::vector<double>>;

void measure(const Ops& ops, Products& products, Holder& holder, const Case& one, Times& times) {
  products.launch([] {});  // chooses and loads kernels, which may wait for the device
  products.wait();
  holder.hold(one.blocks, one.clusters);
  std::vector<std::vector<std::unique_ptr<TimeMark>>> marks(kRepeats);
  for (auto& of_repeat : marks) {
    of_repeat.push_back(ops.mark_time());
    products.launch([&] { of_repeat.push_back(ops.mark_time()); });
  }
  products.wait();
  holder.release();
  times.resize(1 + products.names.size());
  for (const auto& of_repeat : marks) {
    times[0].push_back(1e3 * of_repeat.back()->seconds_since(*of_repeat.front()));
    for (std::size_t i = 1; i < of_repeat.size(); ++i)
      times[i].push_back(1e3 * of_repeat[i]->seconds_since(*of_repeat[i - 1]));
  }
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

TEST_SUITE("gpu/contention" * doctest::skip()) {
  TEST_CASE("the products of a block beside thread blocks that hold multiprocessors") {
    const auto backend = cuda_backend();
    backend->set_device(0);
    const auto ops = backend->make_ops(0);
    const int multiprocessors = backend->info(0).multiprocessors;
    Products products(*ops);
    const bool has_clusters = backend->info(0).compute_major >= 9;
    Holder holder(has_clusters);
    const Target target;
    if (!target.exists()) std::printf("contention: no target of multiprocessors in this cuBLAS or PyTorch\n");
    std::vector<Case> cases;
    for (const int blocks : {0, 4, 8, 16, kMostBlocks}) {
      if (has_clusters && blocks > 0) cases.push_back({blocks, 0, true});
      cases.push_back({blocks, 0});
      if (blocks == 0 || !target.exists() || multiprocessors <= blocks) continue;
      cases.push_back({blocks, multiprocessors - blocks, has_clusters});
      cases.push_back({0, multiprocessors - blocks});  // what the target alone costs
    }
    std::map<Case, Times> times;
    for (int round = 0; round < kRounds; ++round) {  // in turns, because the clock drifts
      for (const auto& one : cases) {
        target.set(one.target);
        measure(*ops, products, holder, one, times[one]);
      }
    }
    target.set(0);
    backend->synchronize(0);
    for (const auto& one : cases) {
      const auto with = std::to_string(one.blocks) + " blocks" + (one.clusters ? " in clusters of 4" : "") + ", " +
                        (one.target == 0 ? std::string("no target") : "target " + std::to_string(one.target));
      const auto print = [&](const std::string& what, std::size_t i) {
        const double ms = median(times[one][i]), alone = median(times[{0, 0}][i]);
        CHECK(ms > 0);
        std::printf("%s: %.4g ms, %.3f times\n", what.c_str(), ms, ms / alone);
      };
      print("contention: " + with, 0);
      for (std::size_t i = 0; i < products.names.size(); ++i)
        print("product: " + with + ", " + products.names[i], i + 1);
    }
    std::fflush(stdout);
  }
}
