// Interprets a fuzzer's bytes as numbers, one after the other. When the bytes are used up, the
// numbers are zero.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <string>

#include "base/log.h"
#include "wire/frame.h"

namespace herring::fuzz {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), left_(size) {}

  bool empty() const { return left_ == 0; }
  size_t left() const { return left_; }
  uint8_t byte() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }
  uint32_t below(uint32_t n) { return byte() % n; }
  bool flag() { return byte() & 1; }
  // Returns true rarely: for values that are likely nonsense.
  bool seldom() { return byte() == 0xff; }
  template <typename T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[byte() % choices.size()];
  }
  uint64_t any() {
    uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | byte();
    return value;
  }

 private:
  const uint8_t* data_;
  size_t left_;
};

// Counts the frames that went into the state machine. The total is printed when the process ends.
inline void count_frames(uint64_t n) {
  static std::atomic<uint64_t> frames{0};
  static const bool registered = [] {
    return std::atexit([] {
             std::fprintf(stderr, "%llu frames\n", static_cast<unsigned long long>(frames.load()));
           }) == 0;
  }();
  static_cast<void>(registered);
  frames.fetch_add(n, std::memory_order_relaxed);
}

// Disables the log. Faults of members are logged as errors, which happens millions of times here.
inline void be_quiet() {
  set_log_level(static_cast<LogLevel>(static_cast<int>(LogLevel::kError) + 1));
}

// Gives whole frames the check that a flow expects. `number`: of frames before them.
inline void seal(std::string& frames, uint64_t& number) {
  wire::FrameHeader header;
  for (size_t at = 0; at + sizeof(header) <= frames.size(); at += sizeof(header) + header.payload) {
    std::memcpy(&header, frames.data() + at, sizeof(header));
    header.check = wire::check_of(header, ++number);
    std::memcpy(frames.data() + at, &header, sizeof(header));
  }
}

inline void expect(bool sound) {
  if (!sound) std::abort();
}

}  // namespace herring::fuzz
