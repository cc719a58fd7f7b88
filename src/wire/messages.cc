#include "wire/messages.h"

#include "base/bytes.h"
#include "wire/malformed.h"

namespace herring::wire {
namespace {

constexpr size_t kMaxDims = 64;
constexpr size_t kMaxCounts = 1 << 20;

void put_list(ByteWriter& out, const std::vector<uint64_t>& list) {
  out.put(static_cast<uint32_t>(list.size()));
  out.raw(list.data(), list.size() * sizeof(uint64_t));
}

bool get_list(ByteReader& in, std::vector<uint64_t>& list, size_t limit) {
  const auto n = in.get<uint32_t>();
  if (!in.ok() || n > limit || n * sizeof(uint64_t) > in.remaining()) return false;
  list.resize(n);
  return in.raw(list.data(), n * sizeof(uint64_t));
}

template <typename Enum>
bool get_enum(ByteReader& in, Enum& value, int count) {
  const auto raw = in.get<uint8_t>();
  value = static_cast<Enum>(raw);
  return in.ok() && raw < count;
}

}  // namespace

const char* name_of(Collective kind) {
  constexpr const char* kNames[] = {"allreduce",      "broadcast", "allgather",
                                    "reduce_scatter", "alltoall",  "barrier",
                                    "form_group",     "send",      "receive",
                                    "join"};
  return kNames[static_cast<int>(kind)];
}

const char* name_of(Algorithm algorithm) {
  constexpr const char* kNames[] = {"herring", "server", "tree", "ring", "butterfly"};
  return kNames[static_cast<int>(algorithm)];
}

uint64_t Announce::elements() const {
  uint64_t n = 1;
  for (uint64_t d : shape) {
    if (__builtin_mul_overflow(n, d, &n)) return UINT64_MAX;
  }
  return n;
}

std::string encode(const Open& open) {
  ByteWriter out;
  out.put(open.dtype).put(open.op).put(open.participants).put(open.workers).put(open.shard_bytes);
  out.put(open.prescale).put(open.postscale);
  out.put(open.deadline.timeout_ms).put(open.deadline.stall_ms).put(open.deadline.warn_ms);
  out.put(open.pair_a).put(open.pair_b).text(open.name);
  return out.take();
}

Result<Open> decode_open(std::string_view text) {
  ByteReader in(text);
  Open open;
  if (!get_enum(in, open.dtype, kNumDTypes) || !get_enum(in, open.op, kNumReduceOps) ||
      !get_enum(in, open.participants, 3)) {
    return malformed("open");
  }
  open.workers = in.get<uint32_t>();
  open.shard_bytes = in.get<uint64_t>();
  open.prescale = in.get<double>();
  open.postscale = in.get<double>();
  open.deadline.timeout_ms = in.get<uint32_t>();
  open.deadline.stall_ms = in.get<uint32_t>();
  open.deadline.warn_ms = in.get<uint32_t>();
  open.pair_a = in.get<uint32_t>();
  open.pair_b = in.get<uint32_t>();
  open.name = in.text(kMaxName);
  if (!in.done() || open.shard_bytes == 0 || open.shard_bytes % size_of(open.dtype) != 0) {
    return malformed("open");
  }
  return open;
}

std::string encode(const Announce& a) {
  ByteWriter out;
  out.put(a.id).put(a.kind).put(a.dtype).put(a.op).put(a.algorithm);
  out.put(static_cast<uint8_t>(a.inline_payload));
  out.put(a.root).put(a.prescale).put(a.postscale).put(a.timeout_ms).put(a.warn_ms);
  out.text(a.name).text(std::string_view(a.refusal).substr(0, kMaxRefusal));
  put_list(out, a.shape);
  put_list(out, a.splits);
  out.text(a.address);
  return out.take();
}

Result<Announce> decode_announce(std::string_view text) {
  ByteReader in(text);
  Announce a;
  a.id = in.get<uint64_t>();
  uint8_t inline_payload = 0;
  if (!get_enum(in, a.kind, kNumCollectives) || !get_enum(in, a.dtype, kNumDTypes) ||
      !get_enum(in, a.op, kNumReduceOps) || !get_enum(in, a.algorithm, kNumAlgorithms) ||
      !get_enum(in, inline_payload, 2)) {
    return malformed("announce");
  }
  a.inline_payload = inline_payload != 0;
  // Only an all-reduce may be done without the servers, and then nothing rides along.
  if (a.algorithm != Algorithm::kHerring &&
      (a.kind != Collective::kAllreduce || a.inline_payload)) {
    return malformed("announce");
  }
  a.root = in.get<uint32_t>();
  a.prescale = in.get<double>();
  a.postscale = in.get<double>();
  a.timeout_ms = in.get<uint32_t>();
  a.warn_ms = in.get<uint32_t>();
  a.name = in.text(kMaxName);
  a.refusal = in.text(kMaxRefusal);
  if (!get_list(in, a.shape, kMaxDims) || !get_list(in, a.splits, kMaxCounts)) {
    return malformed("announce");
  }
  a.address = in.text(kMaxAddress);
  a.payload = in.rest();
  const uint64_t elements = a.elements();
  if (!in.ok() || elements > (uint64_t{1} << 48)) return malformed("announce");
  // Whether it must have one (of a broadcast only the root has) is the coordinator's to check.
  const bool whole = a.inline_payload && a.refusal.empty() &&
                     a.payload.size() == elements * size_of(a.dtype);
  if (!whole && !a.payload.empty()) return malformed("announce");
  return a;
}

std::string encode(const Go& go) {
  ByteWriter out;
  out.put(go.id);
  put_list(out, go.counts);
  return out.take();
}

Result<Go> decode_go(std::string_view text, std::string_view* rest) {
  ByteReader in(text);
  Go go;
  go.id = in.get<uint64_t>();
  if (!get_list(in, go.counts, kMaxCounts)) return malformed("go");
  *rest = in.rest();
  return go;
}

std::string encode(const GroupMessage& group) {
  ByteWriter out;
  out.put(group.id).text(group.name).put(static_cast<uint32_t>(group.ranks.size()));
  out.raw(group.ranks.data(), group.ranks.size() * sizeof(uint32_t));
  return out.take();
}

Result<GroupMessage> decode_group(std::string_view text) {
  ByteReader in(text);
  GroupMessage group;
  group.id = in.get<uint64_t>();
  group.name = in.text(kMaxName);
  const auto n = in.get<uint32_t>();
  if (!in.ok() || n > kMaxCounts || n * sizeof(uint32_t) > in.remaining()) {
    return malformed("group");
  }
  group.ranks.resize(n);
  if (!in.raw(group.ranks.data(), n * sizeof(uint32_t)) || !in.done()) return malformed("group");
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
  if (!get_enum(in, error.code, static_cast<int>(Code::kProtocol) + 1)) return malformed("error");
  error.text = in.text(1 << 20);
  if (!in.done()) return malformed("error");
  return error;
}

}  // namespace herring::wire
