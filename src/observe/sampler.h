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

  // `ended`: the entries that have ended since the last call, in the order of their end. If there
  // are too many rounds, only those are sampled whose number is a multiple of stride(), a power of
  // two, so that all ranks pick the same ones; and those that took much longer than usual.
  std::vector<RoundSample> take(const std::vector<Entry>& ended);
  uint32_t stride() const { return stride_; }

 private:
  using Series = std::pair<uint32_t, uint32_t>;            // group, stream
  using Key = std::tuple<uint32_t, uint32_t, uint32_t>;  // and round
  struct Buffers {
    Nanos reduced = 0, pushed = 0;  // the latest of all
    uint64_t bytes = 0;
  };
  static constexpr size_t kMostRounds = 1024;  // whose buffers are remembered

  const size_t most_;
  uint32_t stride_ = 1;
  std::map<Key, Buffers> buffers_;   // of rounds that have not ended
  std::map<Series, Nanos> done_;     // when the latest round was done
  double usual_ = 0;                 // duration of a round, an average
};

}  // namespace herring::observe
