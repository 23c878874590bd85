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

/// Extracts the bytes of a file from the response to a range request. Every header field that describes the bytes is
/// compared with the request.
class RangeSink : public HttpSink {
 public:
  using Store = std::function<void(std::uint64_t begin, std::span<const std::byte> bytes)>;

  struct Wanted {
    std::uint64_t file_bytes = 0;   ///< size of the whole file
    std::uint64_t first_byte = 0;   ///< first byte of the request's Range
    bool accept_whole_file = true;  ///< extract the wanted bytes from a response with the whole file
  };

  /// \param left         bytes that are still wanted; received bytes are removed. Must outlive this object
  /// \param piece_bytes  number of bytes that are buffered before `store` is called
  RangeSink(const Wanted& wanted, IntervalSet& left, std::uint64_t piece_bytes, Store store);

  bool head(const HttpHead& head) override;
  bool body(std::span<const std::byte> bytes) override;
  /// Stores the buffered bytes. Must be called after every transfer, including one that was cut.
  void flush();

  std::uint64_t stored_bytes() const { return stored_bytes_; }
  /// Why the response is unusable; "" when it is usable.
  const std::string& complaint() const { return complaint_; }
  /// True when the server answered a range request with the whole file and accept_whole_file was false.
  bool range_ignored() const { return range_ignored_; }

 private:
  bool reject(const std::string& why);
  void take(std::uint64_t begin, std::span<const std::byte> bytes);

  Wanted wanted_;
  IntervalSet& left_;
  std::uint64_t piece_bytes_;
  Store store_;
  bool taking_ = false;  ///< the response holds bytes of the file
  std::uint64_t position_ = 0;
  std::uint64_t held_begin_ = 0;
  std::vector<std::byte> held_;
  std::chrono::steady_clock::time_point held_since_{};
  std::uint64_t stored_bytes_ = 0;
  std::string complaint_;
  bool range_ignored_ = false;
};

}  // namespace fsdp
