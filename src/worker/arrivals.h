// Calls whose arrays are still on their way out of a device, which comes to them when all is
// through that is queued before them. So long nothing of them is announced, and no server keeps
// their deadline: this does. Engine thread only.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "worker/operation.h"

namespace herring::worker {

class EngineCore;

class Arrivals {
 public:
  Arrivals(EngineCore& engine, NamedOperations& named) : engine_(engine), named_(named) {}

  // Its copies out are queued, and may have come already.
  void expect(const std::shared_ptr<Operation>& operation);
  // They have come, and it starts, or never will: then the other ranks hear why. What was given up
  // meanwhile stays so.
  void come(const std::shared_ptr<Operation>& operation, const Status& out);

  // Warns of a device that does not come; refuses the call on all ranks when its time is up.
  void check_deadlines(Nanos now);
  bool any(const Group& group) const;
  // Nothing of the group, or of all groups, will start.
  void call_off(const Group& group, const Status& why);
  void fail_all(const Status& why);
  // See NamedOperations::held_up.
  void held_up(Nanos now, Nanos since, std::vector<std::string>& out) const;

 private:
  // On all ranks; here it ends with `told`.
  void refuse(Operation& operation, const std::string& why, const Status& told);

  EngineCore& engine_;
  NamedOperations& named_;
  std::map<std::shared_ptr<Operation>, bool> expected_;  // true: has been warned of
};

}  // namespace herring::worker
