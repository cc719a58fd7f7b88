// A library to preload that counts the system calls of Herring and makes one of them fail. Only
// calls from Herring's own extension module count (and threads that libstdc++ starts for the
// module), so that Python is not disturbed. tests/faults/cases.py configures the library through a
// record in memory shared with the processes of a case.
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

// cases.py refers to a call by its place in this list.
#define FOR_EACH_CALL(X)                                                                        \
  X(socket) X(bind) X(listen) X(accept4) X(connect) X(epoll_create1) X(epoll_ctl) X(epoll_wait) \
  X(eventfd) X(memfd_create) X(mmap) X(ftruncate) X(fstat) X(sendmsg) X(send) X(recv)           \
  X(recvmsg) X(recvmmsg) X(read) X(write) X(getsockopt) X(setsockopt) X(getsockname)            \
  X(getpeername) X(pthread_create) X(vmsplice) X(splice) X(getrandom) X(pipe2) X(fcntl) X(poll) \
  X(open) X(rename)

namespace {

enum Call {
#define NAME(name) k_##name,
  FOR_EACH_CALL(NAME)
#undef NAME
  k_new,          // operator new
  k_descriptors,  // any call that makes a descriptor
  k_full,         // a write to a regular file, as on a disk that is full
  kCalls
};

constexpr const char* kNames[] = {
#define NAME(name) #name,
    FOR_EACH_CALL(NAME)
#undef NAME
    "new", "descriptors", "full"};
static_assert(sizeof(kNames) / sizeof(kNames[0]) == kCalls);

constexpr int kPhases = 8;

// cases.py depends on this layout.
struct Record {
  std::atomic<int32_t> phase;
  int32_t call, in_phase, nth, error, onwards;
  std::atomic<int32_t> failed;  // calls that were made to fail
  std::atomic<int32_t> counts[kPhases][kCalls];
};

constinit std::atomic<Record*> g_record{nullptr};
struct Range {
  uintptr_t from = 0, to = 0;
};
Range g_herring, g_libstdcxx;

bool lies_in(const Range& range, void* address) {
  const auto value = reinterpret_cast<uintptr_t>(address);
  return value >= range.from && value < range.to;
}

bool strikes(Record& record, int call) {
  const int phase = record.phase.load();
  const int number = ++record.counts[phase][call];
  if (call != record.call) return false;
  const bool later = record.onwards && (phase > record.in_phase || number >= record.nth);
  if (phase < record.in_phase || (phase > record.in_phase && !record.onwards)) return false;
  if (number != record.nth && !later) return false;
  ++record.failed;
  return true;
}

bool makes_descriptor(int call) {
  return call == k_socket || call == k_accept4 || call == k_epoll_create1 || call == k_eventfd ||
         call == k_memfd_create || call == k_pipe2 || call == k_open;
}

// Returns whether this call must fail, and sets errno if so.
bool fails(int call, void* caller) {
  Record* const record = g_record.load(std::memory_order_acquire);
  if (record == nullptr) return false;
  const Range& from = call == k_pthread_create ? g_libstdcxx : g_herring;
  if (!lies_in(from, caller)) return false;
  bool struck = strikes(*record, call);
  if (makes_descriptor(call)) struck |= strikes(*record, k_descriptors);
  if (struck) errno = record->error;
  return struck;
}

// The stack of the last allocation that failed. An abort prints this stack before its own, because
// by then the exception has unwound the stack up to the frame that could not pass it on.
constexpr int kDepth = 48;
void* g_stack[kDepth];
int g_frames = 0;

void print_stacks(int signal) {
  void* stack[kDepth];
  const int frames = backtrace(stack, kDepth);
  constexpr char kMiddle[] = "has failed; aborted:\n";
  backtrace_symbols_fd(g_stack, g_frames, STDERR_FILENO);
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kMiddle, sizeof(kMiddle) - 1);
  backtrace_symbols_fd(stack, frames, STDERR_FILENO);
  std::signal(signal, SIG_DFL);
}

template <typename Function>
Function* next(Function*, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

int find_ranges(dl_phdr_info* info, size_t, void* module) {
  const char* const name = info->dlpi_name;
  Range* range = nullptr;
  if (std::strstr(name, static_cast<const char*>(module)) != nullptr) range = &g_herring;
  if (std::strstr(name, "libstdc++") != nullptr) range = &g_libstdcxx;
  if (range == nullptr) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD || !(part.p_flags & PF_X)) continue;
    range->from = info->dlpi_addr + part.p_vaddr;
    range->to = range->from + part.p_memsz;
  }
  return 0;
}

}  // namespace

