// Memory that the workers of one node share: anonymous files (memfd) mapped into each of them.
// There is no name in any file system, so nothing is left behind after a crash, and the size of
// /dev/shm (64 MB in many containers) does not matter. A worker that is alone on its node takes
// private memory from the same heap: the system gives that huge pages more readily.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/fd.h"
#include "base/fork_guard.h"
#include "base/status.h"
#include "device/pin.h"

namespace herring {

// Who may map a region: the workers of the node, or this process alone.
enum class Sharing { kNode, kProcess };
// What else than the host's processors reads and writes memory: nothing, or devices. Theirs is
// pinned, and comes from the NUMA node next to them (device/numa.h); -1: from any.
struct Use {
  static const Use kHost, kDevices;
  static constexpr Use devices_at(int node) { return {true, node}; }
  bool operator==(const Use&) const = default;

  bool by_devices = false;
  int node = -1;
};
inline constexpr Use Use::kHost = {}, Use::kDevices = {true, -1};

// One mapping, readable and writable, page aligned. Either created here (other processes map it
// through its descriptor) or made by a peer. Fresh memory reads as zero; pages come into being on
// first touch.
class SharedRegion {
 public:
  // A new region of `bytes` > 0, rounded up to whole pages, on a NUMA node if it can be had there.
  static Result<std::shared_ptr<SharedRegion>> create(size_t bytes,
                                                      Sharing sharing = Sharing::kNode,
                                                      int node = -1);
  // Maps what a peer created. `fd` must be an anonymous file of exactly `bytes` bytes that can
  // never shrink: nothing that a peer does later can turn an access into SIGBUS. Closes `fd`.
  static Result<std::shared_ptr<SharedRegion>> map(UniqueFd fd, size_t bytes);

  ~SharedRegion();
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // The descriptor to pass to peers; -1 for a peer's region, a private one and in forked children.
  int fd() const { return fd_.get(); }
  // Names the region in this process, from 1 on, never used twice; 0 for a peer's region.
  uint32_t id() const { return id_; }

  // Makes it known to the devices of this process, once: their copy engines then reach it. On a
  // thread that may call their driver. Without that copies are slower, which is said once.
  void pin();
  bool is_pinned() const { return pin_.is_set(); }

 private:
  SharedRegion() = default;

  char* data_ = nullptr;
  size_t bytes_ = 0;
  uint32_t id_ = 0;
  GuardedFd fd_;
  device::Pin pin_;
};

// Allocates from shared regions: herring.empty arrays, arenas, staging. Small blocks share a
// region, large ones have one each. Freed regions are kept for reuse up to a cap, because fresh
// pages cost more than the sum that goes through them. A new region for devices takes the place of
// kept ones of about its size, so that pinned memory does not grow where sizes change from one plan
// to the next. Thread-safe; a fork leaves it usable in the child.
class SharedHeap {
 public:
  static constexpr size_t kAlignment = 64;
  static constexpr size_t kSlabBytes = size_t{4} << 20;
  static constexpr size_t kLargeBytes = size_t{1} << 20;  // from here on a region of its own
  static constexpr size_t kDefaultCacheBytes = size_t{256} << 20;

  struct Location {
    uint32_t region;  // SharedRegion::id()
    uint64_t offset;
  };

  explicit SharedHeap(size_t cache_bytes = kDefaultCacheBytes, Sharing sharing = Sharing::kNode)
      : cache_limit_(cache_bytes), sharing_(sharing) {}
  SharedHeap(const SharedHeap&) = delete;
  SharedHeap& operator=(const SharedHeap&) = delete;

  // At least `bytes` bytes with undefined content, aligned to kAlignment. Zero bytes give a pointer
  // too, that has to be freed. For devices it is pinned, on a thread that may call their driver,
  // and never private: of that a fork may give the parent a copy while devices keep the pages.
  Result<void*> allocate(size_t bytes, Use use = Use::kHost);
  // False, and nothing happens, if `p` does not come from allocate() (nullptr included).
  bool free(void* p);

  // Where [p, p + bytes) lies, if it lies inside one region of this heap.
  std::optional<Location> locate(const void* p, size_t bytes) const;
  // The region of that id, kept alive by the result; nullptr once it was given back.
  std::shared_ptr<SharedRegion> region(uint32_t id) const;

  // Whether devices know the region of a block: their copies to and from it wait for nobody.
  bool is_pinned(const void* p) const;
  // When this block is free, what was in it stays as it is for neighbours that have mapped it:
  // nothing is handed out from its region any more.
  void retire(const void* p);

  // Ids of the regions given back to the system since the last call: the peers that were told about
  // them can let go (LocalBus::release_region).
  std::vector<uint32_t> take_released();

  // From now on nothing that was handed out before is handed out again: where the job has failed,
  // neighbours may still write there for a moment.
  void retire_all();

  struct Usage {
    size_t regions;    // mapped now, cached ones included
    size_t allocated;  // bytes handed out, rounded up to the alignment
    size_t cached;     // bytes in regions kept for reuse
  };
  Usage usage() const;

 private:
  struct Entry {
    std::shared_ptr<SharedRegion> region;
    Use use = Use::kHost;
    bool slab = false;
    bool cached = false;
    bool retired = false;  // nothing is handed out from it any more
    uint64_t cached_at = 0;
    std::map<size_t, size_t> holes;            // of a slab: offset -> bytes, never adjacent
    std::unordered_map<size_t, size_t> blocks;  // handed out: offset -> bytes
  };
  using Entries = std::map<uintptr_t, Entry>;  // by address
  using Regions = std::vector<std::shared_ptr<SharedRegion>>;

  Entries::iterator entry_of(uintptr_t address);
  Entries::const_iterator entry_of(uintptr_t address) const;
  Result<Entries::iterator> add_region(size_t bytes, Use use);
  Result<void*> allocate_small(size_t bytes, Use use);
  // Moves kept regions whose place a new one takes to `evicted`.
  Result<void*> allocate_large(size_t bytes, Use use, Regions& evicted);
  void replace(size_t bytes, Use use, Regions& evicted);
  // Keeps a region in which nothing is handed out any more, and evicts the oldest ones above the
  // cap; the caller drops the result after the lock is let go.
  std::vector<std::shared_ptr<SharedRegion>> keep(Entries::iterator entry);
  std::shared_ptr<SharedRegion> evict(Entries::iterator entry);

  const size_t cache_limit_;
  const Sharing sharing_;
  mutable std::mutex mutex_;  // always inside a ForkSection
  Entries entries_;
  size_t allocated_ = 0;
  size_t cached_ = 0;
  uint64_t clock_ = 0;  // orders the cached regions by age
  std::vector<uint32_t> released_;
};

}  // namespace herring
