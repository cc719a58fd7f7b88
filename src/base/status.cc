#include "base/status.h"

#include <atomic>
#include <charconv>
#include <cstdio>
#include <iterator>
#include <new>
#include <utility>

namespace herring {
namespace {

template <typename Number>
std::string_view digits_of(Number number, char (&digits)[24]) {
  const char* end = std::to_chars(digits, std::end(digits), number).ptr;
  return {digits, static_cast<size_t>(end - digits)};
}

}  // namespace

const char* code_name(Code code) {
  switch (code) {
    case Code::kOk: return "ok";
    case Code::kInvalidArgument: return "invalid argument";
    case Code::kConfiguration: return "configuration";
    case Code::kAuthentication: return "authentication";
    case Code::kMismatch: return "mismatch";
    case Code::kTimeout: return "timeout";
    case Code::kPeerLost: return "peer lost";
    case Code::kShutdown: return "shutdown";
    case Code::kInternal: return "internal";
    case Code::kProtocol: return "protocol";
    case Code::kDevice: return "device";
  }
  return "unknown";
}

const char Part::kCharacter[1] = {}, Part::kSigned[1] = {}, Part::kUnsigned[1] = {},
           Part::kReal[1] = {};

std::string_view Part::text(char (&digits)[24]) const {
  if (text_ == kCharacter) {
    digits[0] = static_cast<char>(word_);
    return {digits, 1};
  }
  if (text_ == kSigned) return digits_of(static_cast<int64_t>(word_), digits);
  if (text_ == kUnsigned) return digits_of(word_, digits);
  if (text_ != kReal) return {text_, word_};
  const int length = std::snprintf(digits, sizeof(digits), "%.6g", std::bit_cast<double>(word_));
  return {digits, static_cast<size_t>(length)};
}

std::string concat_parts(Parts parts) {
  std::string joined;
  char digits[24];
  for (const Part& part : parts) joined += part.text(digits);
  return joined;
}

std::string counted(uint64_t number, std::string_view noun) {
  return concat(number, ' ', noun, number == 1 ? "" : "s");
}

Status breach_of(Parts what) {
  return {Code::kProtocol,
          concat(concat_parts(what),
                 "; no correct process sends that: install the same build of Herring everywhere, "
                 "and if the error remains, report it as a bug")};
}

Status defect_of(Parts what) {
  return {Code::kInternal,
          concat(concat_parts(what), "; this is a bug in Herring, please report it")};
}

// It is made before memory can be short, and never destroyed: threads may still copy it at the end.
static const Status& kOutOfMemory =
    *new Status(Code::kInternal, "out of memory: this process could not allocate more memory");

Status status_of(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return kOutOfMemory;
  return {Code::kInternal, error.what()};
}

struct Status::Failure {
  std::atomic<size_t> owners;
  const Code code;
  const std::string message;
};

Status::Status(Code code, std::string message) {
  if (code != Code::kOk) failure_ = new Failure{1, code, std::move(message)};
}

Code Status::failure_code() const { return failure_->code; }

const std::string& Status::message() const {
  static const auto* const none = new std::string;  // never destroyed: threads may outlive it
  return ok() ? *none : failure_->message;
}

bool Status::is_fault() const {
  return code() == Code::kInternal || code() == Code::kProtocol || code() == Code::kDevice;
}

std::string Status::to_string() const {
  return ok() ? "ok" : concat(code_name(code()), ": ", message());
}

void Status::share() const noexcept { failure_->owners.fetch_add(1, std::memory_order_relaxed); }

void Status::release() noexcept {
  if (failure_->owners.fetch_sub(1, std::memory_order_acq_rel) == 1) delete failure_;
}

}  // namespace herring
