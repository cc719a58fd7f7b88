// A named operation as its caller gives it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/copier.h"
#include "wire/array.h"
#include "wire/collective.h"
#include "worker/group.h"

namespace herring::worker {

// One array of a call, in this process' memory or on a device.
struct Buffer {
  wire::Array array;
  const char* send = nullptr;
  // Where the result goes. Of a list: null, it is taken later. Else all-reduce, broadcast and
  // receive write to the array itself, and others apart from it, if the result has
  // `receive_bytes` bytes.
  char* receive = nullptr;
  size_t receive_bytes = 0;
  // Of a call on a device: where the array lies there, and where its result goes.
  device::Address on_device = 0;
};

struct Call {
  std::shared_ptr<Group> group;  // null: all ranks. Ranks in `what` are those inside it.
  std::string name;
  wire::Collective what;
  std::vector<Buffer> buffers;   // one, or none; of a list any number
  // Its arrays are copied when it is submitted, move together, and have their results all at once
  // or not at all. Of AllReduce, Broadcast, AllGather, and ReduceScatter with even rows.
  bool list = false;
  // What ranks must give alike beside what their arrays show, in words. Of a list it takes the
  // place of its arrays' description, unless it is empty.
  std::string agreement;
  double timeout = 0;            // seconds; 0: the setting
  // Not null: the arrays lie on this device, and what makes them is queued in these streams. Of
  // AllReduce and Broadcast.
  std::shared_ptr<device::Copier> copier;
  std::vector<device::Stream> streams;
  // Of an AllReduce of one array by messages between workers: the device takes the sums.
  bool device_sums = false;
};

}  // namespace herring::worker
