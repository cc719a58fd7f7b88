#include "base/status.h"

#include <charconv>
#include <cstdio>
#include <iterator>
#include <new>

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

Part::Part(char character) : digits_{character}, text_(digits_, 1) {}
Part::Part(int number) : text_(digits_of(number, digits_)) {}
Part::Part(unsigned number) : text_(digits_of(number, digits_)) {}
Part::Part(long number) : text_(digits_of(number, digits_)) {}
Part::Part(unsigned long number) : text_(digits_of(number, digits_)) {}
Part::Part(long long number) : text_(digits_of(number, digits_)) {}
Part::Part(unsigned long long number) : text_(digits_of(number, digits_)) {}
Part::Part(double number) {
  text_ = {digits_, static_cast<size_t>(std::snprintf(digits_, sizeof(digits_), "%.6g", number))};
}

std::string concat_parts(std::initializer_list<Part> parts) {
  size_t length = 0;
  for (const Part& part : parts) length += part.text().size();
  std::string joined;
  joined.reserve(length);
  for (const Part& part : parts) joined += part.text();
  return joined;
}

Status status_of(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return {Code::kInternal, "out of memory: this process could not allocate more memory"};
  }
  return {Code::kInternal, error.what()};
}

std::string Status::to_string() const {
  return ok() ? "ok" : concat(code_name(code_), ": ", message_);
}

}  // namespace herring
