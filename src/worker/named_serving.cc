#include "worker/named.h"

namespace herring::worker {

void NamedOperations::serve(const control::ServerSet&) {}

bool NamedOperations::can_move() const { return operations_.empty(); }

}  // namespace herring::worker
