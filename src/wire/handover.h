// What the ranks tell a server that begins to answer for the names of a home (kHandOver), because
// the server that did so is gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "wire/frame.h"

namespace herring::wire {

// The number of an answer: all ranks of a group get the answers to one call with one number, and
// the calls of a home are numbered in the order in which they are answered. 0: not numbered.
inline uint64_t answer_number(const FrameHeader& header) {
  return uint64_t{header.first_segment} << 32 | header.buffer;
}
inline void set_answer_number(FrameHeader& header, uint64_t number) {
  header.buffer = static_cast<uint32_t>(number);
  header.first_segment = static_cast<uint32_t>(number >> 32);
}

// An answer that a rank has received. It may have been lost on its way to others.
struct KeptAnswer {
  uint64_t number = 0;
  FrameType type = FrameType::kReply;  // kGo, kReply or kOpError
  uint32_t stream = 0, ticket = 0;     // of a kGo
  std::string name;                    // of the call
  std::string text;                    // the payload behind the ID
  // Only in an all-to-all, where answers differ: the elements that this rank has for each rank.
  std::vector<uint64_t> own;
  // Of a kGo in which ranks take part that have joined: the call as one rank announces it.
  std::string call;

  size_t bytes() const {
    return name.size() + text.size() + own.size() * sizeof(uint64_t) + call.size() +
           sizeof(KeptAnswer);
  }
};

// A send and a receive that have met, as one of their ranks knows. The other may not have heard.
struct Met {
  uint64_t own = 0;                 // the ID of this rank's call
  uint32_t other = 0;               // index of the other rank
  uint64_t others = 0;              // the ID of its call
  FrameType type = FrameType::kGo;  // or kOpError: the two do not fit
  uint32_t stream = 0, ticket = 0;  // of a kGo
  std::string text;                 // the payload behind the ID, as the other rank gets it
};

// What one rank knows about the answers for one home and group.
struct Handover {
  // This rank has joined, and knows of no answer to that. What it has received since is only kept:
  // it gets no answers to calls that go on without it.
  bool joined = false;
  uint64_t highest = 0;             // the highest number received (before it joined)
  std::vector<uint64_t> holes;      // numbers below it that were not received, ascending
  std::vector<KeptAnswer> kept;     // the latest answers, in any order
  std::vector<Met> met;             // messages that have not arrived, and the latest errors

  bool has(uint64_t number) const;
  uint64_t latest() const;  // the highest number received
  const KeptAnswer* find(uint64_t number) const;  // null if it is not kept
};

// Bounds of what a rank keeps: results, and as many errors.
inline constexpr size_t kMostKept = 4096, kMostKeptBytes = 16u << 20;
// Bound of the holes of a rank. A hole is a failed call that the rank has not made.
inline constexpr size_t kMostHoles = 1u << 17;
inline constexpr size_t kMostMet = 1u << 17;

std::string encode(const Handover& handover);
Result<Handover> decode_handover(std::string_view in);

// Returns the payload of an answer to the operation `id`. `text`: what follows the ID.
std::string payload_of(std::string_view text, uint64_t id);

}  // namespace herring::wire
