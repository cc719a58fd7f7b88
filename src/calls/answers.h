// The answers that this rank has received from the server of one home, in one group. The latest are
// kept for ranks that may lack them when the server is gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <set>

#include "wire/handover.h"

namespace herring::calls {

class Answers {
 public:
  // Notes an answer. Returns kProtocol for a number that is impossible.
  Status receive(uint64_t number);
  void keep(wire::KeptAnswer answer);
  // This rank has joined. Calls that go on without it are answered without it.
  void join() { joined_ = true; }
  // All have joined, as this answer says. Those before it are never needed.
  void all_joined(uint64_t number);

  wire::Handover tell() const;
  // Up to which number this rank lacks no answer, now or later. A joined rank gets answers of which
  // it does not know that it lacks them, so the number stays until all have joined.
  uint64_t complete() const { return holes_.empty() ? highest_ : *holes_.begin() - 1; }
  // No rank lacks an answer up to this number.
  void settle(uint64_t number);
  size_t bytes() const { return results_.bytes + errors_.bytes; }

 private:
  struct AnswerStore {
    std::deque<wire::KeptAnswer> answers;  // oldest first
    size_t bytes = 0;
  };
  bool joined_ = false;
  uint64_t highest_ = 0;
  std::set<uint64_t> holes_;
  // Apart, because a rank may make a call long after it has failed for others.
  AnswerStore results_, errors_;
};

}  // namespace herring::calls
