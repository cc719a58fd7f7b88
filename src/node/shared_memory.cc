#include "node/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "base/huge_pages.h"
#include "device/numa.h"

namespace herring {
namespace {

// After this, nobody can change the size or add a seal that forbids writing.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

Status system_error(const char* what, size_t bytes) {
  return Status(Code::kInternal,
                concat("shared memory: ", what, " of ", bytes, " bytes: ", std::strerror(errno)));
}

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

size_t page_bytes() { return static_cast<size_t>(::sysconf(_SC_PAGESIZE)); }

// With a smaller limit, the largest region would have less than 4 GB.
constexpr size_t kLeastFileBytes = size_t{16} << 20;

// Returns how large a file of whole pages may become (ulimit -f). To grow a file beyond that would
// raise SIGXFSZ, which ends processes other than Python's.
size_t largest_file() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
      limit.rlim_cur > SIZE_MAX / 2) {
    return SIZE_MAX / 2 / page_bytes() * page_bytes();
  }
  return limit.rlim_cur / page_bytes() * page_bytes();
}

// Creates an anonymous file whose size is final. After a failure, errno says why.
Result<GuardedFd> create_file(size_t bytes) {
  GuardedFd file = GuardedFd::open(
      [] { return ::memfd_create("herring", MFD_CLOEXEC | MFD_ALLOW_SEALING); });
  const int fd = file.get();
  const char* const refused = fd < 0 ? "memfd_create"
                              : ::ftruncate(fd, static_cast<off_t>(bytes)) != 0 ? "ftruncate"
                              : ::fcntl(fd, F_ADD_SEALS, kSeals) != 0           ? "sealing"
                                                                                : nullptr;
  if (refused == nullptr) return file;
  const int why = errno;
  Status status = system_error(refused, bytes);
  file.reset();
  errno = why;
  return status;
}

struct File {
  int fd;
  size_t bytes;
};

// Maps files one after the other. Without files, maps private memory.
Result<char*> map_pages(const std::vector<File>& files, size_t bytes) {
  // The first file is mapped for the whole length, so that the addresses behind it are reserved.
  const int kind = files.empty() ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  const int first = files.empty() ? -1 : files.front().fd;
  void* const address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kind, first, 0);
  if (address == MAP_FAILED) return system_error("mmap", bytes);
  char* place = static_cast<char*>(address);
  for (size_t i = 0; i < files.size(); place += files[i++].bytes) {
    if (i > 0 && ::mmap(place, files[i].bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                        files[i].fd, 0) == MAP_FAILED) {
      const Status refused = system_error("mmap", files[i].bytes);
      ::munmap(address, bytes);
      return refused;
    }
  }
  advise_huge_pages(address, bytes);
  return static_cast<char*>(address);
}

}  // namespace

Result<std::shared_ptr<SharedRegion>> SharedRegion::create(size_t bytes, Sharing sharing,
                                                           int node) {
  static constinit std::atomic<uint32_t> next_id{1};
  if (bytes == 0 || bytes > SIZE_MAX / 4) {
    return Status(Code::kInvalidArgument, concat("cannot share a region of ", bytes, " bytes"));
  }
  bytes = round_up(bytes, page_bytes());
  std::shared_ptr<SharedRegion> region(new SharedRegion);
  std::vector<File> files;
  if (sharing == Sharing::kNode) {
    const size_t most = largest_file();
    if (most == 0 || (bytes - 1) / most >= kMostFiles) {
      return Status(Code::kInternal,
                    concat("shared memory: ", bytes, " bytes need more than ", kMostFiles,
                           " files of ", most, " bytes, the most that 'ulimit -f' allows: raise "
                           "it, or go without shared memory (HERRING_SHM=0)"));
    }
    for (size_t made = 0; made < bytes; made += files.back().bytes) {
      const size_t size = std::min(bytes - made, most);
      HERRING_ASSIGN_OR_RETURN(auto& file, create_file(size));
      files.push_back({file.get(), size});
      region->files_.push_back(std::move(file));
    }
  }
  Result<char*> address = map_pages(files, bytes);
  if (!address.ok()) return address.status();
  device::place_near(node, *address, bytes);
  region->data_ = *address;
  region->bytes_ = bytes;
  region->id_ = next_id.fetch_add(1, std::memory_order_relaxed);
  return region;
}

