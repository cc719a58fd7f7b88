// Who may have something of a worker's under way: named calls, planned rounds, and series of
// partial all-reduces. Each of them hears in the same way what happens to groups and servers. So
// what fails because of it, and what goes on, is one loop over the carriers. Engine thread.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "control/server_set.h"
#include "engine/group.h"
#include "engine/owners.h"

namespace herring::engine {

class Carrier {
 public:
  virtual ~Carrier() = default;

  // Handles a group that is called off. What needs all of its members fails: at once if nothing of
  // it is on its way, else when nothing accesses its memory any more.
  virtual void call_off(const Group& group, const Status& why) = 0;
  // Fails everything. Nothing may access callers' memory any more. If memory is short, this is
  // called again and continues where it stopped.
  virtual void fail_all(const Status& why) = 0;
  // Returns whether the group is in use: something in it has begun and is not over. Within a node,
  // rounds do not count.
  virtual bool uses(const Group& group) const = 0;
  // Returns whether nothing goes on until something comes from another process, or the program
  // makes a call.
  virtual bool stands_still() const { return true; }

  // Returns whether something goes on in the group although a member is gone.
  virtual bool outlives_members(const Group& /*group*/) const { return false; }
  // Handles the loss of a server of the group for which nobody stands in: what outlives members
  // fails, too.
  virtual void abandon(const Group& /*group*/, const Status& /*why*/) {}
  // Returns whether something of the group is announced that may still need this server.
  virtual bool may_need(const Group& /*group*/, uint32_t /*server*/) const { return false; }
  // Fails what this server had to answer.
  virtual void server_ended(uint32_t /*server*/, const Status& /*why*/) {}

  // Returns whether everything goes on if this version of the set of servers comes next.
  virtual bool can_move(const control::ServerSet& /*set*/) const { return true; }
  // Handles another owner of the names of its home in the group.
  virtual void move(const Group& /*group*/, const Owner& /*owner*/) {}
  // Handles a new version of the set of servers, when Links and all owners have it.
  virtual void serve(const control::ServerSet& /*set*/) {}
  // Handles a replacement that comes for a server.
  virtual void server_comes(uint32_t /*server*/) {}
  // Handles a group that this rank has left.
  virtual void forget(uint32_t /*group*/) {}
};

}  // namespace herring::engine
