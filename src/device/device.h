// The interface to GPUs: what the core asks of one vendor's driver. Streams and events are the
// driver's own handles, as frameworks hand them out. No call except empty_by() and synchronize()
// waits for a device.
//
// Only user threads call a driver, never the threads that move bytes. A driver may hold a lock
// until the device is idle, and the device may wait for what such a thread is about to do.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
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
  int numa_node = -1;          // of the host memory next to the device; -1: unknown
  bool stream_memory = false;  // streams write and wait for words in host memory by themselves
};

enum class Kind { kHost, kPinned, kDevice, kManaged };

// What kind of memory an address belongs to.
struct Pointer {
  Kind kind = Kind::kHost;
  int device = -1;  // -1 for kHost
};

// Memory of a device, in the form in which another process of this machine can map it.
struct Exported {
  std::array<char, 64> handle = {};  // of the allocation
  uint64_t offset = 0;               // bytes from the start of the allocation
};

// One GPU. Any thread may make these calls, even one without a current context. A kDevice error
// carries the driver's message and the name of the driver call.
class Device {
 public:
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  virtual int index() const = 0;
  virtual const Properties& properties() const = 0;

  // Runs `calls`, which make several of the calls below. What a thread must set up for each call is
  // then done once.
  virtual Status together(const std::function<Status()>& calls) = 0;

  // Returns a stream that does not synchronize with the default stream, and whose priority is the
  // highest of its device.
  virtual Result<Stream> make_stream() = 0;
  virtual void destroy_stream(Stream stream) = 0;
  virtual Result<Event> make_event() = 0;
  virtual void destroy_event(Event event) = 0;
  // Returns kInvalidArgument if the stream is being captured for a graph.
  virtual Status check_not_capturing(Stream stream) = 0;

  // Must succeed before the first call of write_word() or wait_word(). If streams have no memory
  // operations, it loads kernels that do the same, which may wait until the device is idle. So no
  // stream of the device may wait for a word yet. Returns kConfiguration as check_words() does.
  virtual Status prepare_words() = 0;

  // The following calls queue work in a stream.
  virtual Status record(Event event, Stream stream) = 0;
  virtual Status wait(Stream stream, Event event) = 0;
  virtual Status copy_out(char* to, Address from, size_t bytes, Stream stream) = 0;
  virtual Status copy_in(Address to, const char* from, size_t bytes, Stream stream) = 0;
  // Sets every byte to `value`.
  virtual Status fill(Address to, unsigned char value, size_t bytes, Stream stream) = 0;
  // A word in registered host memory; prepare_words() comes first. write_word() writes it after
  // everything queued before, which is visible with the word. wait_word() waits until
  // `word - value`, as a signed number, is not negative.
  virtual Status write_word(Address word, uint32_t value, Stream stream) = 0;
  virtual Status wait_word(Address word, uint32_t value, Stream stream) = 0;

  // Returns whether the stream is empty, or an error that the device is in.
  virtual Result<bool> idle(Stream stream) = 0;
  // Waits until the streams are empty, but not beyond the deadline. Returns whether they are, or an
  // error that the device is in.
  Result<bool> empty_by(Nanos deadline, const std::vector<Stream>& streams);
  // Blocks until the stream is empty. Neither training steps nor what follows an error may call it,
  // because a kernel may not end.
  virtual Status synchronize(Stream stream) = 0;
  virtual Result<Address> allocate(size_t bytes) = 0;
  virtual void free(Address address) = 0;
  // Returns the address under which the device sees registered host memory.
  virtual Result<Address> address_of(const void* host) = 0;

  // Compiles and loads the kernel unless that was done before, which may take a second. Returns
  // kConfiguration if there is no compiler.
  virtual Result<Kernel> kernel(const KernelName& name) = 0;
  // Queues the kernel with `blocks` blocks of kThreads threads.
  virtual Status combine(Kernel kernel, const Combination& what, uint32_t blocks,
                         Stream stream) = 0;
  static constexpr uint32_t kThreads = 512;
  // Returns how many blocks keep the device busy with so many bytes.
  uint32_t blocks_for(size_t bytes) const;

  // Returns kDevice if the memory cannot be exported, such as memory of expandable segments.
  virtual Result<Exported> export_memory(Address address) = 0;
  // Maps what another process has exported. Each import needs its own close_import().
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

  virtual std::string version() const = 0;  // the driver's
  virtual int count() const = 0;
  // Returns kInvalidArgument if there is no such device, and kShutdown in a forked child.
  virtual Result<Device*> device(int index) = 0;
  virtual const Properties& properties(int index) const = 0;
  virtual Result<Pointer> query(Address address) = 0;
  virtual bool can_access(int device, int peer) = 0;
  // Returns kConfiguration with the reason if streams of the device can wait for words in host
  // memory neither by memory operations nor by kernels.
  virtual Status check_words(int index) const = 0;

  // Registers whole pages of host memory with all devices, so that their copy engines reach the
  // memory.
  virtual Status register_host(void* memory, size_t bytes) = 0;
  virtual Status unregister_host(void* memory) = 0;
  // Returns whole pages of host memory that the driver allocates and that all devices know.
  virtual Result<void*> allocate_host(size_t bytes) = 0;
  virtual Status free_host(void* memory) = 0;

 protected:
  Platform() = default;
};

// Returns the platform of this process, which the first call loads. A kConfiguration error says why
// there is none.
Result<Platform*> platform();

}  // namespace herring::device
