// The names of operations in flight. Any thread.
#pragma once

#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "calls/call.h"
#include "calls/call_counts.h"
#include "wire/messages.h"

namespace herring::calls {

class Names {
 public:
  using Name = std::pair<uint32_t, std::string>;  // the number of the group, and the name

  static Name of(const Call& call) { return of(*call.group, call.what, call.name); }
  static Name of(const Group& group, const wire::Collective& what, const std::string& name) {
    const auto* forms = std::get_if<wire::FormGroup>(&what);
    if (forms == nullptr) return {group.id(), name};
    return {control::Group::kForming, concat(name, '\n', list_ranks(forms->ranks))};
  }

  // Takes the name of a call, and counts the calls that had it. Returns kInvalidArgument if the
  // call may not be made now. Messages are paired by ranks and tags: any number of them may have
  // one name, and `name` stays empty.
  Status take(const Call& call, Name& name, uint32_t& number) {
    const std::string suffix = call.group->members().suffix();
    std::lock_guard lock(mutex_);
    if (!wire::is<wire::FormGroup>(call.what) && has_joined_locked(*call.group)) {
      return {Code::kInvalidArgument, concat("'", call.name, "'", suffix, " was called after "
                                             "join(); wait until join() has returned")};
    }
    if (wire::is_message(call.what)) return {};
    name = of(call);
    if (taken_.insert(name).second) {
      number = counts_.next(name.first, name.second);
      if (wire::is<wire::Join>(call.what)) counts_.join(call.group->id());
      return {};
    }
    return {Code::kInvalidArgument,
            concat("an operation named '", call.name, "' is already in flight", suffix,
                   "; wait for it, or use another name for this one")};
  }
  // Counts a call that this rank refuses to make, although others make it.
  void skip(const Group& group, const wire::Collective& what, const std::string& call) {
    if (wire::is_message(what)) return;
    const Name name = of(group, what, call);
    std::lock_guard lock(mutex_);
    counts_.next(name.first, name.second);
  }
  // Allocates no memory.
  void give_back(const Name& name) {
    std::lock_guard lock(mutex_);
    taken_.erase(name);
  }
  bool has_joined(const Group& group) {
    std::lock_guard lock(mutex_);
    return has_joined_locked(group);
  }

 private:
  bool has_joined_locked(const Group& group) const {
    return taken_.contains({group.id(), wire::kJoinName});
  }

  std::mutex mutex_;
  std::set<Name> taken_;  // guarded by mutex_
  CallCounts counts_;     // guarded by mutex_
};

}  // namespace herring::calls
