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

char* Operation::make_result(size_t bytes) {
  result_bytes = bytes;
  result.reset(new (std::nothrow) char[std::max<size_t>(bytes, 1)]);
  return result.get();
}

}  // namespace herring::worker