Result<std::shared_ptr<SharedRegion>> SharedRegion::map(std::vector<UniqueFd> passed,
                                                        size_t bytes) {
  std::vector<File> files;
  size_t found = 0;
  for (const UniqueFd& fd : passed) {
    struct stat info;
    if (::fstat(fd.get(), &info) != 0) return system_error("fstat", bytes);
    // Only memfds support seals (and files on tmpfs, which can be sealed in the same way).
    const int seals = ::fcntl(fd.get(), F_GET_SEALS);
    if (!S_ISREG(info.st_mode) || seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
      return breach("shared memory: a peer's descriptor is not a file sealed against shrinking");
    }
    const auto size = static_cast<uint64_t>(info.st_size);
    if (info.st_size <= 0 || size % page_bytes() != 0 || size > bytes - found) {
      return breach("shared memory: a file of ", info.st_size, " bytes does not fit into a peer's ",
                    "region of ", bytes);
    }
    files.push_back({fd.get(), size});
    found += size;
  }
  if (bytes == 0 || found != bytes) {
    return breach("shared memory: a peer's region has ", found, " bytes instead of ", bytes);
  }
  Result<char*> address = map_pages(files, bytes);
  if (!address.ok()) return address.status();
  std::shared_ptr<SharedRegion> region(new SharedRegion);
  region->data_ = *address;
  region->bytes_ = bytes;
  return region;
}

SharedRegion::~SharedRegion() {
  // A device that has registered the memory must release it first.
  if (data_ != nullptr && !pin_.unmap_later(data_, bytes_)) ::munmap(data_, bytes_);
}

Status SharedRegion::possible() {
  if (largest_file() < kLeastFileBytes) {
    return Status(Code::kInternal, concat("a file may have ", largest_file(),
                                          " bytes only; 'ulimit -f' with at least ",
                                          kLeastFileBytes >> 10, " allows more"));
  }
  const Status status = create_file(page_bytes()).status();
  // The neighbours of a worker that is short of descriptors or of memory expect it to share memory:
  // it may be able to later, or fails then.
  const bool is_short = errno == EMFILE || errno == ENFILE || errno == ENOMEM;
  return !status.ok() && is_short ? Status() : status;
}

std::vector<int> SharedRegion::fds() const {
  std::vector<int> found;
  for (const GuardedFd& file : files_) found.push_back(file.get());
  return found;
}

void SharedRegion::pin() { pin_.set(data_, bytes_); }

SharedHeap::Entries::iterator SharedHeap::entry_of(uintptr_t address) {
  auto next = entries_.upper_bound(address);
  if (next == entries_.begin()) return entries_.end();
  auto entry = std::prev(next);
  return address - entry->first < entry->second.region->bytes() ? entry : entries_.end();
}

SharedHeap::Entries::const_iterator SharedHeap::entry_of(uintptr_t address) const {
  return const_cast<SharedHeap*>(this)->entry_of(address);
}

Result<SharedHeap::Entries::iterator> SharedHeap::add_region(size_t bytes, Use use) {
  auto region =
      SharedRegion::create(bytes, use.by_devices ? Sharing::kNode : sharing_, use.node);
  if (!region.ok()) return region.status();
  const auto base = reinterpret_cast<uintptr_t>((*region)->data());
  auto entry = entries_.try_emplace(base).first;
  entry->second.region = std::move(*region);
  entry->second.use = use;
  return entry;
}

