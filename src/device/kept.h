// Memory that a device may still use when nothing of Herring does.
#pragma once

#include <memory>
#include <utility>

namespace herring::device {

void keep_for_ever(std::shared_ptr<const void> owner);

template <typename Owner>
void keep_for_ever(Owner owner) {
  keep_for_ever(std::shared_ptr<const void>(std::make_shared<Owner>(std::move(owner))));
}

}  // namespace herring::device
