// Calls whose arrays a device has not copied to the host yet. The device starts these copies when
// all work queued before them is done. Until then the call is not announced and no server watches
// its deadline, so this class does. Engine thread only.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "calls/underway.h"

namespace herring::calls {

class Arrivals {
 public:
  Arrivals(Core& core, Calls& calls) : core_(core), calls_(calls) {}

  // Registers an operation whose copies to the host are queued. They may already have arrived.
  void expect(const std::shared_ptr<Underway>& operation);
  // Handles the end of the copies. If they succeeded, the operation starts; if not, the other ranks
  // are told why. An operation that was given up in the meantime does not start.
  void come(const std::shared_ptr<Underway>& operation, const Status& out);

  // Warns if a device does not reach a call. Refuses the call on all ranks when its time is up.
  void check_deadlines(Nanos now);
  bool any(const Group& group) const;
  bool empty() const { return expected_.empty(); }
  // The operations of the group, or of all groups, will not start.
  void call_off(const Group& group, const Status& why);
  void fail_all(const Status& why);

 private:
  // Refuses the call on all ranks; on this one it ends with the status `told`.
  void refuse(Underway& operation, const std::string& why, const Status& told);

  Core& core_;
  Calls& calls_;
  std::map<std::shared_ptr<Underway>, bool> expected_;  // value: a warning was logged
};

}  // namespace herring::calls
