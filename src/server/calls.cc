#include "server/calls.h"

#include <algorithm>
#include <span>
#include <utility>
#include <variant>

#include "base/lists.h"
#include "plan/split.h"
#include "reduce/reduce.h"

namespace herring::server {
namespace {

using wire::Announce;

constexpr uint64_t kLargestResult = uint64_t{1} << 60;  // bytes of all ranks together

// In a mismatch, at most this many different calls are described.
constexpr size_t kMostDescribed = 16;
constexpr size_t kMostShown = 16;  // numbers of a list

template <typename Number>
std::string listed(const std::vector<Number>& numbers, size_t most) {
  return concat("[", list_of(std::span(numbers).first(std::min(numbers.size(), most))),
                numbers.size() > most ? ", ...]" : "]");
}

bool agree(const Announce& a, const Announce& b) {
  if (!wire::agree(a.what, b.what) || a.listed != b.listed || a.agreement != b.agreement ||
      a.arrays.size() != b.arrays.size()) {
    return false;
  }
  const bool ragged = wire::is_ragged(a.what);
  return std::equal(a.arrays.begin(), a.arrays.end(), b.arrays.begin(),
                    [ragged](const wire::Array& one, const wire::Array& other) {
                      const long from = ragged && !one.shape.empty() ? 1 : 0;
                      return one.dtype == other.dtype && one.shape.size() == other.shape.size() &&
                             std::equal(one.shape.begin() + from, one.shape.end(),
                                        other.shape.begin() + from);
                    });
}

std::string describe(const Announce& a) {
  std::string text = wire::name_of(a.what);
  if (a.listed) {
    text += concat(" of ", a.agreement);
  } else {
    for (const wire::Array& array : a.arrays) {
      text += concat(" of ", name_of(array.dtype), " ", listed(array.shape, array.shape.size()));
    }
    if (!a.agreement.empty()) text += concat(" (", a.agreement, ")");
  }
  if (const Reduction* reduction = wire::reduction_of(a.what)) {
    text += concat(", op ", name_of(reduction->op));
    if (reduction->prescale != 1.0) text += concat(", prescale ", reduction->prescale);
    if (reduction->postscale != 1.0) text += concat(", postscale ", reduction->postscale);
    if (reduction->divisor != 0) text += concat(", divided by ", reduction->divisor);
  }
  const auto* allreduce = std::get_if<wire::AllReduce>(&a.what);
  if (allreduce != nullptr && allreduce->algorithm != wire::Algorithm::kHerring) {
    text += concat(", algorithm ", wire::name_of(allreduce->algorithm));
  }
  if (const auto* broadcast = std::get_if<wire::Broadcast>(&a.what)) {
    text += concat(", root ", broadcast->root);
  }
  const auto* scatter = std::get_if<wire::ReduceScatter>(&a.what);
  if (scatter != nullptr && !scatter->rows.empty() && !a.listed) {
    text += concat(", splits ", listed(scatter->rows, kMostShown));
  }
  return text;
}

// Returns "" if all calls agree; otherwise says who called what.
std::string describe_mismatch(const control::Group& group, const Announces& calls) {
  const Announce& first = first_of(calls);
  const bool equal = std::all_of(calls.begin(), calls.end(), [&first](const Announce* call) {
    return call == nullptr || agree(first, *call);
  });
  if (equal) return {};
  std::vector<std::pair<std::string, std::vector<uint32_t>>> who;
  size_t others = 0;
  for (uint32_t index = 0; index < calls.size(); ++index) {
    if (calls[index] == nullptr) continue;
    std::string what = describe(*calls[index]);
    auto same = std::ranges::find(who, what, [](const auto& one) { return one.first; });
    if (same == who.end() && who.size() == kMostDescribed) {
      ++others;
      continue;
    }
    if (same == who.end()) same = who.emplace(same, std::move(what), std::vector<uint32_t>());
    same->second.push_back(group.ranks()[index]);
  }
  std::string text = concat("ranks disagree about '", first.name, "'", group.suffix(), ":");
  for (const auto& [what, ranks] : who) {
    text += concat(" ", list_ranks(ranks), ": ", what, ";");
  }
  if (others > 0) {
    text += concat(" and ", counted(others, "more rank"), " with other calls");
  } else {
    text.pop_back();
  }
  return concat(text, wire::kMakeSameCall);
}

// Buffers of an all-to-all are numbered by sender and receiver together, in 32 bits.
constexpr uint32_t kMostRanksOfAlltoall = (1 << 16) - 1;

Status wrong_splits(const Announce& call, uint32_t size) {
  return {Code::kInvalidArgument,
          concat("splits of '", call.name, "' must be ", size,
                 " counts that sum to the first dimension, ", call.arrays.front().rows())};
}

// Checks the arrays of one call against its kind, independently of other ranks.
Status check_shape(const Announce& call, uint32_t size) {
  const bool empty = wire::is<wire::Barrier>(call.what) || wire::is<wire::FormGroup>(call.what) ||
                     wire::is<wire::Join>(call.what);
  const bool bundles = wire::reduction_of(call.what) != nullptr && call.listed;
  const auto* allreduce = std::get_if<wire::AllReduce>(&call.what);
  const bool by_workers =
      allreduce != nullptr && allreduce->algorithm != wire::Algorithm::kHerring;
  if (empty != call.arrays.empty() || (call.arrays.size() > 1 && (!bundles || by_workers))) {
    return {Code::kInvalidArgument, concat("'", call.name, "' cannot be ", wire::name_of(call.what),
                                           " of ", counted(call.arrays.size(), "array"))};
  }
  if (const auto* broadcast = std::get_if<wire::Broadcast>(&call.what);
      broadcast != nullptr && broadcast->root >= size) {
    return {Code::kInvalidArgument, concat("root ", broadcast->root, " of '", call.name,
                                           "' is out of range; the group size is ", size)};
  }
  if (const Reduction* reduction = wire::reduction_of(call.what)) {
    for (const wire::Array& array : call.arrays) {
      HERRING_RETURN_IF_ERROR(check_reducible(array.dtype, *reduction));
    }
  }
  if (const auto* scatter = std::get_if<wire::ReduceScatter>(&call.what)) {
    const bool fit = scatter->rows.empty() || wire::are_splits(scatter->rows, call.arrays, size);
    if (!fit) return wrong_splits(call, size);
  }
  if (const auto* alltoall = std::get_if<wire::AllToAll>(&call.what)) {
    if (size > kMostRanksOfAlltoall) {
      return {Code::kInvalidArgument, concat("'", call.name, "' is an alltoall of ", size,
                                             " ranks; the limit is ", kMostRanksOfAlltoall)};
    }
    if (!wire::are_splits(alltoall->rows, call.arrays, size)) return wrong_splits(call, size);
  }
  return {};
}

const std::vector<uint64_t>& rows_of(const Announce& alltoall) {
  return std::get<wire::AllToAll>(alltoall.what).rows;
}

}  // namespace

const Announce& first_of(const Announces& calls) {
  return **std::find_if(calls.begin(), calls.end(), [](const Announce* one) { return one; });
}

uint64_t payload_bytes(const Announce& a, uint32_t index) {
  const bool gives = a.inline_payload && a.refusal.empty() && wire::gives_data(a.what, index);
  return gives ? a.bytes() : 0;
}

Status check(const control::Group& group, const Announces& calls) {
  if (const std::string text = describe_mismatch(group, calls); !text.empty()) {
    return {Code::kMismatch, text};
  }
  uint64_t all = 0;
  for (const Announce* call : calls) {
    if (call == nullptr) continue;
    HERRING_RETURN_IF_ERROR(check_shape(*call, static_cast<uint32_t>(calls.size())));
    if (__builtin_add_overflow(all, call->bytes(), &all) || all > kLargestResult) {
      return {Code::kInvalidArgument, concat("the arrays of '", call->name, "' are too large: ",
                                             describe(*call))};
    }
  }
  return {};
}

uint64_t largest_reply(const Announces& calls) {
  const wire::Collective& what = first_of(calls).what;
  uint64_t largest = 0;
  if (wire::is<wire::AllGather>(what)) {
    for (const Announce* call : calls) largest += call->bytes();
  } else if (wire::is<wire::AllToAll>(what)) {
    for (size_t to = 0; to < calls.size(); ++to) {
      uint64_t bytes = 0;
      for (const Announce* call : calls) {
        bytes += rows_of(*call)[to] * call->arrays.front().row_bytes();
      }
      largest = std::max(largest, bytes);
    }
  }
  return largest;
}

wire::Go common_head(const Announces& calls) {
  wire::Go go;
  if (!wire::is<wire::AllGather>(first_of(calls).what)) return go;
  for (const Announce* call : calls) go.counts.push_back(call->arrays.front().rows());
  return go;
}

void complete_head(wire::Go& go, const Announces& calls, uint32_t index) {
  go.id = calls[index]->id;
  if (!wire::is<wire::AllToAll>(calls[index]->what)) return;
  go.counts.clear();
  for (const Announce* call : calls) {
    go.counts.push_back(rows_of(*call)[index] * call->arrays.front().row_elements());
  }
}

namespace {

// Reduces the payloads of all ranks, one bundle after the other.
std::string reduced(const Announces& calls, const Reduction& reduction) {
  std::vector<const void*> sources;
  for (const Announce* call : calls) {
    if (call != nullptr) sources.push_back(call->payload.data());
  }
  std::string result(first_of(calls).payload.size(), '\0');
  size_t at = 0;
  for (const wire::Array& array : first_of(calls).arrays) {
    const reduce::Stage stage = reduce::whole(array.dtype, reduction, sources.size());
    if (array.bytes() == 0) continue;
    reduce::combine(sources.data(), sources.size(), result.data() + at, array.elements(), stage);
    for (const void*& source : sources) source = static_cast<const char*>(source) + array.bytes();
    at += array.bytes();
  }
  return result;
}

}  // namespace

Results compute(const Announces& calls) {
  const Announce& first = first_of(calls);
  const auto size = static_cast<uint32_t>(calls.size());
  Results results;
  if (const auto* broadcast = std::get_if<wire::Broadcast>(&first.what)) {
    results.common = calls[broadcast->root]->payload;
  } else if (const auto* allreduce = std::get_if<wire::AllReduce>(&first.what)) {
    results.common = reduced(calls, allreduce->reduction);
  } else if (const auto* scatter = std::get_if<wire::ReduceScatter>(&first.what)) {
    const std::string result = reduced(calls, scatter->reduction);
    results.own.resize(size);
    size_t at = 0;
    for (size_t bundle = 0; bundle < first.arrays.size(); ++bundle) {
      const wire::Array& array = first.arrays[bundle];
      const auto parts = plan::split(array.rows(), size, scatter->rows, bundle);
      for (uint32_t index = 0; index < size; ++index) {
        results.own[index] += result.substr(at + parts[index].first * array.row_bytes(),
                                            parts[index].count * array.row_bytes());
      }
      at += array.bytes();
    }
  } else if (wire::is<wire::AllGather>(first.what)) {
    for (const Announce* call : calls) results.common += call->payload;
  } else if (wire::is<wire::AllToAll>(first.what)) {
    results.own.resize(size);
    for (const Announce* call : calls) {
      const size_t row = call->arrays.front().row_bytes();
      size_t at = 0;
      for (uint32_t to = 0; to < size; ++to) {
        results.own[to] += call->payload.substr(at, rows_of(*call)[to] * row);
        at += rows_of(*call)[to] * row;
      }
    }
  }
  return results;
}

}  // namespace herring::server
