// Makes the reports of a worker: what its program does and where its code is, samples of the rounds
// that have ended, and counters.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "observe/report.h"
#include "observe/sampler.h"
#include "worker/engine.h"

namespace herring::job {

class WorkerReports {
 public:
  // `engine` must outlive this object.
  explicit WorkerReports(worker::Engine& engine);

  // Returns a report if one is due. Looks where the code is when that is worth knowing: while the
  // program computes for long, and if the rank is late in many steps, when it computes longer than
  // other ranks do. Called on one thread, repeatedly, after pauses of pause().
  std::optional<observe::Report> collect();
  Nanos pause() const;
  // The rendezvous has told of ranks that hold others up. Any thread.
  void told(const observe::RankTexts& texts, uint32_t own_rank);

 private:
  bool computes_too_long(Nanos now, Nanos usual);
  observe::Report make(Nanos now, const worker::Activity& activity);

  static constexpr Nanos kInterval = kSecond, kStalledInterval = 250 * kMillisecond;
  static constexpr Nanos kStalled = 400 * kMillisecond;
  static constexpr Nanos kLook = 5 * kMillisecond;         // between two looks at a late rank
  static constexpr Nanos kAnswer = 60 * kMillisecond;      // in which the program's stack comes

  worker::Engine& engine_;
  observe::Sampler sampler_;
  uint64_t cursor_ = 0;           // in the recorder
  Nanos due_ = 0;                 // when the next report is
  Nanos asked_ = 0;               // when this thread last asked for the program's stack
  bool delayed_ = false;          // the report waits for the answer
  std::atomic<Nanos> watched_{-1};  // how long others compute; -1: this rank is not late
};

}  // namespace herring::job
