#include "calls/underway.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "calls/calls.h"

namespace herring::calls {

void Underway::on_transfer_done(links::Transfer& transfer) {
  called_off |= transfer.called_off;
  if (transfer.fewest_workers == 0) whole = 0;
  calls.part_done(*this);
}

bool Underway::save(size_t bundle) {
  if (!attempt) return true;
  const char* const from = bundles[bundle].receive;
  const size_t bytes = bundles[bundle].array.bytes();
  std::unique_ptr<char[]>& copy = saved[bundle];
  if (copy == nullptr) copy.reset(new (std::nothrow) char[std::max<size_t>(bytes, 1)]);
  if (copy != nullptr) std::memcpy(copy.get(), from, bytes);
  return copy != nullptr;
}

void Underway::begin_again() {
  for (const auto& [bundle, bytes] : saved) {
    std::memcpy(bundles[bundle].receive, bytes.get(), bundles[bundle].array.bytes());
  }
  if (!call.list && !handle->on_device()) handle->drop_staging();
  transfers.clear();
  copies.clear();
  parts = {};
  whole = 1;
  attempt.reset();
  launched = false;
}

}  // namespace herring::calls
