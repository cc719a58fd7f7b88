// The state of a job at one moment, as the rendezvous knows it: what `herring status` shows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "observe/groups.h"
#include "observe/report.h"
#include "observe/roster.h"
#include "observe/rounds.h"

namespace herring::observe {

enum class State {
  kStarting,     // it has not reported yet
  kComputing,    // its program is outside of Herring
  kWaiting,      // its program waits in an operation
  kServing,      // a server that reports
  kSilent,       // it has not reported for a while, though its process is heard
  kStopped,      // its process is not heard, though its host answers
  kUnreachable,  // its host does not answer
  kLeft,
  kLost,
};
const char* name_of(State state);
// Whether nothing is heard of a process in this state.
inline bool is_unheard(State state) {
  return state == State::kStopped || state == State::kUnreachable;
}

struct Picture {
  struct Common {
    State state = State::kStarting;
    Nanos heard = 0;         // how long ago its process was heard
    bool reported = false;   // `report` is from this process
    Report report;           // the latest
    std::string cause;       // why it is late or slow: "compute", "input", ...; empty: not known
    bool outlier = false;    // worth a line of its own
    Nanos rtt = 0;           // if the cause is "link" and round trips show it

    // For how long it has been in its state. A process may stop before it has reported anything.
    Nanos age() const { return is_unheard(state) ? heard : report.age; }
  };
  struct Rank : Common {
    Rounds::Late late;
    double score = 1;
    bool chronic = false;    // late in most steps or calls
    bool once = false;       // late by far, but only once or twice
    Nanos late_by = 0;       // what is typical: for chronic ranks the median, else the most
    double late_share = 0;   // of steps, or of calls
    bool in_steps = true;    // the numbers count steps, not calls
  };
  struct Server : Common {
    // How long ago its predecessor, or it itself, was lost while others stood in for it, and where
    // that ran; and how long ago it took over. Negative: never.
    Nanos lost = -1, replaced = -1;
    std::string lost_host;
  };
  // What has ended of one collective and one range of sizes, on all ranks together.
  struct Operation {
    const char* collective = "";
    const char* size = "";
    uint64_t ended = 0, bytes = 0;
    double seconds = 0;
  };
  enum class Binds { kNothing, kCompute, kRank, kNodeStage, kNetwork };

  // Returns how many dedicated servers may be lost, one after the other, before the job ends. None
  // without failover. Who is lost and has no successor yet has been counted.
  uint32_t servers_to_spare() const;

  const Roster* roster = nullptr;
  double time = 0;           // seconds since 1970
  Nanos uptime = 0;
  uint32_t epoch = 0;
  std::vector<Rank> ranks;
  std::vector<Server> servers;
  std::vector<Missing> missing;
  std::vector<Groups::View> groups;   // by number, that of all ranks first
  std::vector<Operation> operations;  // by collective and size
  Nanos typical_rtt = 0;     // between ranks and servers
  Rounds::Split split;
  uint64_t compared = 0;     // rounds
  uint64_t rounds = 0;       // of the rank with the most
  double rounds_per_second = 0;
  Nanos step_ended = -1;     // how long ago the last step ended; negative: none has
  bool stands = false;       // that is far longer ago than steps usually take
  Binds binds = Binds::kNothing;
  double binds_share = 0;    // of a step
  std::optional<uint32_t> binds_rank;  // for Binds::kRank; none if each rank is late at times
  std::string binds_who;     // its name
  std::string advice;
  std::vector<std::string> findings;  // the most important one first
};

const char* name_of(Picture::Binds binds);

// One line for each thing that is worth one.
std::vector<std::string> find(const Picture& picture);
// Returns how much faster a step would be with one server per node, and how many more those are;
// nothing if that would not help. Paper, section III: time is 2n(n-1)M / ((n^2 + kn - 2k)B).
struct MoreServers {
  uint32_t more = 0;
  double times = 1;
};
std::optional<MoreServers> more_servers(uint32_t nodes, uint32_t dedicated, Nanos step, Nanos tail);

// The three formats. JSON has the schema "herring-status-1", see docs/how-to/status.md. Text lists
// outliers only, unless `all`. Metrics are in Prometheus' text format.
std::string as_json(const Picture& picture);
std::string as_text(const Picture& picture, bool all);
std::string as_metrics(const Picture& picture);

}  // namespace herring::observe
