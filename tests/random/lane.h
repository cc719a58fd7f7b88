// A thread of a rank that runs one lane of a program.
#pragma once

#include <deque>
#include <map>
#include <vector>

#include "tests/random/rank.h"

namespace herring::random_test {

class Rank::Lane {
 public:
  Lane(Rank& rank, RunningProgram& program, uint32_t lane);
  void run();

 private:
  struct Batch {
    std::vector<Call> calls;
    uint64_t due = 0;
  };
  // A round of a plan that has begun on this rank.
  struct Round {
    std::vector<uint32_t> left;  // gradients that are not ready
    bool failed = false;
  };

  const Program& program() const { return *program_; }
  const Part& part_of(const Step& step) const { return step.parts[step.place_of(rank_.rank_)]; }
  rounds::Planned& plan_of(const Step& step) { return *rank_.plans_[step.plan]; }
  // Returns the number of gradients, plus one if there is a note after them.
  size_t parts_of(const Step& step) const {
    return program().plans[step.plan].gradients.size() + (note_bytes_of(step) > 0);
  }
  size_t note_bytes_of(const Step& step) const { return program().plans[step.plan].note_bytes; }
  bool is_due(const std::vector<uint32_t>& batch) const;
  void now(const char* what, const Step& step);

  void submit(const std::vector<uint32_t>& steps);
  void call(const Step& step);
  void address(const Step& step, calls::Call& call) const;
  void form(const Step& step);
  Round begin_round(const Step& step);
  bool continue_round(const Step& step, Round& round);
  bool meet(const Step& step);
  void run_series(const Step& step);
  void check_series(const Step& step, const Values& values, const std::vector<char>& sum);
  void finish_first();
  void finish(Call& call);
  void end_groups();

  Rank& rank_;
  RunningProgram& program_;
  const uint32_t lane_;
  Random random_;
  Doing doing_;
  std::deque<Batch> pending_;
  std::vector<uint32_t> formed_;  // groups
};

}  // namespace herring::random_test
