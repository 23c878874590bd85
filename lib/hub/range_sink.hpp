#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lib/hub/http_client.hpp"
#include "lib/hub/interval_set.hpp"

namespace fsdp {

/// Takes the bytes of a file out of a response to a range request, and believes nothing that the server says about them
/// without comparing it with what was asked for.
class RangeSink : public HttpSink {
 public:
  using Store = std::function<void(std::uint64_t begin, std::span<const std::byte> bytes)>;

  struct Wanted {
    std::uint64_t file_bytes = 0;   ///< size of the whole file
    std::uint64_t first_byte = 0;   ///< what the request's Range begins with
    bool accept_whole_file = true;  ///< take what is wanted out of a response with the whole file
  };

  /// \param left  bytes that are wanted; what arrives is taken out of it. Must outlive this object
  RangeSink(const Wanted& wanted, IntervalSet& left, std::uint64_t piece_bytes, Store store);

  bool head(const HttpHead& head) override;
  bool body(std::span<const std::byte> bytes) override;
  /// Stores what is still held back. Call after every transfer, also one that was cut.
  void flush();

  std::uint64_t stored_bytes() const { return stored_bytes_; }
  /// Why the response cannot be used; "" when it can.
  const std::string& complaint() const { return complaint_; }
  /// The server sent the whole file although a range was asked for, and the whole file was not accepted.
  bool range_ignored() const { return range_ignored_; }

 private:
  bool reject(const std::string& why);
  void take(std::uint64_t begin, std::span<const std::byte> bytes);

  Wanted wanted_;
  IntervalSet& left_;
  std::uint64_t piece_bytes_;
  Store store_;
  bool taking_ = false;  ///< the response is one with bytes of the file
  std::uint64_t position_ = 0;
  std::uint64_t held_begin_ = 0;
  std::vector<std::byte> held_;
  std::chrono::steady_clock::time_point held_since_{};
  std::uint64_t stored_bytes_ = 0;
  std::string complaint_;
  bool range_ignored_ = false;
};

}  // namespace fsdp
