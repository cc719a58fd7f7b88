// Messages as lists of fields. A message names its fields once, in a function template
// fields(io, message) beside its codec: a FieldWriter writes them, a FieldReader reads and checks
// them. So both sides agree, and no check is forgotten on the way back.
//
//   template <typename Io>
//   void fields(Io& io, Of<Io, Go>& go) {
//     io(go.id, go.counts);
//     io.text(go.name, kMaxName);
//     if constexpr (Io::kReads) io.check(go.id != 0);  // what depends on several fields
//   }
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/status.h"

namespace herring {

// The type of a message in its list of fields: `const T` where it is written.
template <typename Io, typename T>
using Of = std::conditional_t<Io::kReads, T, const T>;

// Whether a text for people may have several lines.
enum class Lines : uint8_t { kOne, kMany };

// Makes text of another process safe on a terminal and in a file.
std::string printable(std::string text, Lines lines);

// Lists of numbers have at most this number of them.
inline constexpr size_t kMostNumbers = 1 << 20;

class FieldWriter {
 public:
  static constexpr bool kReads = false;

  // Writes numbers, flags, lists of numbers, optional numbers, and what has fields of its own.
  template <typename... Ts>
  void operator()(const Ts&... values) {
    (one(values), ...);
  }
  template <typename Enum>
  void choice(Enum value, size_t) {
    out_.put(static_cast<uint8_t>(value));
  }
  template <typename... Times>
  void times(const Times&... values) {
    (one(values), ...);
  }
  template <typename... Times>
  void signed_times(const Times&... values) {
    (one(values), ...);
  }
  void text(std::string_view text, size_t) { out_.text(text); }
  void people(std::string_view text, size_t most, Lines = Lines::kOne) {
    out_.text(text.substr(0, most));
  }
  void rest(std::string_view) {}  // it follows on the wire
  void check(bool) {}

  template <typename T, typename Each>
  void list(const std::vector<T>& all, size_t, Each each) {
    write_list(all, 0, all.size(), each);
  }
  template <typename T>
  void list(const std::vector<T>& all, size_t most) {
    list(all, most, [](auto& io, const T& element) { io(element); });
  }
  // Writes the first ones, or the last ones, if there are more than fit.
  template <typename T, typename Each>
  void first(const std::vector<T>& all, size_t most, Each each) {
    write_list(all, 0, std::min(all.size(), most), each);
  }
  template <typename T, typename Each>
  void last(const std::vector<T>& all, size_t most, Each each) {
    write_list(all, all.size() - std::min(all.size(), most), all.size(), each);
  }
  // A list whose number takes one byte.
  template <typename T>
  void few(const std::vector<T>& all, size_t) {
    out_.put(static_cast<uint8_t>(all.size()));
    for (const T& element : all) one(element);
  }

  std::string take() { return out_.take(); }

 private:
  template <typename T>
  void one(const T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      out_.put(static_cast<uint8_t>(value));
    } else if constexpr (std::is_arithmetic_v<T>) {
      out_.put(value);
    } else {
      fields(*this, value);
    }
  }
  template <typename Number>
  void one(const std::optional<Number>& value) {
    out_.put(static_cast<uint8_t>(value.has_value())).put(value.value_or(0));
  }
  template <typename Number>
  void one(const std::vector<Number>& values) {
    out_.put(static_cast<uint32_t>(values.size()));
    out_.raw(values.data(), values.size() * sizeof(Number));
  }
  void one(const std::vector<bool>& flags) {
    out_.put(static_cast<uint32_t>(flags.size()));
    for (const bool flag : flags) one(flag);
  }
  template <typename T, typename Each>
  void write_list(const std::vector<T>& all, size_t begin, size_t end, Each each) {
    out_.put(static_cast<uint32_t>(end - begin));
    for (size_t i = begin; i < end; ++i) each(*this, all[i]);
  }

  ByteWriter out_;
};

