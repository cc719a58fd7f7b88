// Writes JSON (RFC 8259), one value after the other. Strings come out as valid UTF-8: bytes that
// are not are replaced.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace herring::observe {

// Returns the text with U+FFFD in place of bytes that are not UTF-8.
std::string valid_utf8(std::string_view text);

class Json {
 public:
  Json& begin_object() { return open('{'); }
  Json& end_object() { return close('}'); }
  Json& begin_array() { return open('['); }
  Json& end_array() { return close(']'); }
  Json& key(std::string_view name) {
    separate();
    quote(name);
    out_ += ':';
    first_ = true;
    return *this;
  }
  Json& value(std::string_view text) {
    separate();
    quote(text);
    return *this;
  }
  Json& value(const char* text) { return value(std::string_view(text)); }
  Json& value(bool yes) { return raw(yes ? "true" : "false"); }
  Json& value(double number) {
    if (!std::isfinite(number)) return null();
    char text[32];
    std::snprintf(text, sizeof text, "%.9g", number);
    return raw(text);
  }
  // A time in seconds, to the microsecond.
  Json& exact(double seconds) {
    char text[40];
    std::snprintf(text, sizeof text, "%.6f", seconds);
    return raw(text);
  }
  template <typename T>
    requires(std::is_integral_v<T> && !std::is_same_v<T, bool>)
  Json& value(T number) {
    return raw(std::to_string(number));
  }
  Json& value(const std::vector<uint32_t>& numbers) {
    begin_array();
    for (const uint32_t number : numbers) value(number);
    return end_array();
  }
  Json& null() { return raw("null"); }
  template <typename T>
  Json& field(std::string_view name, const T& of) {
    return key(name).value(of);
  }
  std::string take() { return std::move(out_); }

 private:
  Json& open(char bracket) {
    separate();
    out_ += bracket;
    first_ = true;
    return *this;
  }
  Json& close(char bracket) {
    out_ += bracket;
    first_ = false;
    return *this;
  }
  Json& raw(std::string_view text) {
    separate();
    out_ += text;
    return *this;
  }
  void separate() {
    if (!first_) out_ += ',';
    first_ = false;
  }
  void quote(std::string_view text);

  std::string out_;
  bool first_ = true;
};

}  // namespace herring::observe
