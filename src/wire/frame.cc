#include "wire/frame.h"

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
                                    "server-news"};
  static_assert(std::size(kNames) == static_cast<size_t>(FrameType::kLast) + 1);
  const auto index = static_cast<uint8_t>(type);
  return index <= static_cast<uint8_t>(FrameType::kLast) ? kNames[index] : "unknown";
}

bool plausible(const FrameHeader& header) {
  if (header.type < FrameType::kOpen || header.type > FrameType::kLast) return false;
  const bool counted = header.type == FrameType::kData || header.type == FrameType::kResult;
  if (counted != (header.segments > 0)) return false;
  if (counted && (header.flags & kFlagEmpty) && header.payload != 0) return false;
  return header.payload <= kMaxPayload;
}

}  // namespace herring::wire
