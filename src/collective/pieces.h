// Describes as data what a device does in a schedule whose sums it takes. The array lies on the
// device, and host memory has an image of it. Ranges are sent from the image and received into it.
// Pure: the code that queues the work and the code that follows the schedule use the same pieces.
#pragma once

#include <cstdint>
#include <vector>

#include "collective/schedule.h"

namespace herring::collective {

struct Piece {
  enum class What : uint8_t {
    kOut,     // copy the range from the device to the image, to be sent
    kScale,   // multiply the device's data by the prescale factor
    kReduce,  // combine the device's data with data that has arrived in the image
    kFinish,  // like kReduce, for the last time: also divide and scale
    kCopy,    // results in the image replace the device's data
  };
  What what = What::kOut;
  uint32_t operation = 0;  // the message of whose range the piece is a part; 0 for kScale
  Range range;
  bool operator==(const Piece&) const = default;
};

// Returns the pieces of an array of `bytes` bytes, in the order in which they are queued. A piece
// that copies to the image waits for all earlier pieces that change the device's array. `scales`:
// there is a prescale factor. A range is copied to the image when it is first sent after a change;
// results are forwarded from the image.
//
// The other pieces need not wait for copies to the image. A result replaces a contribution only
// after the contribution was sent, because the result contains it.
//
// The data of a message that is in `near` may not go through the image. So all of what it sends is
// copied again, and what it receives is not in the image. The schedule keeps nothing of what it
// receives in a working space.
std::vector<Piece> cut(const Schedule& schedule, size_t bytes, bool scales,
                       const std::vector<bool>& near = {});

}  // namespace herring::collective
