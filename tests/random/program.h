// Defines a random job: a layout of ranks on nodes with its settings, and programs that the ranks
// run one after the other. All of the job follows from a seed. Nothing here talks to the core.
//
// A program has lanes. Each rank runs every lane on a thread of its own, so lanes of a rank overlap
// in any way. A lane has batches, in the same order on all ranks. Inside a batch every rank submits
// the steps in an order of its own. A rank waits for a batch at once or up to kDeferral batches
// later, again in an order of its own. The other ranks submit what a rank waits for before they
// wait for anything later. A program that hangs is therefore a fault of the core.
//
// Steps include all ranks, or only the members of a group. Groups overlap in any way, and lanes use
// different groups at the same time. Some groups are formed at the program's start, where each rank
// requests all of its groups before it waits for any. Others are formed by a step of a lane, which
// then uses them. A batch that ends with a join is waited for at once. Not every rank calls its
// all-reduces.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "plan/plan.h"
#include "tests/random/random.h"
#include "wire/messages.h"

namespace herring::random_test {

// What may occur in programs. Each feature can be left out, to look for one thing at a time.
enum Feature : uint32_t {
  kLarge = 1 << 0,       // arrays beyond small_bytes, up to several MB
  kPlans = 1 << 1,       // planned operations
  kPartials = 1 << 2,    // series of partial all-reduces
  kAlgorithms = 1 << 3,  // ring, butterfly, doubling, tree, server
  kLanes = 1 << 4,       // several threads per rank
  kProxies = 1 << 5,     // 2 or 4 proxies per server
  kMismatches = 1 << 6,  // a rank calls an operation with something else
  kLateness = 1 << 7,    // short timeouts, and ranks that come late
  kDrops = 1 << 8,       // handles that nobody waits for
  kCloses = 1 << 9,      // plans closed as soon as their last round is over on this rank
  kEndings = 1 << 10,    // abort and shutdown in the middle of the job
  kAgain = 1 << 11,      // several jobs one after the other at one address
  kWeights = 1 << 12,    // server_weights
  kCounts = 1 << 13,     // the number of contributors to planned rounds is checked
  kTorn = 1 << 14,       // plans closed inside a round
  kGroups = 1 << 15,     // steps of some ranks only
  kJoins = 1 << 16,      // some ranks call all-reduces that others have left out by joining
  kLeaving = 1 << 17,    // ranks leave when they have done their part; others go on
  kDeaths = 1 << 18,     // a rank dies
  kMessages = 1 << 19,   // sends and receives
  kLists = 1 << 20,      // arrays that are cut into lists
  kEightBits = 1 << 21,  // plans whose gradients travel in 8 bits
  kTopK = 1 << 22,       // plans of which only the largest gradients travel
};
inline constexpr struct {
  const char* name;
  uint32_t bit;
} kFeatures[] = {{"large", kLarge},           {"plans", kPlans},       {"partials", kPartials},
                 {"algorithms", kAlgorithms}, {"lanes", kLanes},       {"proxies", kProxies},
                 {"mismatches", kMismatches}, {"lateness", kLateness}, {"drops", kDrops},
                 {"closes", kCloses},         {"endings", kEndings},   {"again", kAgain},
                 {"weights", kWeights},       {"counts", kCounts},
                 {"torn", kTorn},             {"groups", kGroups},     {"joins", kJoins},
                 {"leaving", kLeaving},       {"deaths", kDeaths},     {"messages", kMessages},
                 {"lists", kLists},           {"eight-bits", kEightBits}, {"top-k", kTopK}};

inline constexpr uint32_t kDeferral = 2;  // batches

struct Layout {
  uint32_t size = 1, nodes = 1, dedicated = 0, lanes = 1;
  uint32_t generations = 1;  // jobs, one after the other
  std::vector<uint32_t> node_of;  // by rank
  std::map<std::string, std::string> settings;
  uint64_t small_bytes = 0, segment_bytes = 0;
  std::string describe() const;
};

enum class Kind : uint8_t {
  kAllreduce,
  kBroadcast,
  kAllgather,
  kReduceScatter,
  kAlltoall,
  kBarrier,
  kPlanned,  // one round
  kPartial,    // a whole series
  kFormGroup,  // its own group
  kJoin,       // last of its batch on every rank
  kMessage,    // from one rank to another
};
const char* name_of(Kind kind);

// Ranks that do steps together. The first group of a program is all ranks, and is never formed.
struct GroupSpec {
  std::string name;
  std::vector<uint32_t> ranks;  // ascending
  bool formed_by_lane = false;  // otherwise at the program's start
};

// How one rank takes part in a step.
struct Part {
  uint32_t late_ms = 0;      // how much later the rank calls
  bool drops = false;        // it never waits for the result
  bool forgets = false;      // and releases the handle at once
  bool shared = false;       // its array lies in the shared heap
  bool active = true;        // in a planned round; in an all-reduce, false: it has joined
  bool contradicts = false;  // it calls the operation with one more element
};

// One operation, as all ranks of its group call it. Ranks are numbered by their place in the group.
struct Step {
  static constexpr uint32_t kNobody = ~0u;

