#include "transport/address.h"

#include <charconv>

namespace herring::transport {

std::string Address::to_string() const {
  return host.find(':') == std::string::npos ? concat(host, ":", port)
                                             : concat("[", host, "]:", port);
}

Result<Address> parse_address(const std::string& text, const std::string& what) {
  const size_t colon = text.rfind(':');
  Address address;
  const Status bad(Code::kConfiguration,
                   concat(what, " is '", text, "'; it must be HOST:PORT with a port from 1 to "
                          "65535 (IPv6 as [ADDRESS]:PORT)"));
  if (colon == std::string::npos || colon == 0 || text.substr(0, colon) == "[]") return bad;
  address.host = text.substr(0, colon);
  if (address.host.front() == '[') {
    if (address.host.back() != ']') return bad;
    address.host = address.host.substr(1, address.host.size() - 2);
  } else if (address.host.find(':') != std::string::npos) {
    return bad;
  }
  int port = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data() + colon + 1, end, port);
  if (parsed.ec != std::errc() || parsed.ptr != end || port < 0 || port > 65535) return bad;
  address.port = static_cast<uint16_t>(port);
  return address;
}

}  // namespace herring::transport
