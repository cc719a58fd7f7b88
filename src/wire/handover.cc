#include "wire/handover.h"

#include <algorithm>

#include "base/bytes.h"
#include "wire/malformed.h"

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

std::string encode(const Handover& handover) {
  ByteWriter out;
  out.put<uint8_t>(handover.joined).put(handover.highest);
  out.put(static_cast<uint32_t>(handover.holes.size()));
  out.raw(handover.holes.data(), handover.holes.size() * sizeof(uint64_t));
  out.put(static_cast<uint32_t>(handover.kept.size()));
  for (const KeptAnswer& one : handover.kept) {
    out.put(one.number).put(one.type).put(one.stream).put(one.ticket);
    out.text(one.name).text(one.text).put(static_cast<uint32_t>(one.own.size()));
    out.raw(one.own.data(), one.own.size() * sizeof(uint64_t)).text(one.call);
  }
  out.put(static_cast<uint32_t>(handover.met.size()));
  for (const Met& one : handover.met) {
    out.put(one.own).put(one.other).put(one.others);
    out.put(one.type).put(one.stream).put(one.ticket).text(one.text);
  }
  return out.take();
}

Result<Handover> decode_handover(std::string_view text) {
  ByteReader in(text);
  Handover handover;
  const auto joined = in.get<uint8_t>();
  handover.joined = joined == 1;
  handover.highest = in.get<uint64_t>();
  const auto holes = in.get<uint32_t>();
  if (!in.ok() || joined > 1 || holes > kMostHoles || holes * sizeof(uint64_t) > in.remaining()) {
    return malformed("hand-over");
  }
  handover.holes.resize(holes);
  in.raw(handover.holes.data(), holes * sizeof(uint64_t));
  uint64_t before = 0;
  for (const uint64_t hole : handover.holes) {
    if (hole <= before || hole >= handover.highest) return malformed("hand-over");
    before = hole;
  }
  const auto kept = in.get<uint32_t>();
  if (!in.ok() || kept > 2 * kMostKept) return malformed("hand-over");
  for (uint32_t i = 0; i < kept && in.ok(); ++i) {
    KeptAnswer& one = handover.kept.emplace_back();
    one.number = in.get<uint64_t>();
    one.type = in.get<FrameType>();
    one.stream = in.get<uint32_t>();
    one.ticket = in.get<uint32_t>();
    one.name = in.text(kMaxName);
    one.text = in.text(kMaxPayload);
    const auto own = in.get<uint32_t>();
    if (!in.ok() || own * sizeof(uint64_t) > in.remaining()) return malformed("hand-over");
    one.own.resize(own);
    in.raw(one.own.data(), own * sizeof(uint64_t));
    one.call = in.text(kMaxPayload);
    const bool answers = one.type == FrameType::kGo || one.type == FrameType::kReply ||
                         one.type == FrameType::kOpError;
    const bool received = handover.joined || handover.has(one.number);
    if (!answers || !received || one.number == 0) {
      return malformed("hand-over");
    }
  }
  const auto met = in.get<uint32_t>();
  if (!in.ok() || met > kMostMet) return malformed("hand-over");
  for (uint32_t i = 0; i < met && in.ok(); ++i) {
    Met& one = handover.met.emplace_back();
    one.own = in.get<uint64_t>();
    one.other = in.get<uint32_t>();
    one.others = in.get<uint64_t>();
    one.type = in.get<FrameType>();
    one.stream = in.get<uint32_t>();
    one.ticket = in.get<uint32_t>();
    one.text = in.text(kMaxPayload);
    if (one.type != FrameType::kGo && one.type != FrameType::kOpError) {
      return malformed("hand-over");
    }
  }
  if (!in.done()) return malformed("hand-over");
  return handover;
}

std::string payload_of(std::string_view text, uint64_t id) {
  return ByteWriter().put(id).raw(text.data(), text.size()).take();
}

}  // namespace herring::wire
