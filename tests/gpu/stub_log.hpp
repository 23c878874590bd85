#pragma once
// The calls of a program to the stub driver, in order: kernels by name, products, cuDNN's attention, copies, and waits
// of the host. For this project's kernels it knows the memory that they touch: an argument that exceeds its allocation
// ends the program.
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace stub {

enum class EventKind : std::uint8_t { kernel, product, attention, copy, wait, graph, collective };

struct Event {
  EventKind kind;
  std::string name;        ///< for kernels: mangled
  std::int64_t bytes = 0;  ///< read and written, for this project's kernels
};

/// Records nothing until take() has been called once.
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
  bool writes;
};
/// Returns the memory of a kernel of lib/compute/cuda, by its name and its one argument.
std::vector<Touched> touched_by(const std::string& name, const void* pass);
/// Returns what is known of the memory of a kernel of ATen: for elementwise ones the first byte of each element, and of
/// attention's inputs their first bytes; nothing for others.
std::vector<Touched> touched_by_aten(const std::string& name, void* const* arguments);
/// True for a kernel of lib/compute/cuda.
bool is_ours(const std::string& name);

}  // namespace stub
