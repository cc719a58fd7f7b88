// The seam to GPUs: what the core asks of one vendor's driver. Streams and events are the driver's
// own handles, as frameworks hand them out; nothing here is a call that waits for a device, but for
// synchronize().
//
// Only threads of the user's call a driver, never those that move bytes: a driver may hold a lock
// until the device is idle, and the device may wait for what such a thread is about to do.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "device/combination.h"

namespace herring::device {

using Address = uint64_t;      // as devices see it
using Stream = uintptr_t;
using Event = uintptr_t;
using Kernel = uintptr_t;

struct Properties {
  std::string name;
  std::string bus;             // PCI address
  size_t memory = 0;           // bytes
  int major = 0, minor = 0;    // compute capability
  int multiprocessors = 0;
  int numa_node = -1;          // of the host's memory next to it; -1: not known
  bool stream_memory = false;  // streams can write and wait for words in host memory
};

enum class Kind { kHost, kPinned, kDevice, kManaged };

// What an address is.
struct Pointer {
  Kind kind = Kind::kHost;
  int device = -1;  // of all but kHost
};

// Memory of a device as another process of this machine may map it.
struct Exported {
  std::array<char, 64> handle = {};  // of an allocation
  uint64_t offset = 0;               // in it
};

// One GPU. Calls may be made from any thread, one that has no context too. kDevice: what the driver
// says, with the name of the call.
class Device {
 public:
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  virtual int index() const = 0;
  virtual const Properties& properties() const = 0;

  // Makes several of the calls below: what a thread needs for each of them is then done once.
  virtual Status together(const std::function<Status()>& calls) = 0;

  // A stream that waits for no default stream, ahead of others of its device.
  virtual Result<Stream> make_stream() = 0;
  virtual void destroy_stream(Stream stream) = 0;
  virtual Result<Event> make_event() = 0;
  virtual void destroy_event(Event event) = 0;
  // kInvalidArgument: the stream's work is being captured for a graph.
  virtual Status check_not_capturing(Stream stream) = 0;

  // What follows is queued in a stream.
  virtual Status record(Event event, Stream stream) = 0;
  virtual Status wait(Stream stream, Event event) = 0;
  virtual Status copy_out(char* to, Address from, size_t bytes, Stream stream) = 0;
  virtual Status copy_in(Address to, const char* from, size_t bytes, Stream stream) = 0;
  // A word in registered host memory: written after what is queued before, with which it is then
  // visible; waited for until `word - value`, as a signed number, is not negative.
  virtual Status write_word(Address word, uint32_t value, Stream stream) = 0;
  virtual Status wait_word(Address word, uint32_t value, Stream stream) = 0;

  // Whether nothing is queued any more; an error that the device is in.
  virtual Result<bool> idle(Stream stream) = 0;
  // Blocks. Not for what happens in a step.
  virtual Status synchronize(Stream stream) = 0;
  virtual Result<Address> allocate(size_t bytes) = 0;
  virtual void free(Address address) = 0;
  // Where the device sees registered host memory.
  virtual Result<Address> address_of(const void* host) = 0;

  // Compiles and loads the kernel, unless that was done; it may take a second. kConfiguration:
  // there is no compiler for it.
  virtual Result<Kernel> kernel(DType dtype, ReduceOp op) = 0;
  // Queues it, in so many blocks of kThreads.
  virtual Status combine(Kernel kernel, const Combination& what, uint32_t blocks,
                         Stream stream) = 0;
  static constexpr uint32_t kThreads = 512;

  // kDevice: memory that cannot be exported, such as that of expandable segments.
  virtual Result<Exported> export_memory(Address address) = 0;
  // Maps what another process has exported; as often as it was, it is closed.
  virtual Result<Address> import_memory(const Exported& memory) = 0;
  virtual void close_import(const Exported& memory) = 0;

 protected:
  Device() = default;
};

// The devices that this process sees through one driver.
class Platform {
 public:
  virtual ~Platform() = default;
  Platform(const Platform&) = delete;
  Platform& operator=(const Platform&) = delete;

  virtual std::string version() const = 0;  // of the driver
  virtual int count() const = 0;
  // kInvalidArgument: no such device; in a forked child kShutdown.
  virtual Result<Device*> device(int index) = 0;
  virtual const Properties& properties(int index) const = 0;
  virtual Result<Pointer> query(Address address) = 0;
  virtual bool can_access(int device, int peer) = 0;

  // Makes host memory known to all devices, so that their copy engines reach it. Whole pages.
  virtual Status register_host(void* memory, size_t bytes) = 0;
  virtual Status unregister_host(void* memory) = 0;

 protected:
  Platform() = default;
};

// The one of this process, loaded at the first call; kConfiguration says why there is none.
Result<Platform*> platform();

}  // namespace herring::device
