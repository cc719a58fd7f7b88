// The node stage (paper, III-B, steps 1, 2 and 5, in shared memory): a group's ranks on a node post
// a buffer, each reduces its slice over all of them, pushes it if there are other nodes, and
// writes the result into everybody's buffer.
//
// Slice r of every rank's memory is read and written by local rank r alone between the moment that
// all have posted and the moment that r says done; so two rounds of small messages are all the
// synchronization there is. An exchange inside a node goes the same way: each rank posts what it
// has, and takes from its neighbours' buffers what it gets. Engine thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>

#include "base/ring.h"
#include "node/adders.h"
#include "node/called_off.h"
#include "node/local_bus.h"
#include "node/node_work.h"
#include "transport/descriptor_loop.h"

namespace herring {

class NodeStage : private TransferOwner {
 public:
  using OnFailure = std::function<void(const Status&)>;

  using Options = NodeStageOptions;

  NodeStage(transport::EventLoop& loop, LocalBus& bus, SharedHeap& heap, Pusher& pusher,
            Options options, OnFailure on_failure);
  ~NodeStage() override;
  // Puts the bus into the loop; before the first post().
  void attach();

  void post(NodeTask task);
  // The adder of a buffer is through.
  void added(const wire::Key& key);
  // The regions that are gone can be let go by the peers.
  void release_regions();
  // Who is missing for how long; fails what is past its deadline. Where servers keep deadlines too,
  // they have `servers_margin` to say so first.
  void check_deadlines(Nanos now, Nanos servers_margin);
  bool busy(uint32_t group) const;
  // A buffer of the group has still to be pushed to servers.
  bool has_unpushed(uint32_t group) const;
  // A buffer of the group cannot be completed: a neighbour has ended without its part.
  bool waits_for_gone(uint32_t group) const;
  // When neighbours last said something of the group's buffers, or one was worked on here.
  Nanos moved_at(uint32_t group) const;
  // Groups of which something is kept.
  size_t known_groups() const { return called_off_.known(); }
  // Ends all tasks of the group, now and later: on_done() is called for each when no neighbour that
  // lives touches its memory any more. The group's transfers were called off.
  void call_off(const std::shared_ptr<const LocalGroup>& group);
  // This rank leaves the group; none of its tasks is in flight.
  void forget(const LocalGroup& group);
  // Forgets all tasks, for good: afterwards nothing here touches anybody's memory.
  void clear();

 private:
  // kCalledOff: the sender touches no memory of this group any more.
  enum Kind : uint8_t { kPost = 1, kDone = 2, kCalledOff = 3 };
  static constexpr uint8_t kInactive = 1;
  // Reduced on the engine's thread before the loop looks at its events.
  static constexpr size_t kWorkBytes = 512 << 10;

  // One socket of the bus in the loop.
  struct BusSocket : transport::DescriptorHandler {
    void on_ready(uint32_t readiness) override;
    LocalBus* bus = nullptr;
    int fd = -1;
  };

  NodeWork& work_of(const wire::Key& key);
  NodeWork* find(const wire::Key& key);
  void on_message(const LocalMessage& message);
  void on_closed(uint32_t local_rank, const Status& why);
  void send(const NodeWork& work, LocalMessage message);
  void all_posted(NodeWork& work);
  Status tell_posted(const NodeWork& work);
  // Its slice is combined: the next stage has it.
  void combined(const std::shared_ptr<NodeWork>& work);
  bool adds(uint32_t group) const;
  void do_work();
  void schedule_work();
  void push_slice(const std::shared_ptr<NodeWork>& work);
  void slice_done(NodeWork& work);
  void maybe_finish(NodeWork& work);
  void let_go(const LocalGroup& group);
  void settle(uint32_t group);
  void on_result(Transfer&, plan::Range range) override;
  void on_transfer_done(Transfer&) override;

  transport::EventLoop& loop_;
  LocalBus& bus_;
  SharedHeap& heap_;
  Pusher& pusher_;
  const Options options_;
  const OnFailure on_failure_;
  const uint32_t local_size_;
  std::unordered_map<int, BusSocket> sockets_;
  std::unordered_map<wire::Key, std::shared_ptr<NodeWork>, wire::KeyHash> works_;
  Ring<wire::Key> ready_;            // all posted, to be reduced in this order
  Adders adders_;                    // at the first of them, if it is large
  CalledOffGroups called_off_;
  bool work_scheduled_ = false;
  bool cleared_ = false;
  Nanos moved_ = 0;                  // when a neighbour last said something, or work was done here
};

}  // namespace herring
