// The content of one direction of a stream, which was written and not yet read. Without data, the
// payloads of segments and results are only counted.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <deque>
#include <string>

#include "wire/frame.h"

namespace herring::transport::virtual_time {

class Pipe {
 public:
  explicit Pipe(bool carries_data) : carries_data_(carries_data) {}

  // Appends the first `most` bytes of the pieces.
  void write(const iovec* pieces, int count, size_t most);
  // Reads `most` bytes, or as many as the pieces hold. Callers must not read more than was written.
  // For bytes that were only counted, the memory of the pieces does not change.
  void read(const iovec* pieces, int count, size_t most);

 private:
  // Holds either bytes or only their number.
  struct Run {
    std::string bytes;
    size_t counted = 0;
    size_t size() const { return counted > 0 ? counted : bytes.size(); }
  };

  void append(const char* data, size_t bytes);
  void count(size_t bytes);

  const bool carries_data_;
  std::deque<Run> runs_;
  size_t taken_ = 0;  // bytes of the first run that were read
  // The position in its frame of the next byte to be written.
  wire::FrameHeader header_;
  size_t header_have_ = 0, payload_left_ = 0;
};

}  // namespace herring::transport::virtual_time
