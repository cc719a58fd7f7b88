// Somebody in the middle of a connection, who sees and may change what passes.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "base/fd.h"
#include "transport/tcp/socket.h"

namespace herring::transport::tcp::testing {

class Relay {
 public:
  // Called with what passes, before it does. Returns false to end both connections there.
  using Touch = std::function<bool(bool from_client, std::string& bytes)>;

  // Waits for one client and connects it with `target`.
  explicit Relay(Address target, Touch touch = {})
      : listener_(std::move(*listen_on({"127.0.0.1", 0}, 1))), touch_(std::move(touch)) {
    thread_ = std::thread([this, target] { run(target); });
  }
  ~Relay() {
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }

  Address address() const { return *local_address(listener_.get()); }
  // Returns all that passed, both ways.
  std::string seen() {
    std::lock_guard lock(mutex_);
    return seen_;
  }

 private:
  void run(const Address& target) {
    pollfd waiting{listener_.get(), POLLIN, 0};
    if (poll(&waiting, 1, 30000) != 1) return;
    const UniqueFd client(accept(listener_.get(), nullptr, nullptr));
    if (client.get() < 0) return;
    const auto server = connect_to(target, "", monotonic_now() + 30 * kSecond);
    if (!server.ok()) return;
    pollfd ends[] = {{client.get(), POLLIN, 0}, {server->get(), POLLIN, 0}};
    while (ends[0].events != 0 || ends[1].events != 0) {
      if (poll(ends, 2, 30000) <= 0) return;
      for (int i = 0; i < 2; ++i) {
        if (ends[i].events == 0 || ends[i].revents == 0) continue;
        char bytes[4096];
        const ssize_t n = recv(ends[i].fd, bytes, sizeof(bytes), 0);
        if (n <= 0) {
          shutdown(ends[1 - i].fd, SHUT_WR);
          ends[i].events = 0;
          ends[i].fd = -1 - ends[i].fd;  // poll() skips it
          continue;
        }
        std::string passing(bytes, n);
        if (touch_ && !touch_(i == 0, passing)) return;
        {
          std::lock_guard lock(mutex_);
          seen_ += passing;
        }
        const int to = i == 0 ? server->get() : client.get();
        for (size_t at = 0; at < passing.size();) {
          const ssize_t sent = send(to, passing.data() + at, passing.size() - at, MSG_NOSIGNAL);
          if (sent < 0 && errno == EAGAIN) {
            pollfd full{to, POLLOUT, 0};
            poll(&full, 1, 1000);
            continue;
          }
          if (sent <= 0) return;
          at += static_cast<size_t>(sent);
        }
      }
    }
  }

  GuardedFd listener_;
  Touch touch_;
  std::mutex mutex_;
  std::string seen_;
  std::thread thread_;
};

}  // namespace herring::transport::tcp::testing