Result<void*> SharedHeap::allocate_small(size_t bytes, Use use) {
  auto take = [&](Entry& entry, std::map<size_t, size_t>::iterator hole) -> void* {
    const auto [offset, size] = *hole;
    entry.holes.erase(hole);
    if (size > bytes) entry.holes.emplace(offset + bytes, size - bytes);
    entry.blocks.emplace(offset, bytes);
    if (entry.cached) {
      entry.cached = false;
      cached_ -= entry.region->bytes();
    }
    return entry.region->data() + offset;
  };
  for (auto& [base, entry] : entries_) {
    if (!entry.slab || entry.retired || entry.use != use) continue;
    for (auto hole = entry.holes.begin(); hole != entry.holes.end(); ++hole) {
      if (hole->second >= bytes) return take(entry, hole);
    }
  }
  HERRING_ASSIGN_OR_RETURN(auto& added, add_region(kSlabBytes, use));
  Entry& entry = added->second;
  entry.slab = true;
  entry.holes.emplace(0, entry.region->bytes());
  return take(entry, entry.holes.begin());
}

void SharedHeap::replace(size_t bytes, Use use, Regions& evicted) {
  for (size_t replaced = 0; replaced < bytes;) {
    auto oldest = entries_.end();
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      const Entry& candidate = entry->second;
      const size_t size = candidate.region->bytes();
      if (!candidate.cached || candidate.slab || candidate.use != use) continue;
      if (size < bytes / 2 || size / 2 > bytes) continue;
      if (oldest == entries_.end() || candidate.cached_at < oldest->second.cached_at) {
        oldest = entry;
      }
    }
    if (oldest == entries_.end()) return;
    replaced += oldest->second.region->bytes();
    evicted.push_back(evict(oldest));
  }
}

Result<void*> SharedHeap::allocate_large(size_t bytes, Use use, Regions& evicted) {
  // Takes the smallest cached region that fits and wastes at most a quarter.
  auto best = entries_.end();
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    const Entry& candidate = entry->second;
    const size_t size = candidate.region->bytes();
    if (!candidate.cached || candidate.slab || candidate.use != use) continue;
    if (size < bytes || size - bytes > size / 4) continue;
    if (best == entries_.end() || size < best->second.region->bytes()) best = entry;
  }
  if (best == entries_.end()) {
    if (use.by_devices) replace(bytes, use, evicted);
    HERRING_RETURN_IF_ERROR(add_region(bytes, use).move_to(best));
  } else {
    best->second.cached = false;
    cached_ -= best->second.region->bytes();
  }
  best->second.blocks.emplace(0, bytes);
  return best->second.region->data();
}

Result<void*> SharedHeap::allocate(size_t bytes, Use use) {
  if (bytes > SIZE_MAX / 4) {
    return Status(Code::kInvalidArgument, concat("cannot allocate ", bytes, " bytes"));
  }
  bytes = round_up(bytes == 0 ? 1 : bytes, kAlignment);
  std::shared_ptr<SharedRegion> for_devices;  // pinned after the lock is released
  Regions evicted;                            // unmapped after the lock is released
  const Result<void*> block = [&] {
    ForkSection section;
    std::lock_guard lock(mutex_);
    Result<void*> found =
        bytes >= kLargeBytes ? allocate_large(bytes, use, evicted) : allocate_small(bytes, use);
    if (!found.ok()) return found;
    allocated_ += bytes;
    if (use.by_devices) {
      for_devices = entry_of(reinterpret_cast<uintptr_t>(*found))->second.region;
    }
    return found;
  }();
  if (for_devices) for_devices->pin();
  return block;
}

std::shared_ptr<SharedRegion> SharedHeap::evict(Entries::iterator entry) {
  released_.push_back(entry->second.region->id());  // first, because it needs memory
  std::shared_ptr<SharedRegion> region = std::move(entry->second.region);
  if (entry->second.cached) cached_ -= region->bytes();
  entries_.erase(entry);
  return region;
}

