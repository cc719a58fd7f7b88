// The processes connected to the rendezvous, and their roles.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "control/channel.h"
#include "control/member.h"
#include "observe/roster.h"

namespace herring::control {

struct Peer {
  // A spare is a server that waits for a place in a job.
  enum class Kind { kUnknown, kWorker, kServer, kSpare };

  std::unique_ptr<Channel> channel;
  std::string host;   // the peer's address without port
  std::string host_name;  // what its system calls itself; empty if that is not known
  Nanos accepted = 0;
  Kind kind = Kind::kUnknown;  // kUnknown until a registration is accepted
  bool gone = false;           // left, lost or refused: ignored from then on
  int64_t pid = 0;
  WorkerRegistration worker;
  ServerRegistration server;
  uint32_t index = ~0u;  // rank, or the server's index once it is known
  Nanos beat_sent = 0, beat_received = 0;  // of its latest heartbeat, in its clock and in ours

  bool is_member() const { return (kind == Kind::kWorker || kind == Kind::kServer) && !gone; }
};

inline observe::Process process_of(const Peer& peer) {
  return {peer.kind == Peer::Kind::kServer, peer.index};
}

using Peers = std::vector<std::unique_ptr<Peer>>;

// Sends a message to all members except one.
inline void broadcast(const Peers& peers, wire::FrameType type, const std::string& payload,
                      const Peer* except = nullptr) {
  for (const auto& peer : peers) {
    if (peer.get() != except && peer->is_member()) peer->channel->send(type, payload);
  }
}

// Returns the error that drops a peer that sent `what`.
inline Status nonsense(const std::string& what) {
  return breach("it sent ", what);
}

}  // namespace herring::control
