#include "worker/operation.h"

#include <algorithm>
#include <functional>
#include <new>
#include <numeric>

#include "worker/named.h"

namespace herring::worker {

size_t Request::bytes() const {
  return std::accumulate(shape.begin(), shape.end(), size_of(dtype), std::multiplies<>());
}

void Operation::on_transfer_done(Transfer& transfer) {
  called_off_ |= transfer.called_off;
  owner_->part_done(*this);
}

char* Operation::place_result(size_t bytes) {
  placed = request.into != nullptr && request.into_bytes == bytes;
  if (placed) return request.into;
  result_bytes = bytes;
  result.reset(new (std::nothrow) char[std::max<size_t>(bytes, 1)]);
  return result.get();
}

}  // namespace herring::worker
