// A named operation as its caller submits it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/lists.h"
#include "device/copier.h"
#include "engine/group.h"
#include "wire/array.h"
#include "wire/collective.h"

namespace herring::engine {
struct Core;
}

namespace herring::calls {

using engine::Core, engine::Group;

// One array of a call, in the memory of this process or on a device.
struct Buffer {
  wire::Array array;
  const char* send = nullptr;
  // Where the result goes. In a list, null means that the caller takes it later. For all-reduce,
  // broadcast and receive this is the array itself. For other operations it is separate memory,
  // used if the result has exactly `receive_bytes` bytes.
  char* receive = nullptr;
  size_t receive_bytes = 0;
  // In a call on a device: the address of the array there, which is also where its result goes.
  device::Address on_device = 0;
};

struct Call {
  std::shared_ptr<Group> group;  // null means all ranks. Ranks in `what` are indices in the group.
  std::string name;
  wire::Collective what;
  std::vector<Buffer> buffers;   // at most one, except in a list
  // The arrays are copied when the call is submitted, move together, and succeed or fail together.
  // Allowed for AllReduce, Broadcast, AllGather, and ReduceScatter with even rows.
  bool list = false;
  // A text that must be equal on all ranks, in addition to what their arrays show. In a list, a
  // non-empty text replaces the description of the arrays.
  std::string agreement;
  double timeout = 0;            // seconds; 0 means the setting
  bool unique = false;           // no other call that forms a group has this name
  // If not null, the arrays lie on this device, and the work that produces them is queued in
  // `streams`. Allowed for AllReduce and Broadcast.
  std::shared_ptr<device::Copier> copier;
  std::vector<device::Stream> streams;
  // The device does the sums. Only for AllReduce of one array by messages between workers.
  bool device_sums = false;

  // Returns the call for messages and records, such as "allreduce 'x'". For what concerns only some
  // ranks of the group it names them: "send 'x' (rank 3)", "form_group 'x' (ranks 0-1)".
  std::string title() const {
    std::string text = concat(wire::name_of(what), " '", name, "'");
    if (const auto other = wire::other_of(what)) {
      text += concat(" (rank ", group->members().ranks()[*other], ")");
    } else if (const auto* forms = std::get_if<wire::FormGroup>(&what)) {
      text += concat(" (", list_ranks(forms->ranks), ")");
    }
    return text;
  }
};

}  // namespace herring::calls
