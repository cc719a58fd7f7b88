// One rank of a job under test: runs its part of every program and judges what comes of it.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/random/program.h"
#include "tests/random/values.h"
#include "tests/random/watchdog.h"
#include "worker/job.h"

namespace herring::random_test {

// A program while it runs, and what its results must be: computed once, for all ranks.
class RunningProgram {
 public:
  RunningProgram(Program program, uint32_t size) : program_(std::move(program)), size_(size) {
    for (size_t i = 0; i < program_.steps.size(); ++i) expected_.emplace_back();
  }
  const Program& operator*() const { return program_; }
  const Program* operator->() const { return &program_; }

  // The reduction of a step; of gradient `index` for planned rounds.
  const std::vector<char>& reduction(const Step& step, size_t index = 0);
  Values values_of(const Step& step, size_t index = 0) const;
  std::vector<uint32_t> contributors(const Step& step) const;
  // "" if this round of a series gave the same bytes on the ranks that had it before.
  std::string same_everywhere(const Step& step, uint32_t round, const std::vector<char>& result);

 private:
  struct Expected {
    std::mutex mutex;
    std::vector<std::vector<char>> arrays;
    std::vector<uint64_t> hashes;  // of a series' rounds
  };
  const Program program_;
  const uint32_t size_;
  std::deque<Expected> expected_;  // by step
};

class Rank {
 public:
  Rank(std::string seed, const Layout& layout, uint32_t features, uint32_t rank,
       std::unique_ptr<worker::Job> job)
      : seed_(std::move(seed)), layout_(layout), features_(features), rank_(rank),
        job_(std::move(job)) {}
  ~Rank();

  // Returns when the program has ended on this rank.
  void run(const std::shared_ptr<RunningProgram>& program, Doing& doing);
  // Leaves the job, and looks at what nobody has waited for.
  void leave(Doing& doing);

  uint64_t calls() const { return calls_; }
  uint64_t errors() const { return errors_; }

 private:
  class Lane;

  // An array of a step: in the shared heap, or an allocation of exactly its length.
  struct Array {
    char* data = nullptr;
    bool shared = false;
  };
  Array allocate(size_t bytes, bool shared);
  void release(Array& array);

  // A call that is in flight.
  struct Call {
    const Step* step = nullptr;
    RunningProgram* program = nullptr;
    std::shared_ptr<worker::Operation> operation;
    std::shared_ptr<worker::Completion> round;  // kPlanned
    Array array;
  };

  // Ends the test unless `status` is one that the program explains.
  void check_outcome(const Program& program, const Step& step, const Status& status);
  void check(const Call& call);
  void check_round(const Call& call, worker::Planned& plan);
  [[noreturn]] void wrong(const Program& program, const Step& step, const std::string& what);

  const std::string seed_;
  const Layout& layout_;
  const uint32_t features_;
  const uint32_t rank_;
  const std::unique_ptr<worker::Job> job_;
  std::vector<std::unique_ptr<worker::Planned>> plans_;  // of the running program
  std::atomic<bool> over_{false};  // the job has ended for this rank
  std::atomic<uint64_t> calls_{0}, errors_{0};

  std::mutex mutex_;
  std::vector<Call> dropped_;  // guarded by mutex_; their arrays live until the job has ended
  std::vector<std::shared_ptr<RunningProgram>> programs_;  // calls in flight point into them
};

}  // namespace herring::random_test
