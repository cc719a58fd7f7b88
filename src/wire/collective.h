// The named operations. Each kind has its own fields, which calls and announcements carry. Ranks
// are indices in the group.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>
#include <variant>
#include <vector>

#include "base/dtype.h"

namespace herring::wire {

// Who performs an all-reduce: servers, or workers by messages (collective/schedule.h).
enum class Algorithm : uint8_t {
  kHerring = 0,
  kServer,
  kTree,
  kRing,
  kButterfly,
  kDoubling,
};
inline constexpr int kNumAlgorithms = 6;
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
  std::vector<uint64_t> rows;  // rows of each rank, bundle after bundle; empty: even splits
  static auto fields(auto& self) { return std::tie(self.reduction, self.rows); }
};

struct AllToAll {
  static constexpr const char* kName = "alltoall";
  std::vector<uint64_t> rows;  // rows for each rank
  static auto fields(auto& self) { return std::tie(self.rows); }
};

struct Barrier {
  static constexpr const char* kName = "barrier";
  static auto fields(auto&) { return std::tie(); }
};

// Called by the group's members only, whatever the group in the frame is.
struct FormGroup {
  static constexpr const char* kName = "form_group";
  std::vector<uint32_t> ranks;  // ranks of the job, ascending
  // How often the rank has called for this name and these ranks, now included. Always 0 for a name
  // that no other call has, and in a job that ends when a server dies.
  uint32_t turn = 1;
  // The group's number, if a server that is lost gave one to this rank; else 0.
  uint32_t number = 0;
  static auto fields(auto& self) { return std::tie(self.ranks, self.turn, self.number); }
};

struct Send {
  static constexpr const char* kName = "send";
  uint32_t to = 0;
  uint64_t tag = 0;
  static auto fields(auto& self) { return std::tie(self.to, self.tag); }
};

struct Receive {
  static constexpr const char* kName = "receive";
  std::optional<uint32_t> from;  // empty: from any other rank
  std::optional<uint64_t> tag;   // empty: any tag
  static auto fields(auto& self) { return std::tie(self.from, self.tag); }
};

// All-reduces go on without this rank until every rank has joined.
struct Join {
  static constexpr const char* kName = "join";
  uint64_t called = 0;  // all-reduces that this rank has called since its last join
  static auto fields(auto& self) { return std::tie(self.called); }
};

using Collective = std::variant<AllReduce, Broadcast, AllGather, ReduceScatter, AllToAll, Barrier,
                                FormGroup, Send, Receive, Join>;

template <typename Kind>
bool is(const Collective& what) {
  return std::holds_alternative<Kind>(what);
}

const char* name_of(const Collective& what);
// Returns the collective of that name with the fields' default values, or nothing if there is none.
std::optional<Collective> collective_of(std::string_view name);
// Returns the reduction, or null if the collective does not reduce.
const Reduction* reduction_of(const Collective& what);
// Returns whether calls of this collective are paired by ranks and tags.
bool is_message(const Collective& what);
// Returns the other rank of a message, inside its group; nothing if it may be any rank, or if the
// call is no message.
std::optional<uint32_t> other_of(const Collective& what);
// Returns whether the rank has data for others. In a broadcast, only the root has data.
bool gives_data(const Collective& what, uint32_t rank);
// Returns whether ranks may differ in the first dimension of their arrays.
bool is_ragged(const Collective& what);
// Returns whether the callers can proceed without a rank that has joined.
bool goes_without_joined(const Collective& what);
// Returns whether two ranks' calls match, ignoring what each rank may choose freely.
bool agree(const Collective& a, const Collective& b);

// The end of a message about calls that do not match: what the user does next.
inline constexpr std::string_view kMakeSameCall =
    ". Every rank must make the same call; look for code that depends on the rank";

}  // namespace herring::wire
