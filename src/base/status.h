// Status and Result<T>: how the core reports failure. Exceptions exist only at the API's edge,
// where bindings/ turns a Code into the matching class below HerringError.
#pragma once

#include <exception>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace herring {

enum class Code {
  kOk = 0,
  kInvalidArgument,  // an array, name or option the caller passed
  kConfiguration,    // environment, settings, cluster description
  kAuthentication,   // a peer does not know the job's secret
  kMismatch,         // ranks disagree about an operation
  kTimeout,          // a deadline passed
  kPeerLost,         // a worker or server died or left
  kShutdown,         // used after (or during) shutdown
  kInternal,         // a bug of this process, or the system lacks a resource
  kProtocol,         // a peer has sent what no correct peer sends
  kDevice,           // a GPU, or its driver, has failed
};

inline constexpr Code kLastCode = Code::kDevice;

const char* code_name(Code code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  // Something is broken, and nobody else may know of it: it is neither what the caller asked for,
  // nor that a peer has ended or comes too late.
  bool is_fault() const {
    return code_ == Code::kInternal || code_ == Code::kProtocol || code_ == Code::kDevice;
  }
  // "Timeout: ..." for logs.
  std::string to_string() const;

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}             // NOLINT: implicit on purpose
  Result(Status status) : status_(std::move(status)) {}     // NOLINT: implicit on purpose

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return std::move(*value_); }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

// Memory, threads and descriptors for event loops run out by an exception (std::bad_alloc,
// std::system_error), which takes back what was begun. It becomes a Status where it ends: at the
// start of a job, on an event loop, at the API's edge.
Status status_of(const std::exception& error);

// What `call` returns, a Status or a Result, or the Status of what it throws.
template <typename Call>
auto without_exceptions(Call&& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::exception& error) {
    return status_of(error);
  }
}

// What `call` returns. What it throws is told to `fail`, as a Status, and goes on.
template <typename Fail, typename Call>
auto or_tell(Fail&& fail, Call&& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::exception& error) {
    fail(status_of(error));
    throw;
  }
}

// One part of a message: text, a character or a number (floating point with 6 digits, as streams
// print it). It refers to what it was made from.
class Part {
 public:
  Part(std::string_view text) : text_(text) {}    // NOLINT: these are implicit on purpose
  Part(const std::string& text) : text_(text) {}  // NOLINT
  Part(const char* text) : text_(text) {}         // NOLINT
  Part(char character);                           // NOLINT
  Part(int number);                               // NOLINT
  Part(unsigned number);                          // NOLINT
  Part(long number);                              // NOLINT
  Part(unsigned long number);                     // NOLINT
  Part(long long number);                         // NOLINT
  Part(unsigned long long number);                // NOLINT
  Part(double number);                            // NOLINT
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  std::string_view text() const { return text_; }

 private:
  char digits_[24];
  std::string_view text_;
};

std::string concat_parts(std::initializer_list<Part> parts);

// Builds a message from parts. GCC 12 has no <format>, and a stream in each of hundreds of these
// took a tenth of the build.
template <typename... Parts>
std::string concat(const Parts&... parts) {
  return concat_parts({Part(parts)...});
}

// A peer has sent what no correct peer sends. The message says so, and what to do.
template <typename... Parts>
Status breach(const Parts&... what) {
  return {Code::kProtocol,
          concat(what..., "; no correct process sends that: install the same build of Herring "
                          "everywhere, and if this remains, report it as a bug")};
}

// An invariant of this process does not hold. The message says so, and what to do.
template <typename... Parts>
Status defect(const Parts&... what) {
  return {Code::kInternal, concat(what..., "; this is a bug in Herring, please report it")};
}

}  // namespace herring

#define HERRING_RETURN_IF_ERROR(expression)              \
  do {                                                   \
    if (::herring::Status status_ = (expression); !status_.ok()) return status_; \
  } while (0)
