// A move-only owner of a file descriptor. Descriptors that a forked child must not keep belong in a
// GuardedFd (base/fork_guard.h).
#pragma once

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace herring {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  explicit operator bool() const { return valid(); }

  int release() { return std::exchange(fd_, -1); }

  // Closes the current descriptor. Preserves errno, so that it may run between a failure and its
  // report.
  void reset(int fd = -1) {
    int old = std::exchange(fd_, fd);
    if (old < 0) return;
    int saved = errno;
    ::close(old);  // Never retried: on Linux the descriptor is gone even after EINTR.
    errno = saved;
  }

 private:
  int fd_ = -1;
};

}  // namespace herring
