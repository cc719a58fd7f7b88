// The node stage (paper, III-B, steps 1, 2 and 5, in shared memory). The ranks of a group on a node
// each post a buffer. Each rank reduces its slice over all of them, pushes it if there are other
// nodes, and writes the result into everybody's buffer.
//
// Only local rank r accesses slice r of every rank's memory, from the moment when all have posted
// until r says that it is done. So two rounds of small messages are the only synchronization. An
// exchange inside a node works the same way: each rank posts its array and copies its result from
// its neighbours' buffers. Engine thread only.
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

class NodeStage : private links::TransferOwner {
 public:
  using OnFailure = std::function<void(const Status&)>;

  using Options = NodeStageOptions;

  NodeStage(transport::EventLoop& loop, LocalBus& bus, SharedHeap& heap, links::Pusher& pusher,
            Options options, OnFailure on_failure);
  ~NodeStage() override;
  // Adds the bus to the loop. Must be called before the first post().
  void attach();

  void post(NodeTask task);
  // Reports that the adder of a buffer has combined this rank's slice, or has given its result to
  // all ranks of the node.
  void added(const wire::Key& key);
  void given(const wire::Key& key);
  // Tells the peers which of this rank's regions no longer exist, so that they can unmap them.
  void release_regions();
  // Warns about missing ranks, and fails tasks past their deadline. Where servers watch deadlines,
  // too, they have `servers_margin` to report first.
  void check_deadlines(Nanos now, Nanos servers_margin);
  bool busy(uint32_t group) const;
  // Returns whether nothing is done here until a message or a result comes, or this rank posts.
  bool stands_still() const;
  // Returns whether a buffer of the group has still to be pushed to servers.
  bool has_unpushed(uint32_t group) const;
  // Returns whether a buffer of the group cannot complete, because a neighbour ended before its
  // part was done.
  bool waits_for_gone(uint32_t group) const;
  // Returns when a neighbour last sent a message about the group's buffers, or work on one was done
  // here.
  Nanos moved_at(uint32_t group) const;
  // Returns the number of called-off groups with a record.
  size_t known_groups() const { return called_off_.known(); }
  // Ends all tasks of the group, now and later. on_done() is called for each of them when no living
  // neighbour accesses its memory any more. The group's transfers must have been called off.
  void call_off(const std::shared_ptr<const LocalGroup>& group);
  // Handles this rank leaving the group, when none of its tasks is in flight.
  void forget(const LocalGroup& group);
  // Does nothing more for any task, and tells the neighbours so. The tasks stay until clear().
  void stop();
  // Returns whether living neighbours may still access memory that this rank has posted. They say
  // when they do not, which they do when they stop, too.
  bool is_seen() const;
  // Forgets all tasks permanently. Afterwards nothing here accesses anybody's memory.
  void clear();

 private:
  // kCalledOff: the sender no longer accesses memory of this group.
  enum Kind : uint8_t { kPost = 1, kDone = 2, kCalledOff = 3 };
  static constexpr uint8_t kInactive = 1;
  // Bytes reduced on the engine's thread before the loop looks at its events.
  static constexpr size_t kWorkBytes = 512 << 10;

  // A socket of the bus in the loop.
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
  // The slice is combined, so passes it on to the next stage.
  void combined(const std::shared_ptr<NodeWork>& work);
  // Returns whether the slice is combined and not pushed, and all before it in the round are.
  bool may_push(const NodeWork& work);
  // Returns the next part of the same round; null if there is none.
  std::shared_ptr<NodeWork> after(const NodeWork& work);
  bool adds(uint32_t group) const;
  void do_work();
  void schedule_work();
  void push_slice(const std::shared_ptr<NodeWork>& work);
  // The result of the slice is in this rank's memory.
  void result_here(NodeWork& work);
  // Every rank has the result of the slice, or can take it.
  void slice_done(NodeWork& work);
  void maybe_finish(NodeWork& work);
  void let_go(const LocalGroup& group);
  void let_go(uint32_t group, uint32_t local_rank);
  void end_work(const std::shared_ptr<const LocalGroup>& group);
  void settle(uint32_t group);
  void on_result(links::Transfer&, plan::Range range) override;
  void on_transfer_done(links::Transfer&) override;

  transport::EventLoop& loop_;
  LocalBus& bus_;
  SharedHeap& heap_;
  links::Pusher& pusher_;
  const Options options_;
  const OnFailure on_failure_;
  const uint32_t local_size_;
  std::unordered_map<int, BusSocket> sockets_;
  std::unordered_map<wire::Key, std::shared_ptr<NodeWork>, wire::KeyHash> works_;
  Ring<wire::Key> ready_;            // all have posted; to be reduced in this order
  Adders adders_;                    // work on the first of them, if it is large
  CalledOffGroups called_off_;
  bool work_scheduled_ = false;
  bool stopped_ = false, cleared_ = false;
  Nanos moved_ = 0;                  // when a neighbour last sent a message, or work was done here
};

}  // namespace herring
