// Memory that the workers of one node share: anonymous files (memfd), mapped into each of them.
// They have no name in any file system. So nothing is left behind after a crash, and the size of
// /dev/shm (64 MB in many containers) does not matter. A worker that is alone on its node gets
// private memory from the same heap, because the system gives it huge pages more readily.
//
// The limit of the size of files (ulimit -f) holds for anonymous files, too. A region that exceeds
// it consists of several files, which are mapped one after the other.
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

// Who may map a region: the workers of the node, or only this process.
enum class Sharing { kNode, kProcess };
// Says what accesses memory besides the host's processors: nothing, or devices. Memory for devices
// is pinned and comes from the NUMA node next to them (device/numa.h). -1: from any NUMA node.
struct Use {
  static const Use kHost, kDevices;
  static constexpr Use devices_at(int node) { return {true, node}; }
  bool operator==(const Use&) const = default;

  bool by_devices = false;
  int node = -1;
};
inline constexpr Use Use::kHost = {}, Use::kDevices = {true, -1};

// One readable and writable, page-aligned mapping. It was created here (other processes map it
// through its descriptor) or by a peer. Fresh memory reads as zero; pages are allocated on first
// touch.
class SharedRegion {
 public:
  // One message of a socket passes so many descriptors at most (the kernel allows 253).
  static constexpr size_t kMostFiles = 250;

  // Returns why this process cannot share memory, if it cannot: the system refuses anonymous files,
  // or allows such small ones only that the memory of a model would need too many.
  static Status possible();
  // Creates a region of `bytes` > 0, rounded up to whole pages, if possible on the given NUMA node.
  static Result<std::shared_ptr<SharedRegion>> create(size_t bytes,
                                                      Sharing sharing = Sharing::kNode,
                                                      int node = -1);
  // Maps a region that a peer created. `files` must be anonymous files of whole pages, together of
  // exactly `bytes` bytes, that can never shrink. Then nothing that a peer does later can turn an
  // access into SIGBUS. Closes the files.
  static Result<std::shared_ptr<SharedRegion>> map(std::vector<UniqueFd> files, size_t bytes);

  ~SharedRegion();
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // Returns the descriptors to pass to peers, in the order of their addresses. A peer's or a
  // private region has none; in forked children they are -1.
  std::vector<int> fds() const;
  // Returns the region's number in this process, from 1 on and never reused; 0 for a peer's region.
  uint32_t id() const { return id_; }

  // Registers the memory once with the devices of this process, so that their copy engines can
  // access it. Must run on a thread that may call the driver. If it fails, copies are slower; this
  // is logged once.
  void pin();
  bool is_pinned() const { return pin_.is_set(); }

 private:
  SharedRegion() = default;

  char* data_ = nullptr;
  size_t bytes_ = 0;
  uint32_t id_ = 0;
  std::vector<GuardedFd> files_;
  device::Pin pin_;
};

// Allocates from shared regions: for herring.empty arrays, arenas and staging memory. Small blocks
// share a region; large ones have their own. Freed regions are kept for reuse up to a limit,
// because fresh pages cost more than the sum over their contents. A new region for devices takes
// the place of kept regions of about its size, so that pinned memory does not grow if sizes change
// from one plan to the next. Thread-safe; usable in a child after fork.
class SharedHeap {
 public:
  static constexpr size_t kAlignment = 64;
  static constexpr size_t kSlabBytes = size_t{4} << 20;
  static constexpr size_t kLargeBytes = size_t{1} << 20;  // larger blocks have own regions
  static constexpr size_t kDefaultCacheBytes = size_t{256} << 20;

  struct Location {
    uint32_t region;  // SharedRegion::id()
    uint64_t offset;
  };

  explicit SharedHeap(size_t cache_bytes = kDefaultCacheBytes, Sharing sharing = Sharing::kNode)
      : cache_limit_(cache_bytes), sharing_(sharing) {}
  SharedHeap(const SharedHeap&) = delete;
  SharedHeap& operator=(const SharedHeap&) = delete;

  // Allocates at least `bytes` bytes with undefined content, aligned to kAlignment. Zero bytes also
  // return a pointer, which must be freed. Memory for devices is pinned, so the thread must be
  // allowed to call their driver. It is never private: after a fork, the parent might get a copy
  // while devices keep the old pages.
  Result<void*> allocate(size_t bytes, Use use = Use::kHost);
  // Returns false, without effect, if `p` does not come from allocate() (including nullptr).
  bool free(void* p);

  // Returns where [p, p + bytes) lies, if it lies inside one region of this heap.
  std::optional<Location> locate(const void* p, size_t bytes) const;
  // Returns the region with that ID, kept alive by the result; nullptr once it was given back.
  std::shared_ptr<SharedRegion> region(uint32_t id) const;

  // Returns whether the block's region is registered with devices, so that copies need not wait.
  bool is_pinned(const void* p) const;
  // Retires the block's region: nothing is allocated from it any more. So after the block is freed,
  // neighbours that have mapped it still find its contents unchanged.
  void retire(const void* p);

  // Returns the IDs of the regions given back to the system since the last call. Peers that were
  // told about them can unmap them (LocalBus::release_region).
  std::vector<uint32_t> take_released();

  // Prevents any reuse of memory allocated so far, because neighbours may still write to it for a
  // moment after the job has failed.
  void retire_all();

  struct Usage {
    size_t regions;    // mapped now, including cached ones
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
    bool retired = false;  // nothing is allocated from it any more
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
  // Caches a region without allocated blocks, and evicts the oldest ones above the limit. The
  // caller must destroy the result after it has released the lock.
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
