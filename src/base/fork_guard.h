// Descriptors that must not live on in forked children. CLOEXEC covers fork + exec; a data loader
// forks without exec, and a socket that it inherits stays open after its parent was killed, so that
// the peers would not notice the death. Guarded descriptors are closed in every child of fork().
//
// Memory that is shared between local ranks stays mapped in the child on purpose (no
// MADV_DONTFORK): tensors that lie in an arena may be read by the data loader's workers, and
// an unmapped page would kill them with SIGSEGV. A mapping keeps no peer waiting.
//
// Not covered: children of vfork and posix_spawn (these exec; CLOEXEC covers them) and of a raw
// clone.
#pragma once

#include <cerrno>
#include <cstdint>
#include <utility>

#include "base/fd.h"

namespace herring {

// While a thread holds one, fork() in another thread waits; so a descriptor is either registered
// in the child or does not exist there, and a mutex held only inside a section is free in the
// child. May be nested. Never fork or block inside one.
class ForkSection {
 public:
  ForkSection();
  ~ForkSection();
  ForkSection(const ForkSection&) = delete;
  ForkSection& operator=(const ForkSection&) = delete;
};

// How many forks lie between this process and the one that was executed. Async-signal-safe.
uint32_t fork_generation();

// Owner of a descriptor that fork() closes in the child. An object copied into a child by fork()
// is empty there: get() is -1, and it never closes a number that was meanwhile reused.
class GuardedFd {
 public:
  GuardedFd() = default;
  // Registers `fd`. To leave no gap between creation and registration, use open().
  explicit GuardedFd(UniqueFd fd);
  GuardedFd(GuardedFd&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), generation_(other.generation_) {}
  GuardedFd& operator=(GuardedFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
      generation_ = other.generation_;
    }
    return *this;
  }
  GuardedFd(const GuardedFd&) = delete;
  GuardedFd& operator=(const GuardedFd&) = delete;
  ~GuardedFd() { reset(); }

  // `create` returns a descriptor, or -1 with errno set, without blocking:
  //   auto fd = GuardedFd::open([&] { return ::accept4(listener, nullptr, nullptr, flags); });
  template <typename Create>
  static GuardedFd open(Create&& create) {
    ForkSection section;
    return GuardedFd(UniqueFd(create()));
  }

  int get() const { return fd_ >= 0 && generation_ == fork_generation() ? fd_ : -1; }
  bool valid() const { return get() >= 0; }
  explicit operator bool() const { return valid(); }

  // Closes what is held; keeps errno.
  void reset();
  // The descriptor, no longer guarded.
  UniqueFd release();

 private:
  int fd_ = -1;
  uint32_t generation_ = 0;
};

}  // namespace herring