// Reads what a FieldWriter has written, or what a stranger claims that one has. After the first
// wrong field ok() is false; the values are then safe, but mean nothing. Memory is only taken for
// what is there.
class FieldReader {
 public:
  static constexpr bool kReads = true;
  explicit FieldReader(std::string_view in) : in_(in) {}

  template <typename... Ts>
  void operator()(Ts&... values) {
    (one(values), ...);
  }
  // A value below `count`, in one byte.
  template <typename Enum>
  void choice(Enum& value, size_t count) {
    const auto raw = in_.get<uint8_t>();
    check(raw < count);
    value = ok() ? static_cast<Enum>(raw) : Enum{};
  }
  // Times are added and compared, so none may come near the limits of its type.
  template <typename... Times>
  void times(Times&... values) {
    signed_times(values...);
    (check(values >= 0), ...);
  }
  template <typename... Times>
  void signed_times(Times&... values) {
    (one(values), ...);
    (check(values > -kEndless && values < kEndless), ...);
  }
  void text(std::string& text, size_t most) { text = in_.text(most); }
  void people(std::string& text, size_t most, Lines lines = Lines::kOne) {
    text = printable(in_.text(most), lines);
  }
  void rest(std::string_view& view) { view = in_.rest(); }
  void check(bool is_sound) { sound_ = sound_ && is_sound; }

  template <typename T, typename Each>
  void list(std::vector<T>& all, size_t most, Each each) {
    read_list(in_.get<uint32_t>(), all, most, each);
  }
  template <typename T>
  void list(std::vector<T>& all, size_t most) {
    list(all, most, [](auto& io, T& element) { io(element); });
  }
  template <typename T, typename Each>
  void first(std::vector<T>& all, size_t most, Each each) {
    list(all, most, each);
  }
  template <typename T, typename Each>
  void last(std::vector<T>& all, size_t most, Each each) {
    list(all, most, each);
  }
  template <typename T>
  void few(std::vector<T>& all, size_t most) {
    read_list(in_.get<uint8_t>(), all, most, [](auto& io, T& element) { io(element); });
  }

  bool ok() const { return in_.ok() && sound_; }
  bool done() const { return in_.done() && sound_; }

 private:
  template <typename T>
  void one(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      choice(value, 2);
    } else if constexpr (std::is_arithmetic_v<T>) {
      value = in_.get<T>();
    } else {
      fields(*this, value);
    }
  }
  template <typename Number>
  void one(std::optional<Number>& value) {
    bool given = false;
    Number number{};
    (*this)(given, number);
    check(given || number == 0);
    value = given ? std::optional<Number>(number) : std::nullopt;
  }
  template <typename Number>
  void one(std::vector<Number>& values) {
    const auto count = in_.get<uint32_t>();
    check(count <= kMostNumbers && count * sizeof(Number) <= in_.remaining());
    values.resize(ok() ? count : 0);
    in_.raw(values.data(), values.size() * sizeof(Number));
  }
  void one(std::vector<bool>& flags) {
    const auto count = in_.get<uint32_t>();
    check(count <= kMostNumbers && count <= in_.remaining());
    flags.assign(ok() ? count : 0, false);
    for (size_t i = 0; i < flags.size(); ++i) {
      bool flag = false;
      one(flag);
      flags[i] = flag;
    }
  }
  template <typename T, typename Each>
  void read_list(uint32_t count, std::vector<T>& all, size_t most, Each each) {
    check(count <= most && count <= in_.remaining());  // no element is empty
    all.clear();
    for (uint32_t i = 0; ok() && i < count; ++i) each(*this, all.emplace_back());
  }

  ByteReader in_;
  bool sound_ = true;
};

// Returns the bytes of a message.
template <typename Message>
std::string write_fields(const Message& message) {
  FieldWriter out;
  out(message);
  return out.take();
}

// Returns the message, if the bytes are exactly one. `what`: "heartbeat", for the error.
template <typename Message>
Result<Message> read_fields(std::string_view in, const char* what) {
  FieldReader reader(in);
  Message message;
  reader(message);
  if (!reader.done()) return breach("malformed ", what);
  return message;
}

}  // namespace herring
