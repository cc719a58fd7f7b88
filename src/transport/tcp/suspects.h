// Which hosts send strangers: their last connections have all ended without a proof.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "base/clock.h"

namespace herring::transport::tcp {

// A crowd of strangers from one host must not keep members on other hosts waiting, so a listener
// gives such a host less time. A host with members among its strangers is none: each proof clears
// it. Memory is bounded.
class Suspects {
 public:
  static constexpr size_t kMostHosts = 1024;
  static constexpr Nanos kMemory = 10 * kSecond;  // after a host's last failure

  // `failures`: how many connections in a row must fail.
  explicit Suspects(uint32_t failures) : failures_(failures) {}

  void failed(const std::string& host, Nanos now);
  void proved(const std::string& host) { hosts_.erase(network_of(host)); }
  bool suspect(const std::string& host, Nanos now) const;
  size_t size() const { return hosts_.size(); }

 private:
  struct Record {
    uint32_t failures = 0;
    Nanos last = 0;
  };
  // A host with IPv6 has 2^64 addresses, all in one network.
  static std::string network_of(const std::string& host);

  const uint32_t failures_;
  std::map<std::string, Record> hosts_;
};

}  // namespace herring::transport::tcp
