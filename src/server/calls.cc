#include "server/calls.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

#include "plan/split.h"
#include "reduce/reduce.h"

namespace herring::server {
namespace {

using wire::Announce;
using wire::Collective;

constexpr uint64_t kLargestResult = uint64_t{1} << 60;  // bytes, all ranks' together

uint64_t row_elements(const Announce& a) {
  return std::accumulate(a.shape.begin() + (a.shape.empty() ? 0 : 1), a.shape.end(), uint64_t{1},
                         std::multiplies<>());
}

uint64_t rows(const Announce& a) { return a.shape.empty() ? 1 : a.shape[0]; }

// May ranks differ in the first dimension?
bool ragged(Collective kind) {
  return kind == Collective::kAllgather || kind == Collective::kAlltoall;
}

bool agree(const Announce& a, const Announce& b) {
  if (a.kind != b.kind || a.dtype != b.dtype || a.op != b.op || a.root != b.root ||
      a.algorithm != b.algorithm ||
      a.prescale != b.prescale || a.postscale != b.postscale ||
      a.shape.size() != b.shape.size()) {
    return false;
  }
  if (a.kind == Collective::kReduceScatter && a.splits != b.splits) return false;
  const size_t from = ragged(a.kind) && !a.shape.empty() ? 1 : 0;
  return std::equal(a.shape.begin() + from, a.shape.end(), b.shape.begin() + from);
}

std::string describe(const Announce& a) {
  std::string shape;
  for (uint64_t d : a.shape) shape += (shape.empty() ? "" : ", ") + std::to_string(d);
  std::string text = concat(wire::name_of(a.kind), " of ", name_of(a.dtype), " [", shape, "]");
  if (a.kind == Collective::kAllreduce || a.kind == Collective::kReduceScatter) {
    text += concat(", op ", name_of(a.op));
    if (a.algorithm != wire::Algorithm::kHerring) {
      text += concat(", algorithm ", wire::name_of(a.algorithm));
    }
    if (a.prescale != 1.0) text += concat(", prescale ", a.prescale);
    if (a.postscale != 1.0) text += concat(", postscale ", a.postscale);
  }
  if (a.kind == Collective::kBroadcast || a.root != 0) text += concat(", root ", a.root);
  if (a.kind == Collective::kReduceScatter && !a.splits.empty()) {
    constexpr size_t kMostShown = 16;
    std::string splits;
    for (size_t i = 0; i < std::min(a.splits.size(), kMostShown); ++i) {
      splits += concat(i == 0 ? "" : ", ", a.splits[i]);
    }
    text += concat(", splits [", splits, a.splits.size() > kMostShown ? ", ...]" : "]");
  }
  return text;
}

// "" when all calls agree, else who called what.
std::string describe_mismatch(const control::Group& group, const Announces& calls) {
  const Announce& first = first_of(calls);
  const bool equal = std::all_of(calls.begin(), calls.end(), [&first](const Announce* call) {
    return call == nullptr || agree(first, *call);
  });
  if (equal) return {};
  std::map<std::string, std::vector<uint32_t>> who;
  for (uint32_t index = 0; index < calls.size(); ++index) {
    if (calls[index] != nullptr) who[describe(*calls[index])].push_back(group.ranks()[index]);
  }
  std::string text = concat("ranks disagree about '", first.name, "'", group.suffix(), ":");
  for (const auto& [what, ranks] : who) {
    text += concat(" ", control::list_ranks(ranks), ": ", what, ";");
  }
  text.pop_back();
  return text;
}

uint64_t bytes_of(const Announce& a) { return a.elements() * size_of(a.dtype); }

bool reduces(Collective kind) {
  return kind == Collective::kAllreduce || kind == Collective::kReduceScatter;
}

// Buffers of an all-to-all are numbered by sender and receiver together, in 32 bits.
constexpr uint32_t kMostRanksOfAlltoall = (1 << 16) - 1;

Status check_splits(const Announce& a, uint32_t size) {
  if (a.kind == Collective::kAlltoall && size > kMostRanksOfAlltoall) {
    return {Code::kInvalidArgument, concat("'", a.name, "' is an alltoall of ", size,
                                           " ranks; it takes at most ", kMostRanksOfAlltoall)};
  }
  uint64_t sum = 0;
  bool overflow = false;
  for (const uint64_t split : a.splits) overflow |= __builtin_add_overflow(sum, split, &sum);
  if (!overflow && a.splits.size() == size && sum == rows(a)) return {};
  return {Code::kInvalidArgument,
          concat("splits of '", a.name, "' must be ", size,
                 " counts that sum to the first dimension, ", rows(a))};
}

}  // namespace

const Announce& first_of(const Announces& calls) {
  return **std::find_if(calls.begin(), calls.end(), [](const Announce* one) { return one; });
}

bool goes_without_joined(const Announce& call) {
  return call.kind == Collective::kAllreduce && call.algorithm == wire::Algorithm::kHerring;
}

uint64_t payload_bytes(const Announce& a, uint32_t index) {
  const bool sends = a.kind != Collective::kBarrier && a.kind != Collective::kFormGroup &&
                     a.kind != Collective::kReceive && a.kind != Collective::kJoin &&
                     (a.kind != Collective::kBroadcast || a.root == index);
  return a.inline_payload && a.refusal.empty() && sends ? bytes_of(a) : 0;
}

Status check(const control::Group& group, const Announces& calls) {
  if (const std::string text = describe_mismatch(group, calls); !text.empty()) {
    return {Code::kMismatch, text};
  }
  const Announce& first = first_of(calls);
  const auto size = static_cast<uint32_t>(calls.size());
  if (first.kind == Collective::kBroadcast && first.root >= size) {
    return {Code::kInvalidArgument, concat("root ", first.root, " of '", first.name, "'",
                                           group.suffix(), " is no rank; there are ", size)};
  }
  if (reduces(first.kind)) {
    HERRING_RETURN_IF_ERROR(
        check_reducible(first.dtype, first.op, first.prescale, first.postscale));
  }
  uint64_t all = 0;
  for (const Announce* call : calls) {
    if (call == nullptr) continue;
    const bool given = call->kind == Collective::kReduceScatter && !call->splits.empty();
    if (given || call->kind == Collective::kAlltoall) {
      HERRING_RETURN_IF_ERROR(check_splits(*call, size));
    }
    if (__builtin_add_overflow(all, bytes_of(*call), &all) || all > kLargestResult) {
      return {Code::kInvalidArgument, concat("the arrays of '", call->name, "' are too large: ",
                                             describe(*call))};
    }
  }
  return {};
}

uint64_t largest_reply(const Announces& calls) {
  const Collective kind = first_of(calls).kind;
  uint64_t largest = 0;
  if (kind == Collective::kAllgather) {
    for (const Announce* call : calls) largest += bytes_of(*call);
  } else if (kind == Collective::kAlltoall) {
    for (size_t to = 0; to < calls.size(); ++to) {
      uint64_t bytes = 0;
      for (const Announce* call : calls) {
        bytes += call->splits[to] * row_elements(*call) * size_of(call->dtype);
      }
      largest = std::max(largest, bytes);
    }
  }
  return largest;
}

wire::Go common_head(const Announces& calls) {
  wire::Go go;
  if (first_of(calls).kind != Collective::kAllgather) return go;
  for (const Announce* call : calls) go.counts.push_back(rows(*call));
  return go;
}

void complete_head(wire::Go& go, const Announces& calls, uint32_t index) {
  go.id = calls[index]->id;
  if (calls[index]->kind != Collective::kAlltoall) return;
  go.counts.clear();
  for (const Announce* call : calls) go.counts.push_back(call->splits[index] * row_elements(*call));
}

Results compute(const Announces& calls) {
  const Announce& first = first_of(calls);
  const size_t item = size_of(first.dtype);
  const auto size = static_cast<uint32_t>(calls.size());
  Results results;
  switch (first.kind) {
    case Collective::kBarrier:
    case Collective::kFormGroup:
    case Collective::kSend:
    case Collective::kReceive:
    case Collective::kJoin: break;
    case Collective::kBroadcast: results.common = calls[first.root]->payload; break;
    case Collective::kAllreduce:
    case Collective::kReduceScatter: {
      std::vector<const void*> sources;
      for (const Announce* call : calls) {
        if (call != nullptr) sources.push_back(call->payload.data());
      }
      std::string result(first.payload.size(), '\0');
      const double divisor = first.op == ReduceOp::kAverage ? double(sources.size()) : 1.0;
      const reduce::Stage stage{first.dtype,    first.dtype, first.op,
                                first.prescale, divisor,     first.postscale};
      reduce::combine(sources.data(), sources.size(), result.data(), result.size() / item, stage);
      if (first.kind == Collective::kAllreduce) {
        results.common = std::move(result);
        break;
      }
      const size_t row = row_elements(first) * item;
      for (const plan::Part& part : plan::split(rows(first), size, first.splits)) {
        results.own.push_back(result.substr(part.first * row, part.count * row));
      }
      break;
    }
    case Collective::kAllgather:
      for (const Announce* call : calls) results.common += call->payload;
      break;
    case Collective::kAlltoall:
      results.own.resize(size);
      for (const Announce* call : calls) {
        const size_t row = row_elements(*call) * item;
        size_t at = 0;
        for (uint32_t to = 0; to < size; ++to) {
          results.own[to] += call->payload.substr(at, call->splits[to] * row);
          at += call->splits[to] * row;
        }
      }
      break;
  }
  return results;
}

}  // namespace herring::server
