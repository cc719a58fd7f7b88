// What a worker tells: what its program does and where its code is, samples of the rounds that have
// ended, and counters.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "job/report_source.h"
#include "observe/looks.h"
#include "observe/sampler.h"
#include "worker/engine.h"

namespace herring::job {

// Looks where the code is when that is worth knowing: while the program computes for long, and if
// the rank is late in many steps, at times in these steps.
class WorkerReports final : public ReportSource {
 public:
  // `engine` must outlive this object.
  WorkerReports(worker::Engine& engine, uint32_t rank) : engine_(engine), rank_(rank) {}

  Nanos pause() const override;
  std::optional<observe::Report> report() override;
  observe::ProcessRecord timeline(bool last) override;
  observe::ProcessRecord record() override;
  void told(const observe::RankTexts& texts) override;
  void dropped() override;
  // Returns how late this rank is in a step, on average; 0 if it is rarely late. Any thread.
  Nanos late() const { return late_.load(); }

 private:
  void look(Nanos now);
  observe::Still stands_still(Nanos now, const engine::Activity& activity,
                              const worker::Engine::Counters& counters);
  observe::Report make(Nanos now, const engine::Activity& activity);

  static constexpr Nanos kInterval = 500 * kMillisecond, kStalledInterval = 250 * kMillisecond;
  static constexpr Nanos kStalled = 400 * kMillisecond;
  static constexpr Nanos kLook = 25 * kMillisecond;        // the shortest time between two looks
  static constexpr Nanos kLeastPause = 5 * kMillisecond;
  static constexpr Nanos kFresh = 2 * kSecond;             // how long a look counts
  static constexpr Nanos kAnswer = 60 * kMillisecond;      // in which the program's stack comes
  // A program that waits for this long may be deadlocked.
  static constexpr Nanos kLongWait = kSecond;

  worker::Engine& engine_;
  const uint32_t rank_;
  observe::Sampler sampler_;
  uint64_t sampled_ = 0, told_ = 0;  // cursors in the recorder
  Nanos due_ = 0;                 // when the next report is
  Nanos asked_ = 0;               // when this thread last asked for the program's stack
  Nanos looked_ = 0, look_due_ = 0;  // when the latest answer came; when to ask again
  uint32_t chance_ = 1;
  observe::Looks looks_;
  Nanos work_ = 0;                // how long the program computes in a round
  // What changes with whatever the program and the engine do, and since when it has not.
  struct Done {
    uint64_t held, rounds, calls, in_flight, bytes;
    bool operator==(const Done&) const = default;
  };
  std::optional<Done> done_;
  Nanos still_since_ = 0;
  bool delayed_ = false;          // the report waits for the answer
  std::atomic<Nanos> watched_{-1};  // how long others compute; -1: this rank is not late
  std::atomic<Nanos> late_{0};
};

}  // namespace herring::job
