// FNV-1a, a hash that is the same on every machine.
#pragma once

#include <cstdint>
#include <string_view>

namespace herring {

class Fnv1a {
 public:
  void add(std::string_view text) {
    for (const unsigned char c : text) mix(c);
  }
  // Adds eight bytes, little-endian.
  void add(uint64_t value) {
    for (int i = 0; i < 8; ++i, value >>= 8) mix(static_cast<unsigned char>(value));
  }
  uint64_t value() const { return hash_; }

 private:
  void mix(unsigned char byte) { hash_ = (hash_ ^ byte) * 0x100000001b3u; }

  uint64_t hash_ = 0xcbf29ce484222325u;
};

inline uint64_t fnv1a(std::string_view text) {
  Fnv1a hash;
  hash.add(text);
  return hash.value();
}

}  // namespace herring
