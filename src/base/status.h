// Status and Result<T>, with which the core reports failures. Exceptions exist only at the API's
// edge, where bindings/ turns a Code into the matching subclass of HerringError.
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
  kInvalidArgument,  // an array, name or option that the caller passed is not valid
  kConfiguration,    // environment, settings or cluster description
  kAuthentication,   // a peer does not know the job's secret
  kMismatch,         // ranks disagree about an operation
  kTimeout,          // a deadline passed
  kPeerLost,         // a worker or server died or left
  kShutdown,         // used during or after shutdown
  kInternal,         // a bug in this process, or the system is out of a resource
  kProtocol,         // a peer sent what no correct peer sends
  kDevice,           // a GPU or its driver failed
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
  // Returns whether something is broken, which other processes may not know of. An invalid request
  // by the caller is not a fault, nor is a peer that has ended or is late.
  bool is_fault() const {
    return code_ == Code::kInternal || code_ == Code::kProtocol || code_ == Code::kDevice;
  }
  // Returns "timeout: ...", for logs.
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

  // Moves the value to `place`, or returns the error.
  Status move_to(T& place) && {
    if (ok()) place = std::move(*value_);
    return std::move(status_);
  }

 private:
  Status status_;
  std::optional<T> value_;
};

// Converts an exception to a Status. If memory, threads or descriptors for event loops run out, an
// exception (std::bad_alloc, std::system_error) undoes what was begun. It becomes a Status where it
// is caught: at the start of a job, on an event loop, or at the API's edge.
Status status_of(const std::exception& error);

// Returns the Status or Result of `call`, or the Status of the exception that it throws.
template <typename Call>
auto without_exceptions(Call&& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::exception& error) {
    return status_of(error);
  }
}

// Returns the result of `call`. Passes an exception to `fail` as a Status and rethrows it.
template <typename Fail, typename Call>
auto or_tell(Fail&& fail, Call&& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::exception& error) {
    fail(status_of(error));
    throw;
  }
}

// One part of a message: text, a character or a number (floating-point numbers have 6 digits, as in
// streams). A Part of text refers to that text and must not outlive it.
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

// Builds a message from parts. GCC 12 has no <format>, and a stream in each of hundreds of calls
// took a tenth of the build time.
template <typename... Parts>
std::string concat(const Parts&... parts) {
  return concat_parts({Part(parts)...});
}

// Returns a number with its noun: "1 worker", "2 workers".
inline std::string counted(uint64_t number, std::string_view noun) {
  return concat(number, ' ', noun, number == 1 ? "" : "s");
}

// Returns the error for a peer that sent what no correct peer sends. The message says what to do.
template <typename... Parts>
Status breach(const Parts&... what) {
  return {Code::kProtocol,
          concat(what..., "; no correct process sends that: install the same build of Herring "
                          "everywhere, and if the error remains, report it as a bug")};
}

// Returns the error for a broken invariant of this process. The message says what to do.
template <typename... Parts>
Status defect(const Parts&... what) {
  return {Code::kInternal, concat(what..., "; this is a bug in Herring, please report it")};
}

}  // namespace herring

#define HERRING_RETURN_IF_ERROR(expression)              \
  do {                                                   \
    if (::herring::Status status_ = (expression); !status_.ok()) return status_; \
  } while (0)
