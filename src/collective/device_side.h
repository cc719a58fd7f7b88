// The interface to whatever does the sums of a run whose array is not in host memory. The run moves
// bytes of an image of the array. Both sides report their progress as counts of pieces, in the
// order of pieces().
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "collective/pieces.h"

namespace herring::collective {

// Loop thread only.
class DeviceSide {
 public:
  virtual ~DeviceSide() = default;

  virtual const std::vector<Piece>& pieces() const = 0;
  // outs() counts the pieces already copied to the image; ins() counts the other pieces that are
  // done.
  virtual uint32_t outs() const = 0;
  virtual uint32_t ins() const = 0;
  // Returns whether all pieces are done and nothing accesses the image or the array any more.
  virtual bool through() const = 0;
  // Returns why no more pieces will be done; ok if work goes on.
  virtual Status failure() const = 0;
  // Says that the input of the first `ins` pieces that are not copies to the image has arrived
  // there, so they may be done.
  virtual void arrived(uint32_t ins) = 0;
  // Two ranks of one node may read each other's memory there, without images in host memory. They
  // exchange cards, which say what each has and can reach. The card of a rank without a DeviceSide
  // is empty.
  virtual std::string card_for(uint32_t /*peer*/) { return {}; }
  // Which of the messages that are exchanged with that rank take this way. Both ranks find the
  // same. outs() then means that bytes are where the other rank reads them. arrived() means that
  // the other rank has them there.
  struct Shown {
    bool sends = false, receives = false;
  };
  virtual Result<Shown> meet(uint32_t /*peer*/, std::string_view /*card*/) { return Shown{}; }
  // `call` is called whenever a result of the functions above may have changed. An empty function
  // ends that.
  virtual void on_progress(std::function<void()> call) = 0;
};

}  // namespace herring::collective
