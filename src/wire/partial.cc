#include "wire/partial.h"

#include "base/bytes.h"
#include "base/hash.h"
#include "base/settings.h"
#include "partial/round_owner.h"
#include "wire/malformed.h"

namespace herring::wire {
namespace {

constexpr size_t kContributorBytes = 4 + 8 + 4 + 1 + 8 + 4;
constexpr size_t kLostBytes = 4 + 8 + 8;
constexpr size_t kCountBytes = 8 + 4;

bool flag(ByteReader& in, bool& value) {
  const auto raw = in.get<uint8_t>();
  value = raw != 0;
  return in.ok() && raw < 2;
}

// Reads a count; returns whether that many entries can follow.
bool count(ByteReader& in, uint32_t& n, size_t bytes_each) {
  n = in.get<uint32_t>();
  return in.ok() && n <= kMaxRanks && n * bytes_each <= in.remaining();
}

}  // namespace

uint64_t series_id(std::string_view name, uint32_t group, uint32_t number) {
  // Numbers come first: a name may contain anything, so a number at its end would be ambiguous.
  return fnv1a(concat(group, '\n', number, '\n', name));
}

std::string encode(const Enlist& e) {
  ByteWriter out;
  out.put(e.dtype).put(e.op).put(static_cast<uint8_t>(e.by_contributors));
  out.put(static_cast<uint8_t>(e.inline_payload)).put(e.elements).put(e.quorum).put(e.grace);
  out.put(e.staleness).put(static_cast<uint8_t>(e.replays)).put(static_cast<uint8_t>(e.owner));
  out.put(e.timeout_ms).put(e.warn_ms).put(e.number).text(e.name);
  return out.take();
}

Result<Enlist> decode_enlist(std::string_view text) {
  ByteReader in(text);
  Enlist e;
  const auto dtype = in.get<uint8_t>(), op = in.get<uint8_t>();
  if (dtype >= kNumDTypes || op > static_cast<uint8_t>(ReduceOp::kAverage)) {
    return malformed("enlist");
  }
  e.dtype = static_cast<DType>(dtype);
  e.op = static_cast<ReduceOp>(op);
  if (!flag(in, e.by_contributors) || !flag(in, e.inline_payload)) return malformed("enlist");
  e.elements = in.get<uint64_t>();
  e.quorum = in.get<uint32_t>();
  e.grace = in.get<Nanos>();
  e.staleness = in.get<uint32_t>();
  if (!flag(in, e.replays) || !flag(in, e.owner)) return malformed("enlist");
  e.timeout_ms = in.get<uint32_t>();
  e.warn_ms = in.get<uint32_t>();
  e.number = in.get<uint32_t>();
  e.name = in.text(kMaxName);
  if (!in.done() || e.elements > (uint64_t{1} << 48) || e.staleness > partial::kMaxStaleness) {
    return malformed("enlist");
  }
  return e;
}

std::string encode(const JoinMessage& j) {
  ByteWriter out;
  out.put(j.id).put(j.upto).put(j.base).put(static_cast<uint8_t>(j.last));
  out.put(j.round).put(j.contributors).put(j.digest_round).put(j.digest);
  return out.take();
}

Result<JoinMessage> decode_join(std::string_view text) {
  ByteReader in(text);
  JoinMessage j;
  j.id = in.get<uint64_t>();
  j.upto = in.get<uint64_t>();
  j.base = in.get<uint32_t>();
  if (!flag(in, j.last)) return malformed("join");
  j.round = in.get<uint32_t>();
  j.contributors = in.get<uint32_t>();
  j.digest_round = in.get<uint32_t>();
  j.digest = in.get<uint64_t>();
  j.payload = in.rest();
  if (!in.ok()) return malformed("join");
  return j;
}

std::string encode(const RoundMessage& r) {
  ByteWriter out;
  out.put(r.id).put(r.round).put(r.attempt).put(r.divisor).put(static_cast<uint8_t>(r.last));
  out.put(static_cast<uint32_t>(r.contributors.size()));
  for (const partial::Contributor& one : r.contributors) {
    out.put(one.rank).put(one.upto).put(one.staleness).put(static_cast<uint8_t>(one.active));
    out.put(one.waited).put(one.base);
  }
  out.put(static_cast<uint32_t>(r.lost.size()));
  for (const partial::Lost& one : r.lost) {
    out.put(one.rank).put(one.counted).put(one.announced);
  }
  return out.take();
}

Result<RoundMessage> decode_round(std::string_view text) {
  ByteReader in(text);
  RoundMessage r;
  r.id = in.get<uint64_t>();
  r.round = in.get<uint32_t>();
  r.attempt = in.get<uint32_t>();
  r.divisor = in.get<uint32_t>();
  uint32_t n = 0;
  if (!flag(in, r.last) || r.divisor == 0 || !count(in, n, kContributorBytes)) {
    return malformed("round");
  }
  r.contributors.resize(n);
  for (partial::Contributor& one : r.contributors) {
    one.rank = in.get<uint32_t>();
    one.upto = in.get<uint64_t>();
    one.staleness = in.get<uint32_t>();
    if (!flag(in, one.active)) return malformed("round");
    one.waited = in.get<Nanos>();
    one.base = in.get<uint32_t>();
  }
  if (!count(in, n, kLostBytes)) return malformed("round");
  r.lost.resize(n);
  for (partial::Lost& one : r.lost) {
    one.rank = in.get<uint32_t>();
    one.counted = in.get<uint64_t>();
    one.announced = in.get<uint64_t>();
  }
  r.payload = in.rest();
  if (!in.ok()) return malformed("round");
  return r;
}

JoinMessage message_of(uint64_t id, const partial::Said& said) {
  const partial::Join& join = said.join;
  return {id,         join.upto,         join.base,         join.last,   join.round,
          join.contributors, said.digest_round, said.digest, said.payload};
}

std::string encode_known(uint64_t id, const partial::Known& known) {
  ByteWriter out;
  out.put(id).put(known.rounds).put(known.tickets);
  out.put(static_cast<uint8_t>(known.received)).put(static_cast<uint8_t>(known.whole));
  out.put(static_cast<uint8_t>(known.committed));
  out.put(static_cast<uint32_t>(known.counts.size()));
  for (const partial::Known::Count& one : known.counts) out.put(one.upto).put(one.base);
  return out.take();
}

Result<KnownSeries> decode_series(std::string_view text) {
  ByteReader in(text);
  KnownSeries series;
  partial::Known& known = series.known;
  series.id = in.get<uint64_t>();
  known.rounds = in.get<uint32_t>();
  known.tickets = in.get<uint32_t>();
  uint32_t n = 0;
  if (!flag(in, known.received) || !flag(in, known.whole) || !flag(in, known.committed) ||
      !count(in, n, kCountBytes)) {
    return malformed("series");
  }
  known.counts.resize(n);
  for (partial::Known::Count& one : known.counts) {
    one.upto = in.get<uint64_t>();
    one.base = in.get<uint32_t>();
  }
  if (!in.done()) return malformed("series");
  return series;
}

std::string encode(const RoundMark& mark) {
  ByteWriter out;
  out.put(mark.id).put(mark.round).put(mark.attempt).put(static_cast<uint8_t>(mark.whole));
  return out.take();
}

Result<RoundMark> decode_mark(std::string_view text) {
  ByteReader in(text);
  RoundMark mark;
  mark.id = in.get<uint64_t>();
  mark.round = in.get<uint32_t>();
  mark.attempt = in.get<uint32_t>();
  if (!flag(in, mark.whole) || !in.done()) return malformed("round mark");
  return mark;
}

}  // namespace herring::wire
