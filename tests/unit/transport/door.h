// An acceptor on a thread of its own, which keeps what it accepts and why it refused.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "transport/epoll_loop.h"
#include "transport/tcp/connector.h"

namespace herring::transport::tcp::testing {

inline const Credentials kGood{"the job's secret", wire::job_id("job")};

inline Nanos soon() { return monotonic_now() + 30 * kSecond; }

// It expects every rank but rank 13.
class Door {
 public:
  explicit Door(Acceptor::Limits limits = {}) : Door(kGood, limits) {}
  explicit Door(Credentials credentials, Acceptor::Limits limits = {}) {
    auto listener = listen_on({"127.0.0.1", 0}, 4096);
    EXPECT_TRUE(listener.ok());
    acceptor_ = std::make_unique<Acceptor>(
        thread_, std::move(*listener), std::move(credentials),
        [](const wire::Hello& hello) {
          return hello.rank == 13 ? wire::Verdict::kUnexpected : wire::Verdict::kAccepted;
        },
        [this](Socket fd, const wire::Hello& hello, const Address& peer) {
          std::lock_guard lock(mutex_);
          EXPECT_EQ(peer.host, "127.0.0.1");
          accepted_.emplace_back(std::move(fd), hello);
          changed_.notify_all();
        },
        limits);
    acceptor_->on_refused([this](const Address&, const std::string& why) {
      std::lock_guard lock(mutex_);
      refused_.push_back(why);
      changed_.notify_all();
    });
    thread_.start("test");
  }
  ~Door() { thread_.join(); }

  const Address& address() const { return acceptor_->address(); }
  EventLoop& loop() { return thread_; }
  // Waits until it has accepted and refused as many.
  bool wait(size_t accepted, size_t refused) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), [&] {
      return accepted_.size() >= accepted && refused_.size() >= refused;
    });
  }
  std::vector<std::string> refused() {
    std::lock_guard lock(mutex_);
    return refused_;
  }
  std::vector<std::pair<Socket, wire::Hello>>& accepted() { return accepted_; }
  // Waits for a connection, and gives it away.
  Socket take() {
    EXPECT_TRUE(wait(1, 0));
    std::lock_guard lock(mutex_);
    if (accepted_.empty()) return {};
    Socket first = std::move(accepted_.front().first);
    accepted_.erase(accepted_.begin());
    return first;
  }
  // Waits for a refusal, and returns why.
  std::string refusal() {
    EXPECT_TRUE(wait(0, 1));
    std::lock_guard lock(mutex_);
    return refused_.empty() ? "" : refused_.front();
  }
  bool has_accepted() {
    std::lock_guard lock(mutex_);
    return !accepted_.empty();
  }

 private:
  EpollLoop thread_;
  std::unique_ptr<Acceptor> acceptor_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::pair<Socket, wire::Hello>> accepted_;
  std::vector<std::string> refused_;
};

}  // namespace herring::transport::tcp::testing
