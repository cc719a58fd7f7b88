// What the rendezvous makes of the reports of all processes: the picture of the job, texts about
// ranks that hold others up, and lines for the log. Pure; all times are in the clock of the
// rendezvous.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "observe/groups.h"
#include "observe/picture.h"
#include "observe/rounds.h"

namespace herring::observe {

// A rank that waits or computes for this long is worth telling of.
inline constexpr Nanos kStalled = kSecond;
// Late by far, once: by at least this, and by so many steps.
inline constexpr Nanos kOnceLate = 250 * kMillisecond;
inline constexpr Nanos kOnceSteps = 3;

// What was judged last. A judgement holds until the opposite is clearly true, so that it does not
// turn with every report.
class LastVerdict {
 public:
  explicit LastVerdict(size_t ranks) : late_(ranks) {}

  void take(const Picture& picture);
  // Returns whether a rank stands out from ranks that are late by `mean`, with that error.
  bool standing_out(uint32_t rank, const Rounds::Late& late, double mean, double error,
                    Nanos step) const;
  bool last_too_often(const Rounds::Late& late, Nanos step) const;
  std::optional<uint32_t> slowest(const Picture& picture) const;
  bool binds(Picture::Binds what) const { return binds_ == what; }
  bool binds_rank(uint32_t rank) const { return rank_ == rank; }

 private:
  Picture::Binds binds_ = Picture::Binds::kNothing;
  uint32_t rank_ = ~0u;     // that binds
  std::vector<bool> late_;  // by rank: whether it is late chronically
};

class Monitor {
 public:
  struct Options {
    Nanos report_every = 300 * kSecond;  // the shortest pause between two lines of the log
    Nanos silent_after = kSecond;        // a process that was not heard for this long is told of
    double unix_zero = 0;                // seconds since 1970 when the clock showed 0
  };

  Monitor(Roster roster, Options options, Nanos now);

  // A report has come.
  void report(const Process& from, Report report, Nanos now);
  // A record of a process has come, with news of its groups.
  void groups(const Process& from, const std::vector<GroupNews>& news, Nanos now);
  // When a process, and when it or its system, was last heard.
  void heard(const Process& who, Nanos process, Nanos system);
  // A process has died or left.
  void gone(const Process& who, bool left);

  // A dedicated server has died, and others stand in for it; another process replaces it.
  void server_lost(uint32_t server, Nanos now);
  void server_replaced(uint32_t server, const std::string& host, const std::string& address,
                       int64_t pid, Nanos now);

  // Should be called several times a second.
  void tick(Nanos now);
  Picture picture(Nanos now) const { return picture(now, false); }
  // Returns texts about ranks that others wait for, to be told to all members; at most
  // kMostRankTexts of them.
  RankTexts rank_texts(Nanos now) const;
  // Returns who waits where, if it is certain that no call can ever end; see deadlock.h.
  std::optional<std::string> deadlock(Nanos now) const;
  // Returns lines for the log that are due now.
  std::vector<std::string> due_lines(Nanos now);
  // Returns lines about the whole job, for its end.
  std::vector<std::string> last_lines(Nanos now) const;
  // Returns what a process does or why it says nothing, for people: "has been computing for 12 s
  // (train.py:40 in load)".
  std::string describe(const Process& who, Nanos now) const;
  const Roster& roster() const { return roster_; }

 private:
  // `whole`: what binds is told of the whole job, also while no step ends.
  Picture picture(Nanos now, bool whole) const;
  // What is kept of a report to compare later ones with.
  struct Past {
    Nanos at = 0;  // when the report came
    Resources resources;
    uint64_t retransmits = 0, rounds = 0;
    std::vector<std::pair<uint32_t, Lateness>> lateness;
    std::vector<PathReport> paths;
  };
  // What changed over some seconds.
  struct Change {
    double seconds = 0;
    double major_faults = 0, run_delay = 0;  // per second
    double retransmits = 0;
  };
  struct ProcessState {
    bool reported = false, left = false, lost = false;
    Nanos lost_at = 0, replaced_at = 0;  // of a server; 0: never
    std::string lost_host;
    Report report;
    Nanos at = 0;                 // when the report came
    Nanos process_heard = 0, system_heard = 0;
    Nanos longest_silence = 0;    // of the process, lately
    Nanos silence_at = 0;
    // Of the last kMemory, about one a second, and the latest one.
    std::deque<Past> earlier;
    // What its code did when it last computed for long, and why it was late by far in a round.
    struct Reason {
      Nanos at = 0;
      uint32_t round = 0;
      std::string cause, stack;
    } stall, once;
    std::map<std::string, double> causes;  // of its code; what was seen lately weighs more

