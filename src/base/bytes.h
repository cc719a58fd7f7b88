// A bounds-checked little-endian writer and reader for everything that crosses the wire.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace herring {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "payloads travel in host order");

class ByteWriter {
 public:
  template <typename T>
  ByteWriter& put(T value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    out_.append(reinterpret_cast<const char*>(&value), sizeof(T));
    return *this;
  }
  ByteWriter& raw(const void* data, size_t bytes) {
    out_.append(static_cast<const char*>(data), bytes);
    return *this;
  }
  ByteWriter& text(std::string_view s) {
    put(static_cast<uint32_t>(s.size()));
    return raw(s.data(), s.size());
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

// Reads fail softly: after the first short read, ok() is false and every value is zero.
class ByteReader {
 public:
  explicit ByteReader(std::string_view in) : in_(in) {}

  template <typename T>
  T get() {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    T value{};
    raw(&value, sizeof(T));
    return value;
  }
  bool raw(void* out, size_t bytes) {
    if (!ok_ || bytes > in_.size()) return ok_ = false;
    if (bytes > 0) std::memcpy(out, in_.data(), bytes);  // `out` may be null if `bytes` is 0
    in_.remove_prefix(bytes);
    return true;
  }
  std::string text(size_t limit = 4096) {
    const auto size = get<uint32_t>();
    if (!ok_ || size > limit || size > in_.size()) {
      ok_ = false;
      return {};
    }
    std::string s(in_.substr(0, size));
    in_.remove_prefix(size);
    return s;
  }
  std::string_view rest() { return ok_ ? std::exchange(in_, {}) : std::string_view{}; }
  size_t remaining() const { return in_.size(); }
  bool ok() const { return ok_; }
  bool done() const { return ok_ && in_.empty(); }

 private:
  std::string_view in_;
  bool ok_ = true;
};

}  // namespace herring
