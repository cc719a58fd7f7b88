// Status and Result<T>, with which the core reports failures. Exceptions exist only at the API's
// edge, where bindings/ turns a Code into the matching subclass of HerringError.
#pragma once

#include <bit>
#include <cstdint>
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

// One word: null if all is well, else a record of what failed, which never changes and which copies
// share. So what thousands of callers do with a Status in passing is to compare it with null.
class [[nodiscard]] Status {
 public:
  Status() = default;
  [[gnu::cold]] Status(Code code, std::string message);
  Status(const Status& other) noexcept : failure_(other.failure_) {
    if (!ok()) share();
  }
  Status(Status&& other) noexcept : failure_(std::exchange(other.failure_, nullptr)) {}
  Status& operator=(Status other) noexcept {
    std::swap(failure_, other.failure_);
    return *this;
  }
  ~Status() {
    if (!ok()) release();
  }

  bool ok() const { return failure_ == nullptr; }
  Code code() const { return ok() ? Code::kOk : failure_code(); }
  const std::string& message() const;  // empty if ok
  // Returns whether something is broken, which other processes may not know of. An invalid request
  // by the caller is not a fault, nor is a peer that has ended or is late.
  bool is_fault() const;
  // Returns "timeout: ...", for logs.
  std::string to_string() const;

 private:
  struct Failure;

  [[gnu::cold]] Code failure_code() const;
  [[gnu::cold]] void share() const noexcept;
  [[gnu::cold]] void release() noexcept;

  Failure* failure_ = nullptr;
};

// A value, or the reason why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}             // NOLINT: implicit on purpose
  Result(Status status) : status_(std::move(status)) {}     // NOLINT: implicit on purpose

  bool ok() const { return value_.has_value(); }
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
// streams). A Part of text refers to that text and must not outlive it. It is two words, so that a
// caller has little to do.
class Part {
 public:
  // These are implicit on purpose.
  Part(std::string_view text) : text_(text.data()), word_(text.size()) {}     // NOLINT
  Part(const std::string& text) : text_(text.data()), word_(text.size()) {}   // NOLINT
  Part(const char* text) : Part(std::string_view(text)) {}                    // NOLINT
  Part(char character) : text_(kCharacter), word_(static_cast<unsigned char>(character)) {}
  Part(int number) : Part(static_cast<long long>(number)) {}                  // NOLINT
  Part(long number) : Part(static_cast<long long>(number)) {}                 // NOLINT
  Part(long long number) : text_(kSigned), word_(static_cast<uint64_t>(number)) {}
  Part(unsigned number) : text_(kUnsigned), word_(number) {}                  // NOLINT
  Part(unsigned long number) : text_(kUnsigned), word_(number) {}             // NOLINT
  Part(unsigned long long number) : text_(kUnsigned), word_(number) {}        // NOLINT
  Part(double number) : text_(kReal), word_(std::bit_cast<uint64_t>(number)) {}  // NOLINT

  // Returns the text, or writes it to `digits`.
  std::string_view text(char (&digits)[24]) const;

 private:
  // Their addresses stand for text that is yet to be made.
  static const char kCharacter[1], kSigned[1], kUnsigned[1], kReal[1];

  const char* text_;
  uint64_t word_;  // the length of the text, or the character or number
};

// What the templates below call: their instances, of which there are hundreds, should be short.
using Parts = std::initializer_list<Part>;
[[gnu::cold]] std::string concat_parts(Parts parts);
[[gnu::cold]] Status breach_of(Parts what);
[[gnu::cold]] Status defect_of(Parts what);

// Builds a message from parts. GCC 12 has no <format>, and a stream in each of hundreds of calls
// took a tenth of the build time.
template <typename... Each>
std::string concat(const Each&... parts) {
  return concat_parts({Part(parts)...});
}

// Returns a number with its noun: "1 worker", "2 workers".
std::string counted(uint64_t number, std::string_view noun);

// Returns the error for a peer that sent what no correct peer sends. The message says what to do.
template <typename... Each>
Status breach(const Each&... what) {
  return breach_of({Part(what)...});
}

// Returns the error for a broken invariant of this process. The message says what to do.
template <typename... Each>
Status defect(const Each&... what) {
  return defect_of({Part(what)...});
}

}  // namespace herring

#define HERRING_RETURN_IF_ERROR(expression)              \
  do {                                                   \
    if (::herring::Status status_ = (expression); !status_.ok()) return status_; \
  } while (0)

// Declares a reference to the value of a Result, or returns its error from the function:
//   HERRING_ASSIGN_OR_RETURN(const auto& address, parse_address(text));
#define HERRING_ASSIGN_OR_RETURN(declaration, ...) \
  HERRING_ASSIGN_FROM_(HERRING_NAME_(result_of_line_, __LINE__), declaration, __VA_ARGS__)
#define HERRING_ASSIGN_FROM_(result, declaration, ...) \
  auto result = (__VA_ARGS__);                         \
  if (!result.ok()) return result.status();            \
  declaration = *result
#define HERRING_NAME_(text, line) HERRING_NAME_OF_(text, line)
#define HERRING_NAME_OF_(text, line) text##line
