#include "control/running_job.h"

#include <utility>

#include "base/log.h"
#include "control/messages.h"

namespace herring::control {

using wire::FrameType;

RunningJob::RunningJob(transport::EventLoop& loop, const Peers& peers, const Cluster& cluster)
    : peers_(peers),
      cluster_(cluster),
      epoch_(cluster.epoch),
      workers_(cluster.size),
      losses_(loop, [this](std::vector<Loss> losses) { tell(std::move(losses)); }) {}

void RunningJob::tell(std::vector<Loss> losses) {
  epoch_ += static_cast<uint32_t>(losses.size());
  broadcast(peers_, FrameType::kPeerLost, encode(LossNotice{epoch_, std::move(losses)}));
}

std::string RunningJob::describe(const Peer& peer) const {
  return peer.kind == Peer::Kind::kWorker ? cluster_.describe_rank(peer.index)
                                          : cluster_.describe_server(peer.index);
}

void RunningJob::lose(const Peer& peer, const std::string& how) {
  const std::string text = concat(describe(peer), " is lost: ", how);
  log(LogLevel::kInfo, text);
  losses_.add({peer.kind == Peer::Kind::kServer, false, peer.index, text}, peers_.size());
  note_end(peer);
}

void RunningJob::leave(const Peer& peer) {
  log(LogLevel::kInfo, describe(peer), " left the job");
  losses_.add({peer.kind == Peer::Kind::kServer, true, peer.index, {}}, peers_.size());
  peer.channel->send(FrameType::kGoodbye);
  note_end(peer);
}

void RunningJob::abort(const Peer& author, const Status& why) {
  const std::string text = concat(describe(author), ": ", why.message());
  log(LogLevel::kInfo, "the job is aborted by ", text);
  broadcast(peers_, FrameType::kAbort, encode(Status(why.code(), text)), &author);
}

// Servers end when no worker is left.
void RunningJob::note_end(const Peer& gone) {
  if (gone.kind == Peer::Kind::kWorker) --workers_;
  if (ended_ || workers_ > 0) return;
  ended_ = true;
  losses_.flush();
  for (const auto& peer : peers_) {
    if (peer->is_member() && peer->kind == Peer::Kind::kServer) {
      peer->channel->send(FrameType::kGoodbye, {}, kFlagEnd);
    }
  }
}

}  // namespace herring::control
