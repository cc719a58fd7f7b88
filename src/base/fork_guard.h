// Descriptors that must not stay open in forked children. CLOEXEC only covers fork + exec. A data
// loader forks without exec, and a socket that it inherits would stay open after its parent was
// killed, so peers would not notice the death. Children of fork() close guarded descriptors.
//
// Memory that local ranks share stays mapped in the child on purpose (no MADV_DONTFORK). The data
// loader's workers may read tensors that lie in an arena, and an unmapped page would kill them with
// SIGSEGV. A mapping, unlike a socket, keeps no peer waiting.
//
// Children of a raw clone() are not covered. Children of vfork() and posix_spawn() exec, so CLOEXEC
// covers them.
#pragma once

#include <cerrno>
#include <cstdint>
#include <utility>

#include "base/fd.h"

namespace herring {

// While a thread holds a ForkSection, fork() in another thread waits. So a descriptor is either
// registered in the child or does not exist there, and a mutex that is held only inside sections is
// free in the child. Sections may be nested. Never fork or block inside a section.
class ForkSection {
 public:
  ForkSection();
  ~ForkSection();
  ForkSection(const ForkSection&) = delete;
  ForkSection& operator=(const ForkSection&) = delete;
};

// Returns the number of forks between the process that was executed and this one.
// Async-signal-safe.
uint32_t fork_generation();

// Owns a descriptor that fork() closes in the child. The child's copy of the object is empty: get()
// is -1, and the object never closes a descriptor number that has been reused.
class GuardedFd {
 public:
  GuardedFd() = default;
  // Registers `fd`. Use open() to leave no gap between creation and registration.
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

  // `create` must return a descriptor, or -1 with errno set, without blocking:
  //   auto fd = GuardedFd::open([&] { return ::accept4(listener, nullptr, nullptr, flags); });
  template <typename Create>
  static GuardedFd open(Create&& create) {
    ForkSection section;
    return GuardedFd(UniqueFd(create()));
  }

  int get() const { return fd_ >= 0 && generation_ == fork_generation() ? fd_ : -1; }
  bool valid() const { return get() >= 0; }
  explicit operator bool() const { return valid(); }

  // Closes the descriptor, if any; preserves errno.
  void reset();
  // Returns the descriptor, which is no longer guarded.
  UniqueFd release();

 private:
  int fd_ = -1;
  uint32_t generation_ = 0;
};

}  // namespace herring