extern "C" {

const char* herring_faults_name(int call) { return call < kCalls ? kNames[call] : nullptr; }

size_t herring_faults_bytes() { return sizeof(Record); }

// Starts to count. `module` is part of the path of the module whose calls count. Returns false if
// no such module is loaded.
bool herring_faults_use(void* record, const char* module) {
  dl_iterate_phdr(find_ranges, const_cast<char*>(module));
  backtrace(g_stack, kDepth);  // The first call loads a library, which allocates.
  for (const int signal : {SIGABRT, SIGSEGV}) std::signal(signal, print_stacks);
  g_record.store(static_cast<Record*>(record), std::memory_order_release);
  return g_herring.from != 0;
}

// The wrapped calls report errors by -1 and errno. The caller is the code that called the wrapper.
#define WRAP(result, name, parameters, arguments)                      \
  result name parameters {                                             \
    static const auto real = next(static_cast<result(*) parameters>(nullptr), #name); \
    if (fails(k_##name, __builtin_return_address(0))) return -1;       \
    return real arguments;                                             \
  }

WRAP(int, socket, (int a, int b, int c), (a, b, c))
WRAP(int, bind, (int a, const sockaddr* b, socklen_t c), (a, b, c))
WRAP(int, listen, (int a, int b), (a, b))
WRAP(int, accept4, (int a, sockaddr* b, socklen_t* c, int d), (a, b, c, d))
WRAP(int, connect, (int a, const sockaddr* b, socklen_t c), (a, b, c))
WRAP(int, epoll_create1, (int a), (a))
WRAP(int, epoll_wait, (int a, epoll_event* b, int c, int d), (a, b, c, d))
WRAP(int, eventfd, (unsigned a, int b), (a, b))
WRAP(int, memfd_create, (const char* a, unsigned b), (a, b))
WRAP(int, ftruncate, (int a, off_t b), (a, b))
WRAP(int, fstat, (int a, struct stat* b), (a, b))
WRAP(ssize_t, sendmsg, (int a, const msghdr* b, int c), (a, b, c))
WRAP(ssize_t, send, (int a, const void* b, size_t c, int d), (a, b, c, d))
WRAP(ssize_t, recv, (int a, void* b, size_t c, int d), (a, b, c, d))
WRAP(ssize_t, recvmsg, (int a, msghdr* b, int c), (a, b, c))
WRAP(int, recvmmsg, (int a, mmsghdr* b, unsigned c, int d, timespec* e), (a, b, c, d, e))
WRAP(ssize_t, read, (int a, void* b, size_t c), (a, b, c))
WRAP(int, getsockopt, (int a, int b, int c, void* d, socklen_t* e), (a, b, c, d, e))
WRAP(int, setsockopt, (int a, int b, int c, const void* d, socklen_t e), (a, b, c, d, e))
WRAP(int, getsockname, (int a, sockaddr* b, socklen_t* c), (a, b, c))
WRAP(int, getpeername, (int a, sockaddr* b, socklen_t* c), (a, b, c))
WRAP(ssize_t, vmsplice, (int a, const iovec* b, size_t c, unsigned d), (a, b, c, d))
WRAP(ssize_t, splice, (int a, off64_t* b, int c, off64_t* d, size_t e, unsigned f),
     (a, b, c, d, e, f))
WRAP(ssize_t, getrandom, (void* a, size_t b, unsigned c), (a, b, c))
WRAP(int, pipe2, (int a[2], int b), (a, b))
WRAP(int, poll, (pollfd* a, nfds_t b, int c), (a, b, c))
WRAP(int, rename, (const char* a, const char* b), (a, b))

ssize_t write(int fd, const void* data, size_t bytes) {
  static const auto real = next(&write, "write");
  void* const caller = __builtin_return_address(0);
  if (fails(k_write, caller)) return -1;
  struct stat about;
  const int before = errno;
  const bool to_file = ::fstat(fd, &about) == 0 && S_ISREG(about.st_mode);
  errno = before;
  if (to_file && fails(k_full, caller)) return -1;
  return real(fd, data, bytes);
}

// Only adding a watch needs resources, so changing and ending one never fail.
int epoll_ctl(int fd, int what, int of, epoll_event* event) noexcept {
  static const auto real = next(&epoll_ctl, "epoll_ctl");
  if (what == EPOLL_CTL_ADD && fails(k_epoll_ctl, __builtin_return_address(0))) return -1;
  return real(fd, what, of, event);
}

void* mmap(void* a, size_t b, int c, int d, int e, off_t f) noexcept {
  static const auto real = next(&mmap, "mmap");
  if (fails(k_mmap, __builtin_return_address(0))) return MAP_FAILED;
  return real(a, b, c, d, e, f);
}

int open(const char* path, int flags, ...) {
  static const auto real = next(&open, "open");
  va_list list;
  va_start(list, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : 0;
  va_end(list);
  if (fails(k_open, __builtin_return_address(0))) return -1;
  return real(path, flags, mode);
}

int fcntl(int fd, int command, ...) {
  static const auto real = next(&fcntl, "fcntl");
  va_list list;
  va_start(list, command);
  void* const argument = va_arg(list, void*);
  va_end(list);
  if (fails(k_fcntl, __builtin_return_address(0))) return -1;
  return real(fd, command, argument);
}

int pthread_create(pthread_t* a, const pthread_attr_t* b, void* (*c)(void*), void* d) noexcept {
  static const auto real = next(&pthread_create, "pthread_create");
  if (fails(k_pthread_create, __builtin_return_address(0))) return errno;
  return real(a, b, c, d);
}

}  // extern "C"

namespace {

void* allocate(size_t bytes, size_t alignment, void* caller) {
  const int before = errno;
  if (fails(k_new, caller)) {
    g_frames = backtrace(g_stack, kDepth);
    errno = before;
    return nullptr;
  }
  if (alignment == 0) return std::malloc(bytes);
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

}  // namespace

#define OR_THROW(pointer)                    \
  void* const made = pointer;                \
  if (made == nullptr) throw std::bad_alloc(); \
  return made

void* operator new(size_t bytes) { OR_THROW(allocate(bytes, 0, __builtin_return_address(0))); }
void* operator new[](size_t bytes) { OR_THROW(allocate(bytes, 0, __builtin_return_address(0))); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  OR_THROW(allocate(bytes, static_cast<size_t>(alignment), __builtin_return_address(0)));
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes, 0, __builtin_return_address(0));
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes, 0, __builtin_return_address(0));
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }
