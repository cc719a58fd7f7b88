#include "wire/frame.h"

#include <bit>
#include <cstddef>
#include <cstring>
#include <iterator>

namespace herring::wire {

const char* name_of(FrameType type) {
  constexpr const char* kNames[] = {"invalid", "open",      "data",    "result",
                                    "announce", "go",       "reply",   "op-error",
                                    "warning", "register",  "cluster", "ready",
                                    "heartbeat", "goodbye", "peer-lost", "abort",
                                    "grant",     "block",   "taken",   "enlist",
                                    "join",      "round",   "received", "commit",
                                    "group",     "leave-group", "whereabouts", "released",
                                    "report", "rank-texts", "record", "timeline", "hand-over",
                                    "server-news", "series", "card", "shown", "read", "settled",
                                    "signal"};
  static_assert(std::size(kNames) == static_cast<size_t>(FrameType::kLast) + 1);
  const auto index = static_cast<uint8_t>(type);
  return index <= static_cast<uint8_t>(FrameType::kLast) ? kNames[index] : "unknown";
}

uint32_t check_of(const FrameHeader& header, uint64_t number) {
  constexpr size_t kWords = offsetof(FrameHeader, check) / sizeof(uint32_t);
  uint32_t words[kWords];
  std::memcpy(words, &header, sizeof(words));
  // Every step can be undone, so a difference in one word never disappears.
  uint32_t check = static_cast<uint32_t>(number);
  for (const uint32_t word : words) check = std::rotl((check ^ word) * 0x9e3779b1u, 13);
  return check;
}

bool plausible(const FrameHeader& header) {
  if (header.type < FrameType::kOpen || header.type > FrameType::kLast) return false;
  const bool counted = header.type == FrameType::kData || header.type == FrameType::kResult;
  if (counted != (header.segments > 0)) return false;
  if (counted && (header.flags & kFlagEmpty) && header.payload != 0) return false;
  return header.payload <= kMaxPayload;
}

}  // namespace herring::wire
