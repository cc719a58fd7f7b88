#include "wire/messages.h"

#include <cstdio>
#include <cstring>
#include <tuple>
#include <variant>

#include "base/hash.h"
#include "wire/fields.h"

namespace herring::wire {
namespace {

constexpr size_t kMaxDims = 64;

// Returns false if the arrays have more elements than is possible.
bool is_possible(const std::vector<Array>& arrays) {
  uint64_t all = 0;
  for (const Array& array : arrays) {
    uint64_t elements = 1;
    for (const uint64_t d : array.shape) {
      if (__builtin_mul_overflow(elements, d, &elements)) return false;
    }
    if (__builtin_add_overflow(all, elements, &all)) return false;
  }
  return all <= uint64_t{1} << 48;
}

// Makes `what` the kind with that place in the variant.
template <size_t... Index>
bool become(Collective& what, size_t index, std::index_sequence<Index...>) {
  ((index == Index ? static_cast<void>(what.emplace<Index>()) : void()), ...);
  return index < sizeof...(Index);
}

}  // namespace

template <typename Io>
void fields(Io& io, Of<Io, Algorithm>& algorithm) {
  io.choice(algorithm, kNumAlgorithms);
}

template <typename Io>
void fields(Io& io, Of<Io, Collective>& what) {
  auto index = static_cast<uint8_t>(what.index());
  io(index);
  if constexpr (Io::kReads) {
    constexpr size_t kKinds = std::variant_size_v<Collective>;
    io.check(become(what, index, std::make_index_sequence<kKinds>()));
  }
  std::visit([&io](auto& kind) { std::apply(io, kind.fields(kind)); }, what);
}

template <typename Io>
void fields(Io& io, Of<Io, Array>& array) {
  io(array.dtype);
  io.few(array.shape, kMaxDims);
}

template <typename Io>
void fields(Io& io, Of<Io, Open>& open) {
  io.choice(open.dtype, kNumWireDTypes);
  io(open.reduction);
  io.choice(open.participants, 3);
  io(open.workers, open.shard_bytes, open.deadline.timeout_ms, open.deadline.stall_ms);
  io(open.deadline.warn_ms, open.pair_a, open.pair_b);
  auto again = static_cast<uint8_t>(open.stays ? 2 : open.again);
  io.choice(again, 3);
  io(open.result_workers);
  io.text(open.name, kMaxName);
  if constexpr (Io::kReads) {
    open.again = again == 1;
    open.stays = again == 2;
    io.check(open.shard_bytes > 0 && open.shard_bytes % size_of(open.dtype) == 0);
  }
}

template <typename Io>
void fields(Io& io, Of<Io, Announce>& a) {
  io(a.id, a.what);
  io.few(a.arrays, kNumDTypes);
  io(a.listed, a.inline_payload, a.timeout_ms, a.warn_ms, a.servers);
  io.text(a.name, kMaxName);
  io.people(a.refusal, kMaxRefusal, Lines::kMany);
  io.text(a.agreement, kMaxAgreement);
  io.text(a.address, kMaxAddress);
  io.rest(a.payload);
  if constexpr (Io::kReads) {
    if (!io.ok() || !is_possible(a.arrays)) return io.check(false);
    // Only an all-reduce can run without the servers, and then no payload rides along.
    const auto* allreduce = std::get_if<AllReduce>(&a.what);
    const bool by_workers = allreduce != nullptr && allreduce->algorithm != Algorithm::kHerring;
    io.check(!by_workers || !a.inline_payload);
    // The coordinator checks whether there must be a payload (in a broadcast, only the root has
    // one).
    const bool whole = a.inline_payload && a.refusal.empty() && a.payload.size() == a.bytes();
    io.check(whole || a.payload.empty());
  }
}

template <typename Io>
void fields(Io& io, Of<Io, Go>& go) {
  io(go.id, go.counts, go.servers);
}

template <typename Io>
void fields(Io& io, Of<Io, GroupMessage>& group) {
  io(group.id);
  io.text(group.name, kMaxName);
  io(group.ranks);
}

template <typename Io>
void fields(Io& io, Of<Io, OpError>& error) {
  io(error.id);
  io.choice(error.code, static_cast<size_t>(kLastCode) + 1);
  io.text(error.text, 1 << 20);
}

uint64_t Announce::bytes() const {
  uint64_t all = 0;
  for (const Array& array : arrays) all += array.bytes();
  return all;
}

std::string agreement_of(std::string text) {
  if (text.size() <= kMaxAgreement) return text;
  char number[32];
  std::snprintf(number, sizeof number, " ... (#%016llx)",
                static_cast<unsigned long long>(fnv1a(text)));
  size_t kept = kMaxAgreement - std::strlen(number);
  while ((text[kept] & 0xc0) == 0x80) --kept;  // do not cut inside a UTF-8 character
  text.resize(kept);
  return text + number;
}

std::string encode(const Open& open) { return write_fields(open); }
std::string encode(const Announce& announce) { return write_fields(announce); }
std::string encode(const Go& go) { return write_fields(go); }
std::string encode(const GroupMessage& group) { return write_fields(group); }
std::string encode(const OpError& error) { return write_fields(error); }

Result<Open> decode_open(std::string_view in) { return read_fields<Open>(in, "open message"); }

Result<Announce> decode_announce(std::string_view in) {
  return read_fields<Announce>(in, "announce message");
}

Result<Go> decode_go(std::string_view in, std::string_view* rest) {
  FieldReader reader(in);
  Go go;
  reader(go);
  reader.rest(*rest);
  if (!reader.ok()) return breach("malformed go message");
  return go;
}

Result<GroupMessage> decode_group(std::string_view in) {
  return read_fields<GroupMessage>(in, "group message");
}

Result<OpError> decode_op_error(std::string_view in) {
  return read_fields<OpError>(in, "error message");
}

}  // namespace herring::wire
