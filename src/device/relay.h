// What a device does for one array whose pieces travel between ranks. It copies the pieces that are
// sent to host memory, and a kernel combines the pieces that have arrived there with the array. A
// user thread queues all of this at once. From then on the device and the threads that move bytes
// tell each other their progress by flags.
//
// The two streams of a relay wait for what other ranks send. So each array in flight has its own
// relay: other ranks may have started theirs in another order.
//
// A relay may have an image on the device, which GPUs of the node's other ranks can read. Pieces
// then need not go through host memory. Which way they take is known only when both ranks have told
// what they can reach. So kernels for both ways are queued, and commands tell them what to do.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "device/copier.h"
#include "device/images.h"

namespace herring::device {

class Relay : public std::enable_shared_from_this<Relay> {
 public:
  // A piece that goes out waits for all pieces before it in the list. A sum waits only for the sums
  // before it.
  struct Piece {
    bool out = false;
    Copy copy;             // of a piece that goes out
    Combination sum;       // of any other piece; the relay sets the command
    bool divides = false;  // whether the sum is divided by the divisor
    // If not kOneWay, choose() says which way the piece takes. A piece that goes out then runs
    // `sum`, which copies to the image on the device, or `to_host`. Another one uses some of the
    // sources of `sum`.
    uint32_t way = kOneWay;
    Combination to_host;
    uint32_t blocks = 0;   // of each kernel; 0: few, as the link is the limit
  };
  static constexpr uint32_t kOneWay = ~0u;
  static constexpr uint32_t kMostWays = 12;

  // `flags` and `watcher` must outlive the relay.
  static Result<std::shared_ptr<Relay>> create(Flags& flags, Watcher& watcher);
  // Must be called only when everything that was queued is through.
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // Queues all pieces. Must run on a thread that may call the driver, when nothing is under way.
  // The device begins when the producers have made the array. `moved` is called on the watcher's
  // thread after each piece, and when everything is through. A kDevice error carries the driver's
  // message; then nothing touches the array any more, or the relay is lost. If the device has not
  // come to what was queued, `moved` and the relay are kept forever, as the copier's memory is.
  Status queue(const std::vector<Stream>& producers, Kernel kernel, double divisor,
               const std::vector<Piece>& pieces, const Watcher::Then& moved);

  // Any thread may call the functions from here to stop(). outs() is how many outgoing pieces are
  // in host memory. ins() is how many of the other pieces are done, plus one when everything is
  // through.
  uint32_t outs() const { return outs_.word->load(std::memory_order_acquire) - first_out_; }
  uint32_t ins() const { return ins_.word->load(std::memory_order_acquire) - first_in_; }
  // Returns whether nothing touches the array or host memory any more, or the device is lost.
  bool through() const;
  bool is_lost() const { return lost_.load(); }
  // Tells the device that the first `ins` incoming pieces have arrived.
  void arrived(uint32_t ins);
  // Tells which way pieces take: whether those that go out stay on the device, and which sources
  // (bits) the others use. Must be called once for each way, before their arrival is told.
  void choose(uint32_t way, bool stays, uint32_t sources);
  // Makes sums that have not begun touch nothing, so that no stream waits for pieces that do not
  // arrive. Neighbours may still read the image, so nobody writes to it any more.
  void stop();

  // Runs the kernel over no elements and waits for it. Drivers load a kernel at its first launch,
  // and may then wait until the device is idle. Nobody else may hold the relay.
  Status try_kernel(Kernel kernel);
  // Makes sure that there is an image of at least so many bytes, and flags for ways. Must run while
  // no stream waits for other ranks, and nobody else may hold the relay.
  Status share(size_t bytes);
  // Returns whether share() has something to do, and has not failed for so many bytes before.
  bool should_share(size_t bytes) const;
  // Returns null if there is no image.
  const Image* image() const { return stopped_.load() ? nullptr : image_.get(); }
  // Returns an error that the device is in; the relay is then stopped, and `moved` is told. Must
  // run on a thread that may call the driver.
  Status check();
  // Runs `call` if nothing is under way, and holds up new work meanwhile.
  void while_idle(const std::function<void()>& call);

 private:
  Relay(Flags& flags, Watcher& watcher)
      : device_(flags.device()), watcher_(watcher), flags_(flags) {}
  Status open();
  Status queue_pieces(const std::vector<Stream>& producers, Kernel kernel,
                      const std::vector<Piece>& pieces);
  // A choice for some of the pieces.
  struct PieceRoute {
    Flag chosen;
    uint32_t value = 0;         // that means that the choice is made
    Flag to_image, to_host, in;  // commands, in registered memory
  };
  Status queue_out(Kernel kernel, const Piece& piece, uint32_t outs);
  Status queue_kernel(Kernel kernel, const Piece& piece, Combination what, const Flag& line,
                      Address command, Stream stream);
  void tell_commands(double divisor, const std::vector<Piece>& pieces);
  // Waits until nothing that was queued is under way, but not beyond the deadline. Otherwise the
  // relay is lost, and keeps `owner` and itself forever if the device may still come to it.
  void give_up(Nanos deadline, const Status& why, Watcher::Then owner);

  Device& device_;
  Watcher& watcher_;
  Flags& flags_;
  std::mutex mutex_;  // guards the order of what is queued
  Stream outs_stream_ = 0, ins_stream_ = 0;
  Event event_ = 0;
  Flag outs_, ins_, arrived_;     // count pieces, across all arrays of the relay
  std::array<Flag, 2> commands_;  // in registered memory: for plain sums, and for sums that divide
  Address command_ = 0;           // two, on the device, for kernels that run in the two streams
  std::vector<PieceRoute> ways_;  // kMostWays, or none before share()
  std::vector<Flag> spare_;       // for ways, if share() has failed
  std::unique_ptr<Image> image_;
  size_t refused_ = ~size_t{0};   // for an image of so many bytes there was no memory
  uint32_t first_out_ = 0, first_in_ = 0, first_arrived_ = 0;
  uint32_t all_ins_ = 0;
  std::atomic<bool> queued_{false};  // all pieces are queued
  std::atomic<bool> lost_{false};
  std::atomic<bool> stopped_{false};  // since the image was made
};

}  // namespace herring::device
