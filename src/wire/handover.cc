#include "wire/handover.h"

#include <algorithm>
#include <functional>

#include "wire/fields.h"

namespace herring::wire {

bool Handover::has(uint64_t number) const {
  return number <= highest && !std::binary_search(holes.begin(), holes.end(), number);
}

uint64_t Handover::latest() const {
  uint64_t latest = highest;
  if (!joined) return latest;
  for (const KeptAnswer& one : kept) latest = std::max(latest, one.number);
  return latest;
}

const KeptAnswer* Handover::find(uint64_t number) const {
  const auto found = std::ranges::find(kept, number, &KeptAnswer::number);
  return found == kept.end() ? nullptr : &*found;
}

template <typename Io>
void fields(Io& io, Of<Io, FrameType>& type) {
  io.choice(type, static_cast<size_t>(FrameType::kLast) + 1);
}

template <typename Io>
void fields(Io& io, Of<Io, KeptAnswer>& one) {
  io(one.number, one.type, one.stream, one.ticket);
  io.text(one.name, kMaxName);
  io.text(one.text, kMaxPayload);
  io(one.own);
  io.text(one.call, kMaxPayload);
  io.check(one.number > 0 && (one.type == FrameType::kGo || one.type == FrameType::kReply ||
                              one.type == FrameType::kOpError));
}

template <typename Io>
void fields(Io& io, Of<Io, Met>& one) {
  io(one.own, one.other, one.others, one.type, one.stream, one.ticket);
  io.text(one.text, kMaxPayload);
  io.check(one.type == FrameType::kGo || one.type == FrameType::kOpError);
}

template <typename Io>
void fields(Io& io, Of<Io, Handover>& handover) {
  io(handover.joined, handover.highest, handover.holes);
  io.list(handover.kept, 2 * kMostKept);
  io.list(handover.met, kMostMet);
  if constexpr (Io::kReads) {
    const auto& holes = handover.holes;
    io.check(holes.size() <= kMostHoles);
    io.check(holes.empty() || (holes.front() > 0 && holes.back() < handover.highest));
    io.check(std::ranges::adjacent_find(holes, std::ranges::greater_equal()) == holes.end());
    if (!io.ok()) return;  // has() needs holes in their order
    io.check(handover.joined || std::ranges::all_of(handover.kept, [&](const KeptAnswer& one) {
      return handover.has(one.number);
    }));
  }
}

std::string encode(const Handover& handover) { return write_fields(handover); }

Result<Handover> decode_handover(std::string_view in) {
  return read_fields<Handover>(in, "hand-over message");
}

std::string payload_of(std::string_view text, uint64_t id) {
  return ByteWriter().put(id).raw(text.data(), text.size()).take();
}

}  // namespace herring::wire
