// Members of a job that are not there: what they would be sent is kept, and time passes by hand.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "control/cluster.h"
#include "control/peer.h"

namespace herring::control::testing {

// A loop without a thread. advance() runs what is due, each thing at its time.
class ManualLoop final : public transport::EventLoop {
 public:
  Nanos now() const override { return now_; }
  void start(const std::string&) override {}
  void join() override {}
  bool in_loop_thread() const override { return true; }
  bool here() const override { return true; }
  bool has_thread() const override { return false; }
  bool post_before_drive(Task task) override { return post(std::move(task)); }
  bool drive(Nanos, const std::function<bool()>&) noexcept override { return false; }
  void rouse_driver() override {}

  void advance(Nanos by) {
    const Nanos until = now_ + by;
    run_tasks();
    while (next_timer() <= until) {
      now_ = std::max(now_, next_timer());
      run_timers();
      run_tasks();
    }
    now_ = until;
  }

 private:
  void wake() override {}
  void stop_now() override {}

  Nanos now_ = 1000 * kSecond;
};

struct Sent {
  wire::FrameType type;
  uint8_t flags;
  std::string payload;
};

// Keeps what is sent.
class KeepingFlow final : public transport::Flow {
 public:
  explicit KeepingFlow(std::vector<Sent>& sent) : sent_(sent) {}
  void send(const wire::FrameHeader&, const iovec*, int, uint64_t) override {}
  void lend(const wire::FrameHeader&, const iovec*, int) override {}
  void send_owned(wire::FrameHeader header, std::string payload) override {
    sent_.push_back({header.type, header.flags, std::move(payload)});
  }
  size_t backlog() const override { return 0; }
  void close(Status) override { closed_ = true; }
  void abandon() override { closed_ = true; }
  void finish(bool) override { closed_ = true; }
  bool closed() const override { return closed_; }
  const transport::FlowCounters& counters() const override { return counters_; }
  transport::PathInfo path_info() const override { return {}; }
  const std::string& peer() const override { return peer_; }

 private:
  std::vector<Sent>& sent_;
  bool closed_ = false;
  const transport::FlowCounters counters_;
  const std::string peer_ = "nobody";
};

// Ranks of one host, and dedicated servers of another one.
class Members : private Channel::Owner {
 public:
  Members(uint32_t ranks, uint32_t servers) {
    cluster.size = ranks;
    cluster.nodes = 1;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      cluster.workers.push_back({rank, 0, rank, "host", 100 + rank, ""});
      add(Peer::Kind::kWorker, rank, 100 + rank);
    }
    for (uint32_t index = 0; index < servers; ++index) {
      cluster.servers.push_back({index, true, ~0u, "server:7000", 1.0 / servers});
      add(Peer::Kind::kServer, index, 200 + index);
    }
  }

  Peer& rank(uint32_t index) { return *peers[index]; }
  Peer& server(uint32_t index) { return *peers[cluster.size + index]; }
  // Takes what was sent to a member.
  std::vector<Sent> sent_to(const Peer& peer) {
    return std::exchange(*static_cast<std::vector<Sent>*>(peer.channel->user), {});
  }
  // Takes what of one type was sent to a member, and drops the rest.
  std::vector<Sent> sent_to(const Peer& peer, wire::FrameType type) {
    std::vector<Sent> found = sent_to(peer);
    std::erase_if(found, [type](const Sent& one) { return one.type != type; });
    return found;
  }

  ManualLoop loop;
  Peers peers;
  Cluster cluster;

 private:
  class Keeping final : public transport::Connection {
   public:
    explicit Keeping(std::vector<Sent>& sent) : sent_(sent) {}
    std::unique_ptr<transport::Flow> open(transport::EventLoop&, transport::FlowHandler&,
                                          transport::Traffic) override {
      return std::make_unique<KeepingFlow>(sent_);
    }

   private:
    std::vector<Sent>& sent_;
  };

  void add(Peer::Kind kind, uint32_t index, int64_t pid) {
    auto peer = std::make_unique<Peer>();
    std::vector<Sent>& sent = *sent_.emplace_back(std::make_unique<std::vector<Sent>>());
    Keeping connection(sent);
    Channel::Owner& owner = *this;
    peer->channel = std::make_unique<Channel>(loop, connection, 1 << 20, owner);
    peer->channel->user = &sent;
    peer->kind = kind;
    peer->index = index;
    peer->pid = pid;
    peers.push_back(std::move(peer));
  }
  Status on_message(Channel&, wire::FrameType, uint8_t, std::string_view) override { return {}; }
  void on_dropped(Channel&, const Status&) override {}

  std::vector<std::unique_ptr<std::vector<Sent>>> sent_;
};

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "herring-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::string read_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace herring::control::testing
