#include "transport/tcp/suspects.h"

#include <arpa/inet.h>

#include <algorithm>

namespace herring::transport::tcp {

void Suspects::failed(const std::string& host, Nanos now) {
  const std::string network = network_of(host);
  auto found = hosts_.find(network);
  if (found == hosts_.end()) {
    if (hosts_.size() >= kMostHosts) {
      hosts_.erase(std::min_element(hosts_.begin(), hosts_.end(),
                                    [](const auto& one, const auto& other) {
                                      return one.second.last < other.second.last;
                                    }));
    }
    found = hosts_.emplace(network, Record{}).first;
  }
  Record& record = found->second;
  if (now - record.last > kMemory) record.failures = 0;
  record.failures = std::min(record.failures + 1, failures_);
  record.last = now;
}

bool Suspects::suspect(const std::string& host, Nanos now) const {
  const auto found = hosts_.find(network_of(host));
  return found != hosts_.end() && found->second.failures >= failures_ &&
         now - found->second.last <= kMemory;
}

std::string Suspects::network_of(const std::string& host) {
  in6_addr address;
  if (inet_pton(AF_INET6, host.c_str(), &address) != 1) return host;
  if (IN6_IS_ADDR_V4MAPPED(&address)) return host;
  return std::string(reinterpret_cast<const char*>(&address), 8);
}

}  // namespace herring::transport::tcp
