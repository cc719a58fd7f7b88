#include "virtual/pipe.h"

#include <algorithm>
#include <cstring>

namespace herring::transport::virtual_time {

void Pipe::append(const char* data, size_t bytes) {
  if (runs_.empty() || runs_.back().counted > 0) runs_.emplace_back();
  runs_.back().bytes.append(data, bytes);
}

void Pipe::count(size_t bytes) {
  if (runs_.empty() || runs_.back().counted == 0) runs_.emplace_back();
  runs_.back().counted += bytes;
}

void Pipe::write(const iovec* pieces, int count, size_t most) {
  for (int i = 0; i < count && most > 0; ++i) {
    const char* data = static_cast<const char*>(pieces[i].iov_base);
    size_t left = std::min(pieces[i].iov_len, most);
    most -= left;
    if (carries_data_) {
      if (left > 0) append(data, left);
      continue;
    }
    while (left > 0) {
      size_t bytes = 0;
      if (payload_left_ > 0) {
        bytes = std::min(left, payload_left_);
        payload_left_ -= bytes;
        const bool segments = header_.type == wire::FrameType::kData ||
                              header_.type == wire::FrameType::kResult;
        segments ? this->count(bytes) : append(data, bytes);
      } else {
        bytes = std::min(left, sizeof(header_) - header_have_);
        std::memcpy(reinterpret_cast<char*>(&header_) + header_have_, data, bytes);
        append(data, bytes);
        header_have_ += bytes;
        if (header_have_ == sizeof(header_)) {
          header_have_ = 0;
          payload_left_ = header_.payload;
        }
      }
      data += bytes;
      left -= bytes;
    }
  }
}

void Pipe::read(const iovec* pieces, int count, size_t most) {
  for (int i = 0; i < count && most > 0; ++i) {
    char* data = static_cast<char*>(pieces[i].iov_base);
    size_t left = std::min(pieces[i].iov_len, most);
    most -= left;
    while (left > 0) {
      const Run& run = runs_.front();
      const size_t bytes = std::min(left, run.size() - taken_);
      if (run.counted == 0) std::memcpy(data, run.bytes.data() + taken_, bytes);
      data += bytes;
      left -= bytes;
      taken_ += bytes;
      if (taken_ == run.size()) {
        runs_.pop_front();
        taken_ = 0;
      }
    }
  }
}

}  // namespace herring::transport::virtual_time
