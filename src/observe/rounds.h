// Compares the rounds of planned operations over all ranks: who was late, by how much, and where
// the time of a step went. Pure; all times are in the clock of the rendezvous.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "observe/report.h"

namespace herring::observe {

// Quantiles that need no interpolation: element floor(q * (n - 1)) in order. So the median of two
// ranks is the earlier one, and the later one is late.
Nanos quantile(std::vector<Nanos> values, double q);
inline Nanos median(std::vector<Nanos> values) { return quantile(std::move(values), 0.5); }

class Rounds {
 public:
  // Number of compared rounds that count.
  static constexpr size_t kWindow = 128;

  explicit Rounds(uint32_t size) : verdicts_(size) {}

  // Adds a sample whose times were moved to the clock of the rendezvous. `error`: the bound of the
  // error of that clock.
  void add(uint32_t rank, const RoundSample& sample, Nanos error, Nanos now);
  // Compares the rounds of which all have told, and those that are old. `expected`: how many ranks
  // tell of rounds of group 0.
  void compare(uint32_t expected, Nanos now);

  // How late a rank was in the compared rounds: later than the median rank by more than noise.
  struct Late {
    uint32_t rounds = 0;       // compared rounds with this rank
    uint32_t late = 0;         // rounds in which it was late
    uint32_t last = 0;         // of these, rounds in which all others waited for it
    Nanos median = 0, most = 0;  // over the rounds in which it was late
    uint32_t most_round = 0;   // number of the round in which it was late by `most`
    // Of the time by which it was late: the part that it computed longer than the median rank, and
    // the part by which results of the round before had reached it later.
    double computed = 0, received = 0;
    // By how much its data came later than that of the median rank, over all rounds, and the
    // standard error of this mean. Ranks that are late by chance have the same mean.
    double mean = 0, mean_error = 0;
    // Per round, the median: how long it computed, and how long its program waited.
    Nanos work = 0, waited = 0;
    double share() const { return rounds == 0 ? 0 : static_cast<double>(late) / rounds; }
  };
  // `latest`: the number of rounds that count.
  Late late(uint32_t rank, size_t latest = kWindow) const;
  // How fast a rank computes in relation to the median rank: 1 if as fast or faster, 0.5 if it
  // takes twice as long. 1 while nothing is known.
  double score(uint32_t rank) const;
  // Returns how long the median rank computed in the latest round of this rank; 0 if not known.
  Nanos usual_work(uint32_t rank) const {
    return verdicts_[rank].empty() ? 0 : verdicts_[rank].back().typical_work;
  }

  // Where the time of a step goes, as medians over ranks and rounds. The phases of the median rank
  // follow each other; `ranks` is part of the time after `compute`.
  struct Split {
    Nanos step = 0, shortest = 0, longest = 0;
    Nanos most = 0;        // nine in ten steps take no longer
    Nanos compute = 0;     // until the rank has given all its data
    Nanos ranks = 0;       // until the last rank has
    Nanos spread = 0;      // from the first rank's data to the last one's
    Nanos node_stage = 0, push = 0, pull = 0;  // of the rest
    Nanos tail = 0;        // from the last rank's data to the results
    Nanos exposed = 0;     // how long the program waited
    uint64_t bytes = 0;    // of gradients in a round
  };
  Split split() const;
  uint64_t compared() const { return compared_; }
  // Returns the number of rounds of which not all ranks have told yet.
  size_t open() const { return open_.size(); }

 private:
  using Key = std::tuple<uint32_t, uint32_t, uint32_t>;  // group, stream, round
  struct Told {
    uint32_t rank = 0;
    RoundSample sample;
    Nanos error = 0;
  };
  struct Open {
    Nanos since = 0;
    std::vector<Told> told;
  };
  // What one compared round says about one rank.
  struct Verdict {
    uint32_t round = 0;
    bool late = false, last = false;
    Nanos by = 0, computed = 0, received = 0;
    Nanos work = 0, typical_work = 0, waited = 0;
  };

  // Ranks that were seen in a group, and when it was first seen.
  struct Seen {
    Nanos since = 0;
    std::set<uint32_t> ranks;
  };

  size_t awaited(uint32_t group, uint32_t expected, Nanos now) const;
  void compare_one(const Key& key, const Open& open);

  // Rounds that wait for samples; more than these are dropped, oldest first.
  static constexpr size_t kMostOpen = 1024;
  static constexpr Nanos kPatience = 3 * kSecond;
  // All members of a group that was seen for this long have told of it.
  static constexpr Nanos kFamiliar = kSecond;

  std::map<Key, Open> open_;
  std::map<uint32_t, Seen> groups_;  // without group 0
  std::vector<std::deque<Verdict>> verdicts_;  // by rank
  std::deque<Split> splits_;
  uint64_t compared_ = 0;
};

}  // namespace herring::observe
