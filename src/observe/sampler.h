// Makes samples of rounds from the entries of a worker's recorder. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "observe/entry.h"
#include "observe/report.h"

namespace herring::observe {

class Sampler {
 public:
  // `most`: the number of samples that one report may have, a power of two.
  explicit Sampler(size_t most = 32) : most_(most) {}

  // Adds the next entry that has ended.
  void add(const Entry& ended);
  // Returns samples of the rounds that were added since the last call. If these are too many, only
  // those are sampled whose number is a multiple of stride(), a power of two, so that all ranks
  // pick the same ones; and those that took much longer than usual.
  std::vector<RoundSample> take();
  uint32_t stride() const { return stride_; }
  // Of how many plans the latest round is remembered. A program may make and close plans for ever.
  static constexpr size_t kMostPlans = 256;

 private:
  using Series = std::pair<uint32_t, uint32_t>;            // group, stream
  using Key = std::tuple<uint32_t, uint32_t, uint32_t>;  // and round
  struct Buffers {
    Key key;
    Nanos reduced = 0, pushed = 0;  // the latest of all
    uint64_t bytes = 0;
  };
  struct Sample {
    RoundSample of;
    bool is_long = false;
  };
  static constexpr size_t kMostRounds = 256;  // whose buffers are remembered

  std::vector<Buffers>::iterator buffers_of(const Key& key);
  Nanos& done_of(const Series& series);
  void thin(uint32_t stride);

  const size_t most_;
  uint32_t stride_ = 1;
  std::vector<Sample> samples_;      // since the last take(); all are long or multiples of finest_
  size_t rounds_ = 0;                // since then, of which finest_ keeps at most most_
  uint32_t finest_ = 1;
  std::vector<Buffers> buffers_;     // of rounds that have not ended: few, the latest at the end
  std::map<Series, Nanos> done_;     // when the latest round of a plan was done
  double usual_ = 0;                 // duration of a round, an average
};

}  // namespace herring::observe
