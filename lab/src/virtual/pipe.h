// The content of one direction of a stream: what was written and not yet read. Without data, what
// frames of segments and results carry is only counted.
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

  // The first `most` bytes of the pieces.
  void write(const iovec* pieces, int count, size_t most);
  // As many bytes as were written before and not yet read, at most what the pieces hold; of what
  // was only counted, their memory keeps what it had.
  void read(const iovec* pieces, int count, size_t most);

 private:
  // Either bytes, or only their number.
  struct Run {
    std::string bytes;
    size_t counted = 0;
    size_t size() const { return counted > 0 ? counted : bytes.size(); }
  };

  void append(const char* data, size_t bytes);
  void count(size_t bytes);

  const bool carries_data_;
  std::deque<Run> runs_;
  size_t taken_ = 0;  // of the first run
  // Where in its frame the next byte that is written belongs.
  wire::FrameHeader header_;
  size_t header_have_ = 0, payload_left_ = 0;
};

}  // namespace herring::transport::virtual_time
