// One rank of a job under test. It runs its part of every program and checks the results.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "job/job.h"
#include "tests/random/running.h"
#include "tests/random/watchdog.h"
#include "rounds/partial.h"
#include "rounds/planned.h"

namespace herring::random_test {

class Rank {
 public:
  Rank(std::string seed, const Layout& layout, uint32_t features, uint32_t rank,
       std::unique_ptr<job::Job> job)
      : seed_(std::move(seed)), layout_(layout), features_(features), rank_(rank),
        job_(std::move(job)), cluster_(job_->cluster()) {}
  ~Rank();

  // Returns when the program has ended on this rank.
  void run(const std::shared_ptr<RunningProgram>& program, Doing& doing);
  // Leaves the job, and checks the calls that nobody has waited for.
  void leave(Doing& doing);

  uint64_t calls() const { return calls_; }
  uint64_t errors() const { return errors_; }

 private:
  class Lane;

  // An array of a step. It lies in the shared heap, or is an allocation of exactly its length.
  struct Array {
    char* data = nullptr;
    bool shared = false;
    size_t bytes = 0;
  };
  Array allocate(size_t bytes, bool shared);
  void release(Array& array);

  // A call that is in flight.
  struct Call {
    const Step* step = nullptr;
    RunningProgram* program = nullptr;
    std::shared_ptr<calls::Operation> operation;
    std::shared_ptr<engine::Future> round;  // kPlanned
    Array array;
  };

  // Forms the groups that are formed at the program's start. Returns false if the job has ended for
  // this rank.
  bool form_groups(RunningProgram& program, Doing& doing);
  Result<std::shared_ptr<calls::Operation>> submit_forming(const Program& program, uint32_t group,
                                                            bool waits);
  void keep_formed(const Program& program, uint32_t group, const calls::Operation& operation);
  void destroy(const Program& program, uint32_t group);
  bool make_plans(RunningProgram& program);
  void end_job(RunningProgram& program, Doing& doing);
  void run_lanes(const std::shared_ptr<RunningProgram>& program, bool begins, Doing& doing);
  void give_up();
  void pass_barrier(const Program& program);

  // Ends the test unless the program explains `status`.
  void check_outcome(RunningProgram& program, const Step& step, const Status& status);
  bool ends(const Program& program) const;
  bool explains_loss(RunningProgram& program, const Step& step) const;
  bool needs(const Program& program, const Step& step, uint32_t rank) const;
  // Returns whether no rank does this step, because a rank that it needs has left before.
  bool is_left_out(const Program& program, const Step& step) const;
  void check(const Call& call);
  void check_round(const Call& call, rounds::Planned& plan);
  void check_largest(const Call& call, rounds::Planned& plan);
  [[noreturn]] void wrong(const Program& program, const Step& step, const std::string& what);

  const std::string seed_;
  const Layout& layout_;
  const uint32_t features_;
  const uint32_t rank_;
  const std::unique_ptr<job::Job> job_;
  const control::Cluster cluster_;
  // The groups of the running program. Null for the group of all ranks, for groups that this rank
  // is not a member of, and for groups that another lane forms.
  std::vector<std::shared_ptr<engine::Group>> groups_;
  std::vector<std::unique_ptr<rounds::Planned>> plans_;
  std::atomic<bool> over_{false};  // the job has ended for this rank; set under mutex_
  std::atomic<uint64_t> calls_{0}, errors_{0};

  std::mutex mutex_;
  std::condition_variable changed_;  // over_, lanes_
  uint32_t lanes_ = 0;               // running lanes; guarded by mutex_
  std::vector<Call> dropped_;  // guarded by mutex_; their arrays live until the job has ended
  std::vector<std::shared_ptr<RunningProgram>> programs_;  // calls in flight point into them
};

}  // namespace herring::random_test
