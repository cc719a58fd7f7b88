#include "base/status.h"

namespace herring {

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
  }
  return "unknown";
}

std::string Status::to_string() const {
  return ok() ? "ok" : concat(code_name(code_), ": ", message_);
}

}  // namespace herring
