// Fields that several messages in wire/ have.
#pragma once

#include <cstddef>

#include "base/dtype.h"
#include "base/fields.h"

namespace herring {

template <typename Io>
void fields(Io& io, Of<Io, DType>& dtype) {
  io.choice(dtype, kNumDTypes);
}

template <typename Io>
void fields(Io& io, Of<Io, ReduceOp>& op) {
  io.choice(op, kNumReduceOps);
}

template <typename Io>
void fields(Io& io, Of<Io, Reduction>& reduction) {
  io(reduction.op, reduction.prescale, reduction.postscale, reduction.divisor);
}

}  // namespace herring

namespace herring::wire {

inline constexpr size_t kMaxName = 1024;  // bytes of an operation's name

}  // namespace herring::wire
