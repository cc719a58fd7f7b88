// All algorithms, for tests that hold for each of them.
#pragma once

#include "wire/collective.h"

namespace herring::collective {

inline constexpr wire::Algorithm kAlgorithms[] = {
    wire::Algorithm::kServer, wire::Algorithm::kTree, wire::Algorithm::kRing,
    wire::Algorithm::kButterfly, wire::Algorithm::kDoubling};
// Those whose schedules keep nothing in a working space.
inline constexpr wire::Algorithm kAlgorithmsInPlace[] = {
    wire::Algorithm::kServer, wire::Algorithm::kTree, wire::Algorithm::kRing,
    wire::Algorithm::kButterfly};

inline uint32_t floor_log2(uint32_t n) { return 31 - __builtin_clz(n); }

}  // namespace herring::collective
