#pragma once
// What a program asked the stub driver to do, in order: kernels by name, products, attention by cuDNN, copies, and what
// makes the host wait. Kernels of our own say which memory they touch, so that an argument that leaves its allocation
// ends the program.
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace stub {

enum class EventKind : std::uint8_t { kernel, product, attention, copy, wait, graph };

struct Event {
  EventKind kind;
  std::string name;        ///< of a kernel: mangled
  std::int64_t bytes = 0;  ///< of our kernels: what they read and write
};

/// Empty until it is first asked for.
class Log {
 public:
  void add(Event event);
  std::vector<Event> take();

 private:
  std::mutex mutex_;
  bool wanted_ = false;
  std::vector<Event> events_;
};
Log& log();

struct Touched {
  const void* data;
  std::int64_t bytes;
};
/// Of a kernel of lib/compute/cuda, by its name and its one argument; nothing of any other.
std::vector<Touched> touched_by(const std::string& name, const void* pass);

}  // namespace stub
