// The named operations: each kind with its own fields, as calls and announcements have them. Ranks
// are those inside the group.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>
#include <variant>
#include <vector>

#include "base/dtype.h"

namespace herring::wire {

// How an all-reduce is done: by servers, or by messages between workers (collective/schedule.h).
enum class Algorithm : uint8_t {
  kHerring = 0,
  kServer,
  kTree,
  kRing,
  kButterfly,
};
inline constexpr int kNumAlgorithms = 5;
const char* name_of(Algorithm algorithm);  // "herring", ...

struct AllReduce {
  static constexpr const char* kName = "allreduce";
  Reduction reduction;
  Algorithm algorithm = Algorithm::kHerring;
  static auto fields(auto& self) { return std::tie(self.reduction, self.algorithm); }
};

struct Broadcast {
  static constexpr const char* kName = "broadcast";
  uint32_t root = 0;
  static auto fields(auto& self) { return std::tie(self.root); }
};

struct AllGather {
  static constexpr const char* kName = "allgather";
  static auto fields(auto&) { return std::tie(); }
};

struct ReduceScatter {
  static constexpr const char* kName = "reduce_scatter";
  Reduction reduction;
  std::vector<uint64_t> rows;  // for each rank, of each bundle after the other; none: even ones
  static auto fields(auto& self) { return std::tie(self.reduction, self.rows); }
};

struct AllToAll {
  static constexpr const char* kName = "alltoall";
  std::vector<uint64_t> rows;  // for each rank
  static auto fields(auto& self) { return std::tie(self.rows); }
};

struct Barrier {
  static constexpr const char* kName = "barrier";
  static auto fields(auto&) { return std::tie(); }
};

// By its members alone, whatever the frame's group.
struct FormGroup {
  static constexpr const char* kName = "form_group";
  std::vector<uint32_t> ranks;  // of the job, ascending
  static auto fields(auto& self) { return std::tie(self.ranks); }
};

struct Send {
  static constexpr const char* kName = "send";
  uint32_t to = 0;
  uint64_t tag = 0;
  static auto fields(auto& self) { return std::tie(self.to, self.tag); }
};

struct Receive {
  static constexpr const char* kName = "receive";
  std::optional<uint32_t> from;  // none: any other rank
  std::optional<uint64_t> tag;   // none: any
  static auto fields(auto& self) { return std::tie(self.from, self.tag); }
};

// All-reduces go on without this rank until every rank has joined.
struct Join {
  static constexpr const char* kName = "join";
  uint64_t called = 0;  // all-reduces, by this rank, since the last time
  static auto fields(auto& self) { return std::tie(self.called); }
};

using Collective = std::variant<AllReduce, Broadcast, AllGather, ReduceScatter, AllToAll, Barrier,
                                FormGroup, Send, Receive, Join>;

template <typename Kind>
bool is(const Collective& what) {
  return std::holds_alternative<Kind>(what);
}

const char* name_of(const Collective& what);
// Of that name, with its fields as they are above; none: there is none.
std::optional<Collective> collective_of(std::string_view name);
// Null: it does not reduce.
const Reduction* reduction_of(const Collective& what);
// Its calls are paired by ranks and tags.
bool is_message(const Collective& what);
// Whether the rank has data for others: of a broadcast only the root has any.
bool gives_data(const Collective& what, uint32_t rank);
// Whether ranks may differ in the first dimension of their arrays.
bool is_ragged(const Collective& what);
// Whether those who call can do without a rank that has joined.
bool goes_without_joined(const Collective& what);
// Whether two ranks give the same, but for what each may give as it likes.
bool agree(const Collective& a, const Collective& b);

}  // namespace herring::wire
