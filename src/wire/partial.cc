#include "wire/partial.h"

#include "base/hash.h"
#include "base/settings.h"
#include "partial/round_owner.h"
#include "wire/fields.h"

namespace herring::partial {

template <typename Io>
void fields(Io& io, Of<Io, Contributor>& one) {
  io(one.rank, one.upto, one.staleness, one.active, one.waited, one.base);
}

template <typename Io>
void fields(Io& io, Of<Io, Lost>& one) {
  io(one.rank, one.counted, one.announced);
}

template <typename Io>
void fields(Io& io, Of<Io, SeriesState::Count>& one) {
  io(one.upto, one.base);
}

// Without the rounds and joins.
template <typename Io>
void fields(Io& io, Of<Io, SeriesState>& known) {
  io(known.rounds, known.tickets, known.received, known.whole, known.committed);
  io.list(known.counts, kMaxRanks);
}

}  // namespace herring::partial

namespace herring::wire {

uint64_t series_id(std::string_view name, uint32_t group, uint32_t number) {
  // Numbers come first: a name may contain anything, so a number at its end would be ambiguous.
  return fnv1a(concat(group, '\n', number, '\n', name));
}

template <typename Io>
void fields(Io& io, Of<Io, Enlist>& e) {
  io(e.dtype, e.op, e.by_contributors, e.inline_payload, e.elements, e.quorum, e.grace);
  io(e.staleness, e.replays, e.owner, e.timeout_ms, e.warn_ms, e.number);
  io.text(e.name, kMaxName);
  io.check(e.op == ReduceOp::kSum || e.op == ReduceOp::kAverage);
  io.check(e.elements <= uint64_t{1} << 48 && e.staleness <= partial::kMaxStaleness);
}

template <typename Io>
void fields(Io& io, Of<Io, JoinMessage>& j) {
  io(j.id, j.upto, j.base, j.last, j.round, j.contributors, j.digest_round, j.digest);
  io.rest(j.payload);
}

template <typename Io>
void fields(Io& io, Of<Io, RoundMessage>& r) {
  io(r.id, r.round, r.attempt, r.divisor, r.last);
  io.check(r.divisor > 0);
  io.list(r.contributors, kMaxRanks);
  io.list(r.lost, kMaxRanks);
  io.rest(r.payload);
}

template <typename Io>
void fields(Io& io, Of<Io, RoundMark>& mark) {
  io(mark.id, mark.round, mark.attempt, mark.whole);
}

template <typename Io>
void fields(Io& io, Of<Io, KnownSeries>& series) {
  io(series.id, series.known);
}

JoinMessage message_of(uint64_t id, const partial::SentJoin& said) {
  const partial::Join& join = said.join;
  return {id,         join.upto,         join.base,         join.last,   join.round,
          join.contributors, said.digest_round, said.digest, said.payload};
}

std::string encode(const Enlist& enlist) { return write_fields(enlist); }
std::string encode(const JoinMessage& join) { return write_fields(join); }
std::string encode(const RoundMessage& round) { return write_fields(round); }
std::string encode(const RoundMark& mark) { return write_fields(mark); }

std::string encode_known(uint64_t id, const partial::SeriesState& known) {
  FieldWriter out;
  out(id, known);
  return out.take();
}

Result<Enlist> decode_enlist(std::string_view in) {
  return read_fields<Enlist>(in, "enlist message");
}

Result<JoinMessage> decode_join(std::string_view in) {
  return read_fields<JoinMessage>(in, "join message");
}

Result<RoundMessage> decode_round(std::string_view in) {
  return read_fields<RoundMessage>(in, "round message");
}

Result<RoundMark> decode_mark(std::string_view in) {
  return read_fields<RoundMark>(in, "round mark message");
}

Result<KnownSeries> decode_series(std::string_view in) {
  return read_fields<KnownSeries>(in, "series message");
}

}  // namespace herring::wire
