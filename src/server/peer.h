// One flow of one worker, as the worker's proxy sees it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/ring.h"
#include "server/aggregator.h"
#include "transport/delivery.h"
#include "transport/event_loop.h"
#include "transport/transport.h"

namespace herring::server {

class Server;
class Proxy;

// Maximum number of streams that one flow may carry. Each plan, each series and, in each group,
// each server has one.
inline constexpr size_t kMostStreams = 1 << 16;
// Records of up to this many idle streams are kept, so that frames do not allocate memory.
inline constexpr size_t kStreamsKept = 256;

class Peer : public transport::FlowHandler {
 public:
  Peer(Server& server, Proxy& proxy, uint32_t rank, uint32_t number);
  ~Peer() override;

  void start(std::unique_ptr<transport::Flow> flow) { flow_ = std::move(flow); }
  Proxy& proxy() { return proxy_; }
  transport::EventLoop& loop();  // its proxy's
  uint32_t rank() const { return rank_; }
  uint32_t number() const { return number_; }  // among the flows of its worker
  // Queues the slot's result, or only its acknowledgement, for this worker. Proxy's thread.
  void queue_result(Slot& slot, bool with_payload);
  void send(const wire::FrameHeader& header, std::string payload);
  bool quiet() const { return results_.empty() && flow_->backlog() == 0; }
  transport::PathInfo path_info() const { return flow_->path_info(); }
  uint32_t poll_losses(const transport::PathInfo& path) {
    return static_cast<uint32_t>(losses_.poll(path));
  }
  // Ends the flow, because its worker is dead. Proxy's thread.
  void drop();
  const transport::FlowCounters& counters() const { return flow_->counters(); }
  // Sends nothing more; reads and drops what still arrives.
  void finish() { flow_->finish(); }
  // Returns the number of bytes that have not reached the worker yet; see transport::undelivered().
  size_t undelivered() const { return transport::undelivered(*flow_); }
  size_t undelivered(const transport::PathInfo& path) const {
    return transport::undelivered(*flow_, path);
  }
  // Makes sure that lent memory which has not left the system never does.
  void abandon() { flow_->abandon(); }
  // Returns the number of streams with a record.
  size_t streams() const { return outstanding_of_.size(); }

  Status on_header(transport::Flow&, const wire::FrameHeader&, transport::Destinations&) override;
  void on_payload(transport::Flow&, const wire::FrameHeader&, size_t received) override;
  Status on_frame(transport::Flow&, const wire::FrameHeader&) override;
  void on_sent(transport::Flow&, uint64_t token) override;
  void on_closed(transport::Flow&, const Status& why) override;

 private:
  struct Result {
    Slot* slot = nullptr;
    bool with_payload = false;
  };

  static uint32_t workers_in(const Slot& slot);
  Status begin_frame(const wire::FrameHeader& header, transport::Destinations& out);
  // Receives the payload of a frame that is not data, or of one that is dropped.
  Status take_payload(const wire::FrameHeader& header, transport::Destinations& out);
  Status begin_data(const wire::FrameHeader& header, transport::Destinations& out);
  void complete_segments(size_t up_to);
  void answer_without_result(const wire::FrameHeader& data);
  void steer(JobGroup& group, const wire::FrameHeader& header);
  bool within_credit(const Key& key, size_t of_stream, size_t count) const;
  Status taken(uint32_t taken);
  void answered(const Key& key, uint32_t segments);
  void forget_idle_streams();
  void release(Ring<Slot*>& slots, size_t count);
  void release_queued();
  void release_all();
  void expel(const Status& why);
  void flush_results();

  Server& server_;
  Proxy& proxy_;
  const uint32_t rank_, number_;
  std::unique_ptr<transport::Flow> flow_;

  // State of the data frame being received.
  size_t piece_bytes_ = 0;     // of each but the last
  Slot* slots_[transport::Destinations::kMaxPieces];
  uint32_t segments_complete_ = 0, segments_total_ = 0;
  // Unless it is kTaken, the frame is only read, and answered without a result.
  Aggregator::Begun begun_ = Aggregator::Begun::kTaken;
  std::string control_;  // payload of a frame that is not data or is not taken
  bool expelled_ = false;  // the worker broke the protocol: whatever it sends is read and dropped
  std::optional<Key> opened_;  // described by the last frame; the next must be its data

  Ring<Result> results_;    // combined, not yet given to the flow
  Ring<Slot*> in_flight_;   // given to the flow, not yet sent
  Ring<Slot*> lent_;        // given to the flow, not yet read by the worker
  uint32_t taken_ = 0;      // segments of lent results that the worker has read, modulo 2^32
  transport::EventLoop::Task flush_task_;
  bool flush_scheduled_ = false;
  // Segments received and not yet answered (for lent results: not yet read), in all and by stream.
  size_t outstanding_ = 0;
  std::unordered_map<Key, uint32_t, wire::KeyHash> outstanding_of_;
  size_t streams_kept_ = kStreamsKept;  // beyond this number, records of idle streams are dropped
  uint32_t last_signals_ = 0;
  transport::LossCounter losses_;
};

}  // namespace herring::server
