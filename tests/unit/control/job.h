// A job's control plane inside one test process.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "control/member.h"
#include "control/rendezvous.h"
#include "transport/tcp/socket.h"
#include "wire/frame.h"

namespace herring::control::testing {

// Waits that must succeed get this generous limit. Tests that wait for a timeout choose a short
// one.
inline constexpr Nanos kPatience = 600 * kSecond;

inline transport::Credentials credentials(const std::string& secret = "a test's secret") {
  return {secret, wire::job_id("test")};
}

// Sends one frame over a raw socket, the `number`-th of its connection.
inline void send_frame(int fd, wire::FrameType type, const std::string& payload,
                       uint32_t claimed = ~0u, uint64_t number = 1) {
  wire::FrameHeader header;
  header.type = type;
  header.payload = claimed != ~0u ? claimed : static_cast<uint32_t>(payload.size());
  header.check = wire::check_of(header, number);
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  bytes += payload;
  ASSERT_EQ(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
}

class Job {
 public:
  explicit Job(uint32_t size, uint32_t dedicated = 0, Nanos connect_timeout = kPatience,
               Nanos heartbeat_interval = 250 * kMillisecond,
               Nanos heartbeat_timeout = 10 * kSecond, bool failover = false)
      : size_(size), dedicated_(dedicated) {
    auto listener = transport::tcp::listen_on({"127.0.0.1", 0}, 128);
    EXPECT_TRUE(listener.ok()) << listener.status().to_string();
    address_ = *transport::tcp::local_address(listener->get());
    options_.rendezvous = address_;
    options_.credentials = credentials();
    options_.connect_timeout = connect_timeout;
    options_.heartbeat_interval = heartbeat_interval;
    options_.heartbeat_timeout = heartbeat_timeout;
    RendezvousOptions hosting;
    static_cast<Timings&>(hosting) = options_;
    hosting.credentials = credentials();
    hosting.size = size;
    hosting.dedicated_servers = dedicated;
    hosting.failover = failover;
    auto started = Rendezvous::start(std::move(*listener), hosting);
    EXPECT_TRUE(started.ok()) << started.status().to_string();
    rendezvous_ = std::move(*started);
  }

  WorkerRegistration worker(uint32_t rank, const std::string& host = "host") const {
    WorkerRegistration registration;
    registration.rank = rank;
    registration.size = size_;
    registration.dedicated_servers = dedicated_;
    registration.host_id = host;
    registration.bus = "bus " + std::to_string(rank);
    registration.settings = {{"from", std::to_string(rank)}};
    return registration;
  }

  using Joined = Result<std::unique_ptr<Member>>;

  // Joins on a thread of its own. If a colocated server is asked for, it joins too.
  std::future<Joined> join(WorkerRegistration registration) {
    return std::async(std::launch::async, [this, registration] {
      return Member::join(options_, registration, [this](const Cluster&, uint32_t node) {
        ServerRegistration server;
        server.dedicated = false;
        server.node = node;
        server.port = static_cast<uint16_t>(5000 + node);
        std::lock_guard lock(mutex_);
        servers_.push_back(join(server));
        return Status();
      });
    });
  }
  std::future<Joined> join(ServerRegistration registration) {
    return std::async(std::launch::async,
                      [this, registration] { return Member::join(options_, registration); });
  }

  Member::Options& options() { return options_; }
  Rendezvous& rendezvous() { return *rendezvous_; }
  std::unique_ptr<Rendezvous>& rendezvous_pointer() { return rendezvous_; }
  std::vector<std::future<Joined>>& colocated() { return servers_; }

 private:
  uint32_t size_, dedicated_;
  transport::Address address_;
  Member::Options options_;
  std::unique_ptr<Rendezvous> rendezvous_;
  std::mutex mutex_;
  std::vector<std::future<Joined>> servers_;
};

// A job of `size` workers and one dedicated server on one host. All of them have joined.
struct Running {
  explicit Running(uint32_t size, Nanos interval = 250 * kMillisecond,
                   Nanos timeout = 10 * kSecond)
      : job(size, 1, kPatience, interval, timeout) {
    std::vector<std::future<Job::Joined>> joining;
    for (uint32_t rank = 0; rank < size; ++rank) joining.push_back(job.join(job.worker(rank)));
    ServerRegistration registration;
    registration.port = 7000;
    auto serving = job.join(registration);
    for (auto& one : joining) {
      auto joined = one.get();
      EXPECT_TRUE(joined.ok()) << joined.status().to_string();
      workers.push_back(std::move(*joined));
    }
    auto joined = serving.get();
    EXPECT_TRUE(joined.ok()) << joined.status().to_string();
    server = std::move(*joined);
  }

  Job job;
  std::vector<std::unique_ptr<Member>> workers;
  std::unique_ptr<Member> server;
};

// Records what a member is told, and waits for it. A Witness may be destroyed before its member.
class Witness {
 public:
  explicit Witness(Member& member) {
    member.watch([notes = notes_](const Loss& loss) {
      notes->add([&] { notes->losses.push_back(loss); });
    }, [notes = notes_](const Status& why) {
      notes->add([&] { notes->aborts.push_back(why.message()); });
    }, [notes = notes_](Member::End end) {
      notes->add([&] {
        ++notes->ends;
        notes->end = end;
      });
    },
    [notes = notes_](const Replacement& news) {
      notes->add([&] { notes->replacements.push_back(news); });
    });
  }

  bool wait_losses(size_t count) {
    return notes_->wait([&](const Notes& notes) { return notes.losses.size() >= count; });
  }
  bool wait_aborts(size_t count) {
    return notes_->wait([&](const Notes& notes) { return notes.aborts.size() >= count; });
  }
  bool wait_replacements(size_t count) {
    return notes_->wait([&](const Notes& notes) { return notes.replacements.size() >= count; });
  }
  bool wait_end() {
    return notes_->wait([](const Notes& notes) { return notes.ends > 0; });
  }
  std::vector<Loss> losses() {
    std::lock_guard lock(notes_->mutex);
    return notes_->losses;
  }
  std::vector<std::string> aborts() {
    std::lock_guard lock(notes_->mutex);
    return notes_->aborts;
  }
  std::vector<Replacement> replacements() {
    std::lock_guard lock(notes_->mutex);
    return notes_->replacements;
  }
  Member::End end() {
    std::lock_guard lock(notes_->mutex);
    return notes_->end;
  }
  int ends() {
    std::lock_guard lock(notes_->mutex);
    return notes_->ends;
  }

 private:
  struct Notes {
    template <typename Change>
    void add(Change change) {
      std::lock_guard lock(mutex);
      change();
      changed.notify_all();
    }
    template <typename Predicate>
    bool wait(Predicate predicate) {
      std::unique_lock lock(mutex);
      return changed.wait_for(lock, std::chrono::nanoseconds(kPatience),
                              [&] { return predicate(*this); });
    }

    std::mutex mutex;
    std::condition_variable changed;
    std::vector<Loss> losses;
    std::vector<std::string> aborts;
    std::vector<Replacement> replacements;
    int ends = 0;
    Member::End end = Member::End::kAllLeft;
  };
  std::shared_ptr<Notes> notes_ = std::make_shared<Notes>();
};

}  // namespace herring::control::testing
