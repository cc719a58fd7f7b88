// Measures what encryption costs on this machine, for `herring check`.
#pragma once

#include <cstddef>
#include <memory>

#include "base/status.h"
#include "transport/tcp/tls.h"

namespace herring::bindings {

struct Cost {
  double rate = 0;        // bytes per second over one connection
  double cpu_per_gb = 0;  // processor seconds of both sides together, for 1e9 bytes
};

// Sends `bytes` in frames over one loopback connection, from one thread to another, in the way of a
// job's flows. Without `tls`, nothing is encrypted.
Result<Cost> measure_cost(const std::shared_ptr<const transport::tcp::Tls>& tls, size_t bytes);

}  // namespace herring::bindings
