// What the rounds of a plan share, which tasks of the engine keep alive. For planned.cc and
// planned_memory.cc.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/fork_guard.h"
#include "rounds/planned.h"

namespace herring::rounds {

class Planned::RoundFuture : public Future {
 public:
  RoundFuture(const Work& work, uint32_t number);
  std::string where() const override { return concat(*title_, " (round ", number_, ")"); }

 private:
  const std::shared_ptr<const std::string> title_;
  const uint32_t number_;
};

class Planned::Work : public std::enable_shared_from_this<Work> {
 public:
  Work(Rounds& rounds, PlannedOptions options, plan::Plan plan)
      : rounds(rounds), core(rounds.core()), options(std::move(options)), plan(std::move(plan)),
        stream(*this->options.stream),
        title(std::make_shared<std::string>(
            concat("'", this->options.name, "'", members().suffix()))) {}
  ~Work();
  Status allocate();
  void log_choices() const;

  // Queues a task for the engine thread. If that thread has ended, the round fails.
  void run(const std::shared_ptr<Round>& round, std::function<void()> task);
  void begin(const std::shared_ptr<Round>& round);
  // `now`: when the program gave the last of the data.
  void launch(uint32_t from, uint32_t to, const std::shared_ptr<Round>& round, Nanos now);
  // Returns an entry without its kind and its moments.
  observe::Entry entry_of(const Round& round) const;
  const control::Group& members() const { return options.group->members(); }
  uint32_t count() const { return static_cast<uint32_t>(parts_.size()); }
  plan::Range slice(uint32_t part, uint32_t place) const;
  std::vector<float>& residual(uint32_t part) const;
  void take_back() const;

  Rounds& rounds;
  Core& core;
  const PlannedOptions options;
  const plan::Plan plan;
  const uint32_t stream;
  const uint32_t generation = fork_generation();
  const std::shared_ptr<const std::string> title;  // for messages
  std::vector<char*> arenas;
  char* note = nullptr;  // null if rounds have none
  std::atomic<uint32_t> contributors{0};
  // The card of this rank in the first rounds; null if it is alone on its node.
  char* card = nullptr;

 private:
  class Part;

  Status take_memory(size_t bytes, char*& place);
  // Returns the dtype in which an arena of this dtype travels.
  DType wire_of(DType dtype) const;
  template <typename Bytes>
  Result<std::vector<char*>> places(const Bytes& bytes_of);
  void add_part(char* data, size_t bytes, DType dtype, DType wire, ReduceOp op, char* staging,
                char* results);
  void launch_one(uint32_t part, const std::shared_ptr<Round>& round, Nanos now);
  void exchange_cards(const std::shared_ptr<Round>& round);
  void part_done(const std::shared_ptr<Round>& round, uint32_t part, uint32_t workers);

  std::vector<char> cards_;  // of all ranks of the node
  std::vector<char*> memory_;
  // Whether all parts go through the node stage. If only some did, the others would overtake them,
  // and the order of a stream must be the same on every worker.
  bool staged_ = false;
  std::vector<std::unique_ptr<Part>> parts_;  // the fusion buffers, then the note
};

// A part travels as a unit: it is a fusion buffer or the note. If the node stage is not needed, a
// part goes directly from its memory to the servers and back.
class Planned::Work::Part : public links::TransferOwner {
 public:
  explicit Part(Work& work) : work_(work) {}
  NodeTask task;    // without the fields that differ from round to round
  std::vector<float> residual;  // of this rank's slice; empty without error feedback
  std::vector<float> before;    // the same before the latest round, if that has changed it
  bool changed = false;
  links::Transfer transfer;
  std::shared_ptr<Round> round;
  observe::Mark mark;  // of the running round

  void on_transfer_done(links::Transfer& done) override {
    const std::shared_ptr<Round> ended = std::exchange(round, nullptr);
    // If the transfer was called off, the round fails with its group.
    if (!done.called_off) work_.part_done(ended, task.key.buffer, done.workers);
    work_.rounds.part_ended(ended->future);
  }

 private:
  Work& work_;
};

}  // namespace herring::rounds
