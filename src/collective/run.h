// One all-reduce that follows a schedule, as a state machine. It determines which frames this rank
// may send, which frames others may send to it, and what happens to received frames. It has no
// sockets and no clock, so tests can drive several runs against each other.
//
// A message travels in frames of kFrameBytes; the last frame is shorter. The receiver grants as
// many frames of a message as it has room for. Room means that all that the receive needs is
// complete for these bytes: nothing there is still to be sent or summed. A receive is open before
// the sender needs the grant. The sender sends frames that are granted and ready. A frame leaves as
// soon as what is needed is complete for its bytes, whatever is still to arrive behind them.
//
// Two ranks that send to one at the same time would fill the queue in front of it. So the second
// gets no grant while the first has more than kReceiveOverlap left to send. A rank does not send to
// two others at the same time either. The earlier step would end later, and delay all ranks that
// wait for it. "Earlier" is what has the lower number in the schedule.
//
// Ranks of one node whose arrays lie elsewhere may need no frames. They exchange cards before
// anything else, and find out which messages the receiver reads where they are. The sender then
// only says how much of a message is there, and the receiver says when it has read the message.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "collective/device_side.h"
#include "collective/instance.h"
#include "collective/schedule.h"
#include "reduce/reduce.h"
#include "transport/transport.h"

namespace herring::collective {

inline constexpr size_t kFrameBytes = 128 << 10;
// A grant queues behind its sender's other frames, so it leaves this many bytes before it is
// needed.
inline constexpr size_t kReceiveOverlap = 320 << 10;
inline constexpr size_t kSendOverlap = 64 << 10;

// A task of a rank. It is the same on all ranks, except for the address of the array.
struct Task {
  uint32_t group = 0, stream = 0, ticket = 0;  // identify the task on every rank
  std::vector<uint32_t> ranks;      // of the job; a member's index is its place here
  std::string name;                 // for messages
  Algorithm algorithm = Algorithm::kRing;
  char* data = nullptr;             // in place
  uint64_t count = 0;
  DType dtype = DType::kFloat32;
  Reduction reduction;
  Schedule schedule;                // of this rank; empty: the algorithm's
  // If not null, the array lies there and is scaled and summed there; `data` is its image.
  std::shared_ptr<DeviceSide> elsewhere;
  // Members with which this rank exchanges cards, if the schedule connects it with them. They have
  // this rank in their lists.
  std::vector<uint32_t> near;
};

class Run {
 public:
  // Carries what a run says to other ranks. Frames of one message must arrive in the order of
  // sending.
  class Wire {
   public:
    virtual ~Wire() = default;
    // Return whether `to` can be reached, and little is queued for it.
    virtual bool ready_for_grant(uint32_t to) = 0;
    virtual bool ready_for_block(uint32_t to) = 0;
    // Grants the first `frames` frames of the message.
    virtual void grant(uint32_t to, uint32_t message, uint32_t frames) = 0;
    // Sends a frame. Its bytes stay unchanged until sent(operation, bytes) is called.
    virtual void block(uint32_t to, uint32_t message, uint32_t frame, const char* data,
                       size_t bytes, uint32_t operation) = 0;
    // For members in Task::near. Used only if `to` is ready for grants.
    virtual void card(uint32_t /*to*/, std::string /*text*/) {}
    // Says that the first `frames` frames of a message are where the receiver reads them.
    virtual void shown(uint32_t /*to*/, uint32_t /*message*/, uint32_t /*frames*/) {}
    virtual void read(uint32_t /*to*/, uint32_t /*message*/) {}
  };

  Run(Task task, uint32_t rank, uint32_t size, Wire& wire);

  // Scales this rank's contribution and sends what can be sent.
  void start();
  // Sends what has become possible. The functions below call it after every report.
  void advance();
  bool done() const {
    return instance_.done() && (!task_.elsewhere || task_.elsewhere->through());
  }

  // Reports of the wire. An error means that the other side breaks the rules.
  Status on_grant(uint32_t from, uint32_t message, uint32_t frames);
  // Says where the frame's bytes go: into the array or, for a sum, into `scratch` of kFrameBytes.
  Status on_block(uint32_t from, uint32_t message, uint32_t frame, size_t bytes, char* scratch,
                  transport::Destinations& out);
  // Reports that `have` bytes of that frame have arrived; the last one ends the frame.
  void on_bytes(uint32_t from, const char* scratch, size_t have);
  void sent(uint32_t operation, size_t bytes);
  // The caller then calls advance().
  Status on_card(uint32_t from, std::string_view text);
  Status on_shown(uint32_t from, uint32_t message, uint32_t frames);
  Status on_read(uint32_t from, uint32_t message);

  const Task& task() const { return task_; }
  std::vector<uint32_t> peers() const;
  bool needs(uint32_t peer) const;  // something is still to be sent or received
  // Returns the ranks that this rank waits for now: those that should send, else those that should
  // grant.
  std::vector<uint32_t> missing() const;
  // Returns whether the DeviceSide has work to do and nothing else can continue.
  bool waits_for_elsewhere() const;

 private:
  // Of an operation.
  struct Progress {
    uint32_t message = 0;  // its number between the two ranks
    uint32_t granted = 0;  // frames, by the receiver
    uint32_t queued = 0;   // frames handed to the wire, or shown
    size_t received = 0;   // bytes of whole frames
    // Bytes for which the operation is complete: they are sent, in their place, or summed. Bytes
    // for a sum are in their place when they are received.
    size_t complete = 0;
  };
  // All messages to and from one other rank, as operations.
  struct Lane {
    std::vector<uint32_t> sends, receives;
    size_t next_send = 0, next_receive = 0;  // the first that is not queued, not received whole
    size_t told_read = 0;                    // the sender knows of so many that they were read
    size_t frame_bytes = 0;                  // of the frame that is arriving
    size_t arrived = 0, reduced = 0;         // of frame_bytes
    bool meets = false, told = false, met = false;  // cards are exchanged; sent; received
    DeviceSide::Shown shown;
    bool waits_for_card() const { return meets && !met; }
  };

  // The pieces of a task whose array lies elsewhere.
  struct Pieces {
    std::vector<Piece> outs, ins;
    std::vector<uint32_t> ins_before;             // for each of the outs
    uint32_t is_out = 0, is_in = 0, arrived = 0;  // counts of pieces
  };

  void look_elsewhere();
  void advance_cards();
  void advance_reads();
  void settle();
  bool advance_sums();
  void advance_grants();
  void advance_sends();
  bool is_shown(const Operation& message) const;
  bool is_read(uint32_t receive) const;
  size_t clear_bytes(uint32_t number) const;
  bool others_are_sending(uint32_t receive) const;
  void reduce_piece(uint32_t sum, size_t offset, const char* from, size_t bytes) const;

  const Task task_;
  const uint32_t size_;
  Wire& wire_;
  const Schedule schedule_;
  Instance instance_;
  std::vector<Progress> progress_;  // by operation
  std::map<uint32_t, Lane> lanes_;
  Pieces pieces_;
  std::unique_ptr<char[]> space_;  // for receives that are kept
};

}  // namespace herring::collective
