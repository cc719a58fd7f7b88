// A program while the ranks of a job run it. Holds the expected results, computed once for all
// ranks, and what ranks must know of each other to judge results.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "tests/random/program.h"
#include "tests/random/values.h"

namespace herring::random_test {

class RunningProgram {
 public:
  RunningProgram(Program program, uint32_t size)
      : program_(std::move(program)), to_start_(size), at_work_(size) {
    for (size_t i = 0; i < program_.steps.size(); ++i) expected_.emplace_back();
    for (size_t i = 0; i < program_.plans.size(); ++i) left_.emplace_back();
  }
  const Program& operator*() const { return program_; }
  const Program* operator->() const { return &program_; }

  // Returns the reduction of a step, or of gradient `index` in planned rounds.
  const std::vector<char>& reduction(const Step& step, size_t index = 0);
  Values values_of(const Step& step, size_t index = 0) const;
  // Returns the ranks of the job that contribute.
  std::vector<uint32_t> contributors(const Step& step) const;
  // Returns "" if this round of a series gave the same bytes on the ranks that had it before. `how`
  // says what the rank knows about the round, for the error.
  std::string same_everywhere(const Step& step, uint32_t round, const std::vector<char>& result,
                              std::string how);

  // For planned rounds of which only the largest numbers travel. `results` has the float32 results
  // of all gradients, and `left` what this rank has yet to send. Returns "" unless this rank is the
  // last of the round, and results and what is left are not what was given and left before.
  std::string nothing_lost(const Step& step, const std::vector<float>& results,
                           const std::vector<float>& left);

  // Waits until all ranks have called this. Nothing may end a job before all have started.
  void start_together();
  // For a job that a rank leaves while the others go on. Each of the others calls rank_done() once,
  // and then waits for all.
  void rank_done();
  void wait_for_all();
  // Another rank also leaves, without having called everything that others may wait for.
  void give_up() { given_up_ = true; }
  bool given_up() const { return given_up_; }

 private:
  struct Expected {
    std::mutex mutex;
    std::vector<std::vector<char>> arrays;
    std::vector<std::pair<std::vector<char>, std::string>> rounds;  // of a series: bytes, origin
  };
  // What the ranks of a plan have yet to send after its latest round.
  struct Left {
    std::mutex mutex;
    std::vector<double> before, sum;  // of all ranks; `before` the round
    uint32_t ranks = 0;               // in `sum`
    uint32_t divisor = 0;             // of all rounds so far; 0: there was none
    uint32_t round = ~0u;             // its step
    bool is_known = true;
  };
  const Program program_;
  std::deque<Expected> expected_;  // by step
  std::deque<Left> left_;          // by plan

  std::atomic<bool> given_up_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  uint32_t to_start_, at_work_;  // ranks; guarded by mutex_
};

}  // namespace herring::random_test