  uint32_t id = 0;
  uint32_t group = 0;           // of the program; for kFormGroup, the new group
  std::vector<uint32_t> ranks;  // of the job: the group's, or the two of a message
  Kind kind = Kind::kBarrier;
  std::string name;
  uint64_t salt = 0;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  wire::Algorithm algorithm = wire::Algorithm::kHerring;
  double prescale = 1.0, postscale = 1.0;
  uint32_t root = 0;                           // kMessage: the sender
  bool any_source = false;                     // kMessage: received from any rank
  uint64_t row = 1;                            // elements
  bool listed = false;                         // the array is given as a list of its parts
  std::vector<uint64_t> rows;                  // by rank
  std::vector<std::vector<uint64_t>> splits;   // all-to-all: rows from each rank to each
  double timeout = 0;                          // seconds; 0 means the job's
  uint32_t plan = 0;                           // kPlanned
  uint32_t quorum = 1, rounds = 1;             // kPartial
  bool closes = false;                         // kPlanned: the plan ends with this round
  bool late = false;                           // kDepart: called without the departed rank
  std::vector<Part> parts;                     // by rank

  bool mismatched() const;
  uint32_t size() const { return static_cast<uint32_t>(ranks.size()); }
  uint32_t place_of(uint32_t rank) const;  // kNobody if not a member
  uint64_t elements(uint32_t place) const { return rows[place] * row; }
  std::string describe() const;
};

struct PlanSpec {
  std::string name;
  uint32_t group = 0;
  ReduceOp op = ReduceOp::kAverage;
  bool narrow = false;
  DType wire = DType::kFloat32;
  size_t buffer_bytes = 0;
  size_t note_bytes = 0;
  std::vector<plan::Gradient> gradients;
  bool sparse() const { return narrow && is_sparse(wire); }
};

// How a program ends a job early, if it does. The rank that ends it and those that depend on that
// rank then get errors. Rank::check_outcome() says which ones.
enum class Ending : uint8_t {
  kNone,
  kAbort,      // a rank calls abort() after some time
  kLeave,      // a rank shuts down after some time
  kClosePlan,  // a rank closes a plan inside the round of `ending_step`
  kDepart,     // a rank leaves after its part of what is not late; nothing fails
  kAllLeave,   // every rank leaves after its part without waiting for others; nothing fails
  kDie,        // a rank dies after some time
};

struct Program {
  uint32_t index = 0;
  std::vector<GroupSpec> groups;
  std::vector<PlanSpec> plans;
  std::vector<Step> steps;
  std::vector<std::vector<std::vector<uint32_t>>> lanes;  // lanes, batches, steps
  Ending ending = Ending::kNone;
  uint32_t ending_rank = 0, ending_ms = 0, ending_step = 0;
  // With kLeave, kDepart and kDie, the others go on with what does not need the rank that is gone.
  // None of them leaves before all are done.
  bool goes_on = false;
  bool all_take_part = true;  // some step or plan includes all ranks
};

Layout make_layout(uint64_t seed, uint32_t features);
Program make_program(uint64_t seed, uint32_t index, const Layout& layout, uint32_t features,
                     bool may_end);

}  // namespace herring::random_test
