// A message from a server to one worker, other than a result: a frame on the worker's first flow.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "wire/messages.h"
#include "wire/frame.h"

namespace herring::server {

struct Answer {
  uint32_t rank = 0;
  wire::FrameHeader header;
  std::string payload;
  bool can_wait = false;  // may be delayed for a moment, because the receiver is computing
};

// Returns a kOpError for the call `id`, or for the whole job if `id` is 0.
inline Answer error_answer(uint32_t rank, uint64_t id, const Status& why) {
  return {rank, {.type = wire::FrameType::kOpError},
          encode(wire::OpError{id, why.code(), why.message()})};
}

// Returns a warning for the worker's log.
inline Answer warning_answer(uint32_t rank, std::string text) {
  return {rank, {.type = wire::FrameType::kWarning}, std::move(text)};
}

}  // namespace herring::server
