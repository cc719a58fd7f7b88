// What a device does in a schedule whose sums it takes, as data. The array lies on the device. Host
// memory has an image of it: ranges are sent from there, and arrive there. Pure: the code that
// queues the work and the code that follows the schedule read the same pieces.
#pragma once

#include <cstdint>
#include <vector>

#include "collective/schedule.h"

namespace herring::collective {

struct Piece {
  enum class What : uint8_t {
    kOut,     // copy it from the device to the image, to be sent
    kScale,   // multiply what the device has by the prescale factor
    kReduce,  // combine what the device has with what has arrived in the image
    kFinish,  // the same, and it is the last time: divide and scale
    kCopy,    // results have arrived in the image: they replace what the device has
  };
  What what = What::kOut;
  uint32_t step = 0;  // the piece is a part of its range; kScale: 0
  Range range;
  bool operator==(const Piece&) const = default;
};

// The pieces of an array of `bytes` bytes, in the order in which they are queued. A piece that goes
// out waits for all pieces before it that change the device's array. `scales`: there is a prescale
// factor. A range is copied out when it is first sent after a change; results are sent on from the
// image.
//
// The other pieces need not wait for those that go out: a result replaces a contribution only after
// the contribution was sent, because the result contains it.
std::vector<Piece> cut(const Schedule& schedule, size_t bytes, bool scales);

}  // namespace herring::collective
