// A loop that watches the system's descriptors, for the TCP transport and for the sockets between
// the workers of a node.
#pragma once

#include <cstdint>

#include "transport/event_loop.h"

namespace herring::transport {

// What a descriptor is watched for, or is ready for. Its end and its errors count as kForReading
// and are always reported.
enum Readiness : uint32_t { kForReading = 1, kForWriting = 2 };

class DescriptorHandler {
 public:
  virtual ~DescriptorHandler() = default;
  virtual void on_ready(uint32_t readiness) = 0;
};

class DescriptorLoop : public EventLoop {
 public:
  // Throws std::bad_cast for a loop that watches no descriptors.
  static DescriptorLoop& of(EventLoop& loop) { return dynamic_cast<DescriptorLoop&>(loop); }

  // Watches are level-triggered. Loop thread only (or before the loop runs). add() throws
  // std::system_error if the system cannot watch the descriptor.
  virtual void add(int fd, uint32_t readiness, DescriptorHandler* handler) = 0;
  virtual void modify(int fd, uint32_t readiness) = 0;
  virtual void remove(int fd) = 0;
};

}  // namespace herring::transport
