// The address on which a process listens.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace herring::transport {

struct Address {
  std::string host;  // a name, an IPv4 or an IPv6 literal
  uint16_t port = 0;
  std::string to_string() const;  // brackets around IPv6
};

// Parses "host:port" or "[v6]:port". Returns kConfiguration naming `what` and the text on errors.
Result<Address> parse_address(const std::string& text, const std::string& what);

}  // namespace herring::transport