    Nanos made_at() const;  // when the report was made
    Change change() const;
  };
  // Round trips between ranks and servers, of the last few reports. A path is as slow as the slower
  // one of its ends, so the fast paths of a process tell how fast its own link is: their lower
  // quartile. A process whose round trips are much longer than those of the median rank has a slow
  // link.
  struct Links {
    std::vector<Nanos> ranks, servers;
    Nanos typical = 0;  // 0: not known
    bool told = false;  // this system tells round trips
    bool slow(Nanos rtt) const { return typical > 0 && rtt > 4 * typical + 2 * kMillisecond; }
  };
  // What all ranks have in common.
  struct Compared {
    std::vector<Rounds::Late> late, latest;  // by rank: over all that counts, and lately
    // By how much the median rank is late, and the error of that.
    double mean = 0, error = 0, latest_mean = 0, latest_error = 0;
    Links links;
  };
  // Sums over all servers of what changed over some seconds, by rank.
  struct LateAtServers {
    double calls = 0, last_calls = 0, calls_waited = 0;      // waited: seconds
    double segments = 0, last_segments = 0, segments_waited = 0;
  };

  // What is usual in the whole job at one moment; lists are sorted.
  struct Usual {
    std::vector<double> rank_faults, rank_delays, server_faults, server_delays;
    std::vector<LateAtServers> at_servers;  // by rank
    uint32_t pushing = 0;                   // ranks that push segments
    double last_segments = 0;               // a rank's share of segments that came last, the median
  };

  const ProcessState& known(const Process& who) const;
  ProcessState& known(const Process& who);
  State state_of(const Process& who, Nanos now) const;
  std::vector<LateAtServers> late_at_servers() const;
  Usual usual() const;
  Links links() const;
  Compared compare() const;
  bool mute(const Process& who, Nanos now) const;
  void note_long_round(uint32_t rank, const RoundSample& sample, Nanos now);
  void judge_rank(Picture& picture, uint32_t rank, const Usual& usual, const Compared& compared,
                  Nanos now) const;
  void judge_server(Picture& picture, uint32_t index, const Usual& usual, const Links& links,
                    Nanos now) const;
  std::optional<Nanos> absent_until(uint32_t rank, const std::string& what, Nanos told,
                                    Nanos now) const;
  void find_missing(Picture& picture, Nanos now) const;
  void find_messages(Picture& picture, Nanos now) const;
  Nanos usual_wait(const Picture& picture, uint32_t rank, Nanos time, Nanos now) const;
  void blame_missing(Picture& picture, Nanos now) const;
  // `late`: the part of the time by which it is late, if that is known.
  std::string own_cause(const Process& who, const Usual& usual, Nanos now, double late = 0) const;
  void judge_binding(Picture& picture) const;
  void add_operations(Picture& picture) const;
  uint32_t living() const;

  static constexpr Nanos kMemory = 10 * kSecond;  // how far back changes reach
  static constexpr Nanos kSpacing = kSecond;      // between reports that are kept

  Roster roster_;
  const Options options_;
  const Nanos began_;
  std::vector<ProcessState> ranks_, servers_;
  Rounds rounds_;
  Groups groups_;
  Usual usual_;  // at the last tick
  LastVerdict last_;
  Nanos step_ended_ = 0;  // the latest one of any rank; 0: none has ended
  uint32_t epoch_ = 0;
  Nanos line_due_ = 0, judgement_due_ = 0;
  bool young_ = true;  // there was no line yet
};

}  // namespace herring::observe