std::vector<std::shared_ptr<SharedRegion>> SharedHeap::keep(Entries::iterator entry) {
  std::vector<std::shared_ptr<SharedRegion>> evicted;
  const size_t bytes = entry->second.region->bytes();
  if (bytes > cache_limit_ || entry->second.retired) {  // not worth evicting all others
    evicted.push_back(evict(entry));
    return evicted;
  }
  entry->second.cached = true;
  entry->second.cached_at = ++clock_;
  cached_ += bytes;
  while (cached_ > cache_limit_) {
    auto oldest = entries_.end();
    for (auto it = entries_.begin(); it != entries_.end(); ++it) {
      if (!it->second.cached) continue;
      if (oldest == entries_.end() || it->second.cached_at < oldest->second.cached_at) oldest = it;
    }
    evicted.push_back(evict(oldest));
  }
  return evicted;
}

void SharedHeap::retire_all() {
  std::vector<std::shared_ptr<SharedRegion>> evicted;  // unmapped after the lock is released
  ForkSection section;
  std::lock_guard lock(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const auto one = entry++;
    one->second.retired = true;
    if (one->second.cached) evicted.push_back(evict(one));
  }
}

void SharedHeap::retire(const void* p) {
  ForkSection section;
  std::lock_guard lock(mutex_);
  const auto entry = entry_of(reinterpret_cast<uintptr_t>(p));
  if (entry != entries_.end()) entry->second.retired = true;
}

bool SharedHeap::is_pinned(const void* p) const {
  ForkSection section;
  std::lock_guard lock(mutex_);
  const auto entry = entry_of(reinterpret_cast<uintptr_t>(p));
  return entry != entries_.end() && entry->second.region->is_pinned();
}

bool SharedHeap::free(void* p) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  std::vector<std::shared_ptr<SharedRegion>> evicted;  // unmapped after the lock is released
  ForkSection section;
  std::lock_guard lock(mutex_);
  auto found = entry_of(address);
  if (found == entries_.end()) return false;
  Entry& entry = found->second;
  auto block = entry.blocks.find(address - found->first);
  if (block == entry.blocks.end()) return false;
  size_t offset = block->first;
  size_t bytes = block->second;
  entry.blocks.erase(block);
  allocated_ -= bytes;
  if (entry.slab) {
    auto next = entry.holes.lower_bound(offset);
    if (next != entry.holes.end() && next->first == offset + bytes) {
      bytes += next->second;
      next = entry.holes.erase(next);
    }
    if (next != entry.holes.begin()) {
      auto previous = std::prev(next);
      if (previous->first + previous->second == offset) {
        offset = previous->first;
        bytes += previous->second;
        entry.holes.erase(previous);
      }
    }
    entry.holes.emplace(offset, bytes);
  }
  if (entry.blocks.empty()) evicted = keep(found);
  return true;
}

std::optional<SharedHeap::Location> SharedHeap::locate(const void* p, size_t bytes) const {
  const auto address = reinterpret_cast<uintptr_t>(p);
  ForkSection section;
  std::lock_guard lock(mutex_);
  auto entry = entry_of(address);
  if (entry == entries_.end()) return std::nullopt;
  const uint64_t offset = address - entry->first;
  if (bytes > entry->second.region->bytes() - offset) return std::nullopt;
  return Location{entry->second.region->id(), offset};
}

std::shared_ptr<SharedRegion> SharedHeap::region(uint32_t id) const {
  ForkSection section;
  std::lock_guard lock(mutex_);
  for (const auto& [base, entry] : entries_) {
    if (entry.region->id() == id) return entry.region;
  }
  return nullptr;
}

std::vector<uint32_t> SharedHeap::take_released() {
  ForkSection section;
  std::lock_guard lock(mutex_);
  return std::exchange(released_, {});
}

SharedHeap::Usage SharedHeap::usage() const {
  ForkSection section;
  std::lock_guard lock(mutex_);
  return Usage{entries_.size(), allocated_, cached_};
}

}  // namespace herring
