// A program while the ranks of a job run it: what its results must be, computed once for all ranks,
// and what ranks must know of each other to judge them.
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
  RunningProgram(Program program, uint32_t size) : program_(std::move(program)), at_work_(size) {
    for (size_t i = 0; i < program_.steps.size(); ++i) expected_.emplace_back();
  }
  const Program& operator*() const { return program_; }
  const Program* operator->() const { return &program_; }

  // The reduction of a step; of gradient `index` for planned rounds.
  const std::vector<char>& reduction(const Step& step, size_t index = 0);
  Values values_of(const Step& step, size_t index = 0) const;
  // Ranks of the job.
  std::vector<uint32_t> contributors(const Step& step) const;
  // "" if this round of a series gave the same bytes on the ranks that had it before. `how`: what
  // the rank knows about the round, for the error.
  std::string same_everywhere(const Step& step, uint32_t round, const std::vector<char>& result,
                              std::string how);

  // Of a job that a rank leaves while the others go on: each is done once, then waits for them.
  void rank_done();
  void wait_for_all();
  // Another rank leaves, too, without having called all that others may wait for.
  void give_up() { given_up_ = true; }
  bool given_up() const { return given_up_; }

 private:
  struct Expected {
    std::mutex mutex;
    std::vector<std::vector<char>> arrays;
    std::vector<std::pair<std::vector<char>, std::string>> rounds;  // of a series; how each came
  };
  const Program program_;
  std::deque<Expected> expected_;  // by step

  std::atomic<bool> given_up_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  uint32_t at_work_;  // ranks; guarded by mutex_
};

}  // namespace herring::random_test
