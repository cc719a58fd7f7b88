// All algorithms, for tests that hold for each of them.
#pragma once

#include "wire/collective.h"

namespace herring::collective {

inline constexpr wire::Algorithm kAlgorithms[] = {wire::Algorithm::kServer, wire::Algorithm::kTree,
                                                  wire::Algorithm::kRing,
                                                  wire::Algorithm::kButterfly};

}  // namespace herring::collective
