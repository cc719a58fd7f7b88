// What a rank does that has joined: it waits until all have, and meanwhile takes part in their
// all-reduces, to which it adds nothing: what its neighbours on the node give goes on through it,
// and the servers' results go by it. Engine thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "wire/frame.h"
#include "worker/operation.h"

namespace herring::worker {

class EngineCore;

class Joins {
 public:
  Joins(EngineCore& engine, NamedOperations& named) : engine_(engine), named_(named) {}

  void start(Operation& join);
  // This server says that all have joined.
  void on_reply(Operation& join, uint32_t server, std::vector<uint64_t> counts);
  // A server has an error for it.
  void on_error(Operation& join, const Status& why);
  // When nothing of others is left.
  void fail(Operation& join, const Status& why);
  // Takes part in what another rank of the group has announced. kProtocol: it cannot.
  Status take_part(const wire::FrameHeader& header, std::string_view announced);
  // An all-reduce of others is over, or a join may be.
  void settle(uint32_t group);

 private:
  EngineCore& engine_;
  NamedOperations& named_;
};

}  // namespace herring::worker
