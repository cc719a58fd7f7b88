// Connects a worker to servers that come while the job runs, on threads of their own.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "control/cluster.h"
#include "control/member.h"
#include "transport/tcp/transport.h"

namespace herring::job {

// One thread calls come() and give_up(), which never block. The destructor gives up what is being
// connected.
class Newcomers {
 public:
  using Connections = std::vector<std::unique_ptr<transport::Connection>>;
  // Called on another thread, once for each replacement that was not dropped.
  using Connected = std::function<void(const control::Replacement&, Result<Connections>)>;

  // `member`: how this worker proves itself.
  Newcomers(control::Member::Options member, transport::tcp::TcpTransport& transport,
            uint32_t rank, uint32_t incarnation, uint32_t flows, Connected connected);
  ~Newcomers();
  Newcomers(const Newcomers&) = delete;
  Newcomers& operator=(const Newcomers&) = delete;

  // Begins to connect to the replacement.
  void come(const control::Replacement& news);
  // The replacement does not come.
  void give_up(const control::Replacement& news);

 private:
  struct Attempt {
    std::atomic<bool> given_up{false}, ended{false};
    std::thread thread;
  };
  Result<Connections> connect(const control::Replacement& news, const Attempt& attempt) const;

  const control::Member::Options member_;
  transport::tcp::TcpTransport& transport_;
  const uint32_t rank_, incarnation_, flows_;
  const Connected connected_;
  const uint32_t generation_;  // a forked child has no threads
  std::map<uint32_t, std::unique_ptr<Attempt>> attempts_;  // by the number of the replacement
};

}  // namespace herring::job
