// What the rendezvous makes of the reports of all processes: the picture of the job, texts about
// ranks that hold others up, and lines for the log. Pure; all times are in the clock of the
// rendezvous.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "observe/picture.h"
#include "observe/rounds.h"

namespace herring::observe {

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
  // When a process, and when it or its system, was last heard.
  void heard(const Process& who, Nanos process, Nanos system);
  // A process has died or left.
  void gone(const Process& who, bool left);

  // Should be called several times a second.
  void tick(Nanos now);
  Picture picture(Nanos now) const;
  // Returns texts about ranks that others wait for, to be told to all members; at most
  // kMostRankTexts of them.
  RankTexts rank_texts(Nanos now) const;
  // Returns lines for the log that are due now.
  std::vector<std::string> due_lines(Nanos now);
  // Returns lines about the whole job, for its end.
  std::vector<std::string> last_lines(Nanos now) const;
  // Returns what a process does or why it says nothing, for people: "computes since 12 s
  // (train.py:40 in load)".
  std::string describe(const Process& who, Nanos now) const;
  const Roster& roster() const { return roster_; }

 private:
  struct Known {
    bool reported = false, left = false, lost = false;
    Report report;
    Nanos at = 0;                 // when the report came
    Nanos process_heard = 0, system_heard = 0;
    Nanos longest_silence = 0;    // of the process, lately
    Nanos silence_at = 0;
    // The report of some seconds ago, which the latest one is compared with.
    std::deque<std::pair<Nanos, Report>> earlier;
    // What its code did when it last computed for long, and why it was late by far in a round.
    struct Reason {
      Nanos at = 0;
      uint32_t round = 0;
      std::string cause, stack;
    } stall, once;
    std::map<std::string, double> causes;  // of its code; what was seen lately weighs more
  };
  // What changed over some seconds.
  struct Change {
    double seconds = 0;
    double major_faults = 0, run_delay = 0;  // per second
    double retransmits = 0;
  };
  // Round trips between ranks and servers: the median over the other end of a process, of the last
  // few reports. A process whose round trips are much longer than is typical has a slow link.
  struct Links {
    std::vector<Nanos> ranks, servers;
    Nanos typical = 0;  // 0: not known
    bool told = false;  // this system tells round trips
    bool slow(Nanos rtt) const { return typical > 0 && rtt > 4 * typical + 2 * kMillisecond; }
  };
  // What all ranks have in common.
  struct Compared {
    std::vector<Rounds::Late> late, latest;  // by rank: over all that counts, and lately
    double mean = 0, latest_mean = 0;        // by how much ranks are late
    Links links;
  };
  // Sums over all servers of what changed over some seconds, by rank.
  struct LateAtServers {
    double calls = 0, last_calls = 0, calls_waited = 0;      // waited: seconds
    double segments = 0, last_segments = 0, segments_waited = 0;
  };

  const Known& known(const Process& who) const;
  Known& known(const Process& who);
  State state_of(const Process& who, Nanos now) const;
  static Change change(const Known& known);
  std::vector<LateAtServers> late_at_servers() const;
  Links links() const;
  Compared compare() const;
  bool chronic(const Rounds::Late& late, double typical_mean, Nanos step) const;
  bool mute(const Process& who, Nanos now) const;
  void note_long_round(uint32_t rank, const RoundSample& sample, Nanos now);
  void judge_rank(Picture& picture, uint32_t rank, const Compared& compared,
                  const std::vector<LateAtServers>& at_servers, Nanos now) const;
  void judge_server(Picture& picture, uint32_t index, const Links& links, Nanos now) const;
  void find_missing(Picture& picture, Nanos now) const;
  void blame_missing(Picture& picture, Nanos now) const;
  // `late`: the part of the time by which it is late, if that is known.
  std::string own_cause(const Process& who, Nanos now, double late = 0) const;
  void judge_binding(Picture& picture) const;
  uint32_t living() const;

  static constexpr Nanos kMemory = 10 * kSecond;  // how far back changes reach

  const Roster roster_;
  const Options options_;
  const Nanos began_;
  std::vector<Known> ranks_, servers_;
  Rounds rounds_;
  uint32_t epoch_ = 0;
  Nanos line_due_ = 0;
};

}  // namespace herring::observe
