#pragma once
// Where the tensors of an Ops are, and how they get there.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>

namespace fsdp {

/// A copy on its way.
class Transfer {
 public:
  virtual ~Transfer() = default;
  /// What the device is asked for from now on comes after it; the host still has to wait for the device.
  virtual void wait() = 0;
};

class WorkRecorder;

class Place {
 public:
  virtual ~Place() = default;
  virtual at::Device device() const = 0;
  /// The device's memory is the host's: ranks of a node can share it.
  virtual bool on_host() const = 0;
  /// Where tensors of the host are.
  virtual at::Device host() const;
  virtual bool is_on_host(const at::Tensor& x) const;
  /// x itself when it is there.
  virtual at::Tensor to_device(const at::Tensor& x) const;
  /// x itself when it is there. Waits for it, and for nothing that was asked for later; a rank that it waits for in
  /// vain is an error.
  virtual at::Tensor to_host(const at::Tensor& x) const;
  /// to = from, of one type, one of them on the device; contiguous. The host may go on with both. As to_host() with
  /// ranks that are gone.
  virtual void transfer(const at::Tensor& to, const at::Tensor& from) const;
  /// The same for memory of the host that lock_pages() has locked, beside what the device computes: it begins behind
  /// all that was asked for, and neither the host nor the device waits for it before wait(). Both tensors stay as they
  /// are until then. \return null: it is done
  virtual std::unique_ptr<Transfer> start_transfer(const at::Tensor& to, const at::Tensor& from) const;
  /// Lets the device read and write x, on the host, by itself for as long as the result lives; null: it does not.
  virtual std::shared_ptr<void> lock_pages(const at::Tensor& x) const;
  /// A tensor over memory of the host that something else owns.
  virtual at::Tensor tensor_at(void* data, at::IntArrayRef sizes, at::ScalarType dtype) const;
  /// Null: what is asked of the device can only be done at once.
  virtual const WorkRecorder* recorder() const { return nullptr; }
  /// Counts memory of the host that ATen does not allocate; negative when it goes.
  virtual void count_window(std::int64_t bytes) const;
  /// body(0), ..., body(n - 1), each of which gives back the memory that it takes.
  virtual void repeat(std::int64_t n, const std::function<void(std::int64_t)>& body) const;
};

}  // namespace fsdp
