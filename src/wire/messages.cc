#include "wire/messages.h"

#include <cstdio>
#include <cstring>
#include <tuple>
#include <utility>
#include <variant>

#include "base/bytes.h"
#include "base/hash.h"
#include "wire/malformed.h"

namespace herring::wire {
namespace {

constexpr size_t kMaxDims = 64;
constexpr size_t kMaxCounts = 1 << 20;

template <typename Number>
void put_list(ByteWriter& out, const std::vector<Number>& list) {
  out.put(static_cast<uint32_t>(list.size()));
  out.raw(list.data(), list.size() * sizeof(Number));
}

template <typename Number>
bool get_list(ByteReader& in, std::vector<Number>& list, size_t limit) {
  const auto n = in.get<uint32_t>();
  if (!in.ok() || n > limit || n * sizeof(Number) > in.remaining()) return false;
  list.resize(n);
  return in.raw(list.data(), n * sizeof(Number));
}

template <typename Enum>
bool get_enum(ByteReader& in, Enum& value, int count) {
  const auto raw = in.get<uint8_t>();
  value = static_cast<Enum>(raw);
  return in.ok() && raw < count;
}

// These functions write and read the fields of a collective, by type.
void put_field(ByteWriter& out, Algorithm value) { out.put(value); }
void put_field(ByteWriter& out, uint32_t value) { out.put(value); }
void put_field(ByteWriter& out, uint64_t value) { out.put(value); }
void put_field(ByteWriter& out, const Reduction& value) {
  out.put(value.op).put(value.prescale).put(value.postscale).put(value.divisor);
}
template <typename Number>
void put_field(ByteWriter& out, const std::vector<Number>& value) {
  put_list(out, value);
}
template <typename Number>
void put_field(ByteWriter& out, const std::optional<Number>& value) {
  out.put(static_cast<uint8_t>(value.has_value())).put(value.value_or(0));
}

bool get_field(ByteReader& in, Algorithm& value) { return get_enum(in, value, kNumAlgorithms); }
template <typename Number>
bool get_field(ByteReader& in, Number& value) {
  value = in.get<Number>();
  return in.ok();
}
bool get_field(ByteReader& in, Reduction& value) {
  return get_enum(in, value.op, kNumReduceOps) && get_field(in, value.prescale) &&
         get_field(in, value.postscale) && get_field(in, value.divisor);
}
template <typename Number>
bool get_field(ByteReader& in, std::vector<Number>& value) {
  return get_list(in, value, kMaxCounts);
}
template <typename Number>
bool get_field(ByteReader& in, std::optional<Number>& value) {
  const auto given = in.get<uint8_t>();
  Number number{};
  if (!get_field(in, number) || given > 1 || (given == 0 && number != 0)) return false;
  if (given == 1) value = number;
  return true;
}

void put(ByteWriter& out, const Collective& what) {
  out.put(static_cast<uint8_t>(what.index()));
  std::visit([&out](const auto& kind) {
    std::apply([&out](const auto&... field) { (put_field(out, field), ...); }, kind.fields(kind));
  }, what);
}

template <size_t... Index>
bool get(ByteReader& in, Collective& what, std::index_sequence<Index...>) {
  const auto index = in.get<uint8_t>();
  if (!in.ok() || index >= sizeof...(Index)) return false;
  ((index == Index ? static_cast<void>(what.emplace<Index>()) : void()), ...);
  return std::visit([&in](auto& kind) {
    return std::apply([&in](auto&... field) { return (get_field(in, field) && ...); },
                      kind.fields(kind));
  }, what);
}

void put(ByteWriter& out, const Array& array) {
  out.put(array.dtype).put(static_cast<uint8_t>(array.shape.size()));
  out.raw(array.shape.data(), array.shape.size() * sizeof(uint64_t));
}

bool get(ByteReader& in, Array& array) {
  if (!get_enum(in, array.dtype, kNumDTypes)) return false;
  const auto dimensions = in.get<uint8_t>();
  if (!in.ok() || dimensions > kMaxDims) return false;
  array.shape.resize(dimensions);
  return in.raw(array.shape.data(), dimensions * sizeof(uint64_t));
}

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

}  // namespace

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

std::string encode(const Open& open) {
  ByteWriter out;
  out.put(open.dtype);
  put_field(out, open.reduction);
  out.put(open.participants).put(open.workers).put(open.shard_bytes);
  out.put(open.deadline.timeout_ms).put(open.deadline.stall_ms).put(open.deadline.warn_ms);
  out.put(open.pair_a).put(open.pair_b);
  out.put(static_cast<uint8_t>(open.stays ? 2 : open.again ? 1 : 0)).put(open.result_workers);
  out.text(open.name);
  return out.take();
}

Result<Open> decode_open(std::string_view text) {
  ByteReader in(text);
  Open open;
  if (!get_enum(in, open.dtype, kNumDTypes) || !get_field(in, open.reduction) ||
      !get_enum(in, open.participants, 3)) {
    return malformed("open");
  }
  open.workers = in.get<uint32_t>();
  open.shard_bytes = in.get<uint64_t>();
  open.deadline.timeout_ms = in.get<uint32_t>();
  open.deadline.stall_ms = in.get<uint32_t>();
  open.deadline.warn_ms = in.get<uint32_t>();
  open.pair_a = in.get<uint32_t>();
  open.pair_b = in.get<uint32_t>();
  const auto again = in.get<uint8_t>();
  open.again = again == 1;
  open.stays = again == 2;
  open.result_workers = in.get<uint32_t>();
  open.name = in.text(kMaxName);
  if (!in.done() || again > 2 || open.shard_bytes == 0 ||
      open.shard_bytes % size_of(open.dtype) != 0) {
    return malformed("open");
  }
  return open;
}

std::string encode(const Announce& a) {
  ByteWriter out;
  out.put(a.id);
  put(out, a.what);
  out.put(static_cast<uint8_t>(a.arrays.size()));
  for (const Array& array : a.arrays) put(out, array);
  out.put(static_cast<uint8_t>(a.listed)).put(static_cast<uint8_t>(a.inline_payload));
  out.put(a.timeout_ms).put(a.warn_ms).put(a.servers);
  out.text(a.name).text(std::string_view(a.refusal).substr(0, kMaxRefusal));
  out.text(a.agreement).text(a.address);
  return out.take();
}

Result<Announce> decode_announce(std::string_view text) {
  ByteReader in(text);
  Announce a;
  a.id = in.get<uint64_t>();
  if (!get(in, a.what, std::make_index_sequence<std::variant_size_v<Collective>>())) {
    return malformed("announce");
  }
  const auto arrays = in.get<uint8_t>();
  if (!in.ok() || arrays > kNumDTypes) return malformed("announce");
  a.arrays.resize(arrays);
  for (Array& array : a.arrays) {
    if (!get(in, array)) return malformed("announce");
  }
  uint8_t listed = 0, inline_payload = 0;
  if (!get_enum(in, listed, 2) || !get_enum(in, inline_payload, 2)) return malformed("announce");
  a.listed = listed != 0;
  a.inline_payload = inline_payload != 0;
  // Only an all-reduce can run without the servers, and then no payload rides along.
  const auto* allreduce = std::get_if<AllReduce>(&a.what);
  const bool by_workers = allreduce != nullptr && allreduce->algorithm != Algorithm::kHerring;
  if (by_workers && a.inline_payload) return malformed("announce");
  a.timeout_ms = in.get<uint32_t>();
  a.warn_ms = in.get<uint32_t>();
  a.servers = in.get<uint32_t>();
  a.name = in.text(kMaxName);
  a.refusal = in.text(kMaxRefusal);
  a.agreement = in.text(kMaxAgreement);
  a.address = in.text(kMaxAddress);
  a.payload = in.rest();
  if (!in.ok() || !is_possible(a.arrays)) return malformed("announce");
  // The coordinator checks whether there must be a payload (in a broadcast, only the root has one).
  const bool whole = a.inline_payload && a.refusal.empty() && a.payload.size() == a.bytes();
  if (!whole && !a.payload.empty()) return malformed("announce");
  return a;
}

std::string encode(const Go& go) {
  ByteWriter out;
  out.put(go.id);
  put_list(out, go.counts);
  out.put(go.servers);
  return out.take();
}

Result<Go> decode_go(std::string_view text, std::string_view* rest) {
  ByteReader in(text);
  Go go;
  go.id = in.get<uint64_t>();
  if (!get_list(in, go.counts, kMaxCounts)) return malformed("go");
  go.servers = in.get<uint32_t>();
  if (!in.ok()) return malformed("go");
  *rest = in.rest();
  return go;
}

std::string encode(const GroupMessage& group) {
  ByteWriter out;
  out.put(group.id).text(group.name);
  put_list(out, group.ranks);
  return out.take();
}

Result<GroupMessage> decode_group(std::string_view text) {
  ByteReader in(text);
  GroupMessage group;
  group.id = in.get<uint64_t>();
  group.name = in.text(kMaxName);
  if (!get_list(in, group.ranks, kMaxCounts) || !in.done()) return malformed("group");
  return group;
}

std::string encode(const OpError& error) {
  ByteWriter out;
  out.put(error.id).put(static_cast<uint8_t>(error.code)).text(error.text);
  return out.take();
}

Result<OpError> decode_op_error(std::string_view text) {
  ByteReader in(text);
  OpError error;
  error.id = in.get<uint64_t>();
  if (!get_enum(in, error.code, static_cast<int>(kLastCode) + 1)) return malformed("error");
  error.text = in.text(1 << 20);
  if (!in.done()) return malformed("error");
  return error;
}

}  // namespace herring::wire
