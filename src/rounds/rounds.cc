#include "rounds/rounds.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace herring::rounds {

void Rounds::part_begins(const std::shared_ptr<Future>& waiting) {
  if (const auto found = waiting_.find(waiting); found != waiting_.end()) ++found->second.parts;
}

void Rounds::part_ended(const std::shared_ptr<Future>& waiting) {
  const auto found = waiting_.find(waiting);
  if (found == waiting_.end() || --found->second.parts > 0 || found->second.failed.ok()) return;
  const auto ended = waiting_.extract(found);
  ended.key()->set(ended.mapped().failed);
}

void Rounds::call_off(const Group& group, const Status& why) {
  std::vector<std::shared_ptr<Future>> ended;
  for (auto& [waiting, one] : waiting_) {
    if (one.group != group.id()) continue;
    one.failed = why;
    if (one.parts == 0) ended.push_back(waiting);
  }
  for (const auto& waiting : ended) {
    waiting_.erase(waiting);
    waiting->set(why);
  }
}

void Rounds::fail_all(const Status& why) {
  while (!waiting_.empty()) {
    Status told = why;
    waiting_.extract(waiting_.begin()).key()->set(std::move(told));
  }
}

// Within a node, a round from which a rank has departed needs no server.
bool Rounds::uses(const Group& group) const {
  return group.members().nodes() > 1 && std::ranges::any_of(waiting_, [&group](const auto& one) {
    return one.second.group == group.id();
  });
}

}  // namespace herring::rounds
