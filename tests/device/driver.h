// Stands in for CUDA's driver on machines without GPUs, with host memory. It is built as
// libcuda.so.1 and found instead of the real one. A stream is a thread with a queue. The host
// cannot read at an address of device memory, so that a wrong access ends the process. The actual
// bytes lie elsewhere. Streams can be given jitter, so that a missing wait shows as a wrong result.
// As with the real driver, releasing memory, loading a module and the first launch of a kernel wait
// until the device is idle. Meanwhile they hold the lock of its context, which other calls need.
#pragma once

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <future>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tests/device/lost.h"

namespace standin {

constexpr int kOk = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3,
              kNoSuchDevice = 101, kInvalidImage = 200, kInvalidContext = 201,
              kNoPeerAccess = 217, kInvalidHandle = 400, kCaptureUnsafe = 900,
              kNotFound = 500, kNotReady = 600, kRegisteredAlready = 712, kNotRegistered = 713,
              kLaunchFailed = 719, kNotSupported = 801;
constexpr size_t kPage = 4096;
constexpr size_t kDeviceBytes = size_t{4} << 30;

using namespace std::chrono_literals;

inline uint32_t number_of(const char* variable, uint32_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : static_cast<uint32_t>(std::strtoul(text, nullptr, 10));
}

inline std::atomic<uint32_t> jitter{number_of("STANDIN_JITTER", 0)};
// Whether devices can access each other's memory.
inline const bool has_peers = number_of("STANDIN_PEERS", 0) != 0;
// Whether streams have memory operations, and whether kernels may run for a limited time only.
inline std::atomic<bool> has_stream_memory{number_of("STANDIN_STREAM_MEMORY", 1) != 0};
inline std::atomic<bool> has_time_limit{false};
inline std::atomic<uint64_t> bytes_out{0}, bytes_in{0}, bytes_pageable{0};

constexpr int kRelaxedCapture = 2;
inline std::atomic<int> captures{0};              // of all streams
inline std::atomic<bool> captures_broken{false};
inline thread_local int capture_mode = 0;

class Stream {
 public:
  explicit Stream(int device) : device(device), thread_([this] { run(); }) {}
  ~Stream() {
    {
      std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void put(std::function<void()> item) {
    {
      std::lock_guard lock(mutex_);
      items_.push_back(std::move(item));
    }
    changed_.notify_all();
  }
  bool idle() {
    std::lock_guard lock(mutex_);
    return items_.empty();
  }
  void wait_idle() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return items_.empty(); });
  }

  const int device;
  std::atomic<bool> captures{false};

 private:
  void run() {
    std::minstd_rand random(std::random_device{}());
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ends_ || !items_.empty(); });
      if (items_.empty()) return;  // queued items are done before
      const std::function<void()> item = items_.front();
      lock.unlock();
      if (const uint32_t most = jitter.load(); most > 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(random() % most));
      }
      if (!is_lost(device)) item();
      lock.lock();
      items_.pop_front();  // removed only now: idle means done
      if (items_.empty()) changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> items_;
  bool ends_ = false;
  std::thread thread_;
};

// Each recording ties the event to other work. A waiter keeps waiting for what the event stood for
// at the time of the call.
struct Event {
  std::mutex mutex;
  std::shared_future<void> last;  // guarded by mutex; invalid if never recorded
};

struct Context {
  explicit Context(int device) : device(device), standard(new Stream(device)) {
    streams.insert(standard);
  }
  const int device;
  Stream* const standard;  // never destroyed, like the context
  // Calls that use the context hold this lock. It guards the following.
  std::mutex mutex;
  std::set<Stream*> streams;
  std::map<const Event*, std::unique_ptr<Event>> events;
  std::set<const void*> launched;  // kernels

  // The caller holds the lock, so that nothing new is queued meanwhile.
  void wait_idle() {
    for (Stream* stream : streams) stream->wait_idle();
  }
};

// A block of memory that the driver knows.
struct Block {
  size_t bytes;
  char* memory;  // where its bytes are; the address itself if registered
  int device;    // -1: registered host memory
  int fd = -1;   // a file that other processes may map; -1: not shared
  uint32_t number = 0;  // no two allocations have the same
};

class Driver {
 public:
  std::mutex mutex;
  bool initialized = false;
  std::vector<Context*> contexts;  // by device; null before its first use
  std::map<uintptr_t, Block> blocks;
  std::vector<size_t> used;
  uint32_t allocated = 0;  // how many allocations there have been
  std::map<std::string, uint64_t> calls;
  std::set<std::thread::id> threads;
  std::string fails;
  uint64_t fails_in = 0;
  int failure = 0;
  bool sticky = false, stuck = false, always = false;
  int loses = -1;  // the device that is lost at the call that fails; -1: none
  bool says_failure = false;
  const char* failed = "";  // the function that failed first

  // The driver is never destroyed, because streams may run to the end of the process.
  static Driver& instance() {
    static auto* const driver = new Driver;
    return *driver;
  }

  Driver() {
    const uint32_t count = number_of("STANDIN_DEVICES", 2);
    contexts.assign(count, nullptr);
    used.assign(count, 0);
    // On one rank or on all: function:n:result[:sticky or always], or function:n:device:lost.
    const uint32_t rank = number_of("HERRING_RANK", 0);
    const char* const text = std::getenv("STANDIN_FAIL");
    if (text != nullptr && number_of("STANDIN_FAIL_RANK", rank) == rank) {
      says_failure = true;
      std::vector<std::string> parts(1);
      for (const char* c = text; *c != '\0'; ++c) {
        if (*c == ':') parts.emplace_back();
        else parts.back() += *c;
      }
      parts.resize(4);
      fails = parts[0] == "*" ? "" : parts[0];
      fails_in = std::strtoull(parts[1].c_str(), nullptr, 10);
      sticky = parts[3] == "sticky";
      always = parts[3] == "always";  // each call of the function from the n-th on
      (parts[3] == "lost" ? loses : failure) = std::atoi(parts[2].c_str());
    }
  }

  // Returns whether a continuation asks whether a device is lost, which it may at any time.
  static bool looks(std::string_view function) {
    char name[16] = {};
    return (function == "cuCtxPushCurrent" || function == "cuCtxPopCurrent" ||
            function == "cuStreamQuery" || function == "cuThreadExchangeStreamCaptureMode") &&
           pthread_getname_np(pthread_self(), name, sizeof(name)) == 0 &&
           std::string_view(name) == "herring-later";
  }

  // Counts a call and returns whether it fails on purpose.
  int begin(const char* function) {
    std::lock_guard lock(mutex);
    ++calls[function];
    if (!looks(function)) threads.insert(std::this_thread::get_id());
    if (stuck) return failure;
    if (fails_in == 0 || (!fails.empty() && fails != function)) return kOk;
    if (--fails_in > 0) return kOk;
    failed = function;
    if (says_failure) {
      const auto now = std::chrono::steady_clock::now().time_since_epoch();
      std::fprintf(stderr, "stand-in: %s fails at %.3f s\n", function,
                   std::chrono::duration<double>(now).count());
    }
    if (loses >= 0) {
      lost_devices.fetch_or(1u << loses);
      return kOk;
    }
    stuck = sticky;
    if (always) fails_in = 1;
    return failure;
  }

  // Returns the block that contains these bytes. Adopted blocks may lie inside others.
  std::map<uintptr_t, Block>::iterator block_of(uintptr_t address, size_t bytes = 1) {
    for (auto next = blocks.upper_bound(address); next != blocks.begin();) {
      --next;
      if (address + bytes <= next->first + next->second.bytes) return next;
    }
    return blocks.end();
  }
  // Returns where the bytes of a device address are, or null if the device has none there.
  char* bytes_at(uint64_t address, size_t bytes) {
    std::lock_guard lock(mutex);
    const auto block = block_of(address, bytes);
    if (block == blocks.end()) return nullptr;
    return block->second.memory + (address - block->first);
  }
  bool is_registered(const void* memory, size_t bytes) {
    std::lock_guard lock(mutex);
    const auto address = reinterpret_cast<uintptr_t>(memory);
    const auto block = block_of(address, bytes);
    return block != blocks.end() && block->second.device < 0;
  }
};

inline Driver& driver() { return Driver::instance(); }

inline thread_local std::vector<Context*> current;

inline Context* context_of(int device) {
  std::lock_guard lock(driver().mutex);
  Context*& context = driver().contexts[device];
  if (context == nullptr) context = new Context(device);
  return context;
}

inline std::vector<Context*> contexts_now() {
  std::lock_guard lock(driver().mutex);
  std::vector<Context*> all = driver().contexts;
  std::erase(all, nullptr);
  return all;
}

// Holds the locks of all contexts while their devices are idle.
class AllIdle {
 public:
  AllIdle() {
    const std::vector<Context*> all = contexts_now();
    for (Context* context : all) held_.emplace_back(context->mutex);
    for (Context* context : all) context->wait_idle();
  }

 private:
  std::vector<std::unique_lock<std::mutex>> held_;
};

// Counts a call, and returns whether it fails, on purpose or because its device is lost. Every
// function calls this first.
inline int begin_call(const char* function) {
  const int failed = driver().begin(function);
  if (current.empty() || !is_lost(current.back()->device)) return failed;
  // Only the thread is concerned, not the device.
  static const auto* const others = new std::set<std::string>{
      "cuCtxPushCurrent", "cuCtxPopCurrent", "cuThreadExchangeStreamCaptureMode"};
  if (others->contains(function)) return failed;
  // What the streams have begun has ended when somebody hears of the loss.
  std::lock_guard held(current.back()->mutex);
  current.back()->wait_idle();
  return kLaunchFailed;
}

inline Stream* stream_of(void* handle) {
  const auto number = reinterpret_cast<uintptr_t>(handle);
  return number <= 2 ? current.back()->standard : static_cast<Stream*>(handle);
}

inline int allocate(int device, uint64_t* address, size_t bytes) {
  if (bytes == 0) return kInvalidValue;
  const size_t whole = (bytes + kPage - 1) / kPage * kPage;
  std::lock_guard lock(driver().mutex);
  if (driver().used[device] + whole > kDeviceBytes) return kOutOfMemory;
  void* const out = ::mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const int fd = ::memfd_create("standin", MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(whole)) != 0) return kOutOfMemory;
  void* const memory = ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (out == MAP_FAILED || memory == MAP_FAILED) return kOutOfMemory;
  driver().used[device] += whole;
  *address = reinterpret_cast<uintptr_t>(out);
  driver().blocks[*address] = {whole, static_cast<char*>(memory), device, fd,
                               ++driver().allocated};
  return kOk;
}

inline int release(int device, uint64_t address) {
  Context& context = *context_of(device);
  std::lock_guard held(context.mutex);
  context.wait_idle();
  std::lock_guard lock(driver().mutex);
  const auto block = driver().blocks.find(address);
  if (block == driver().blocks.end() || block->second.device != device) return kInvalidValue;
  ::munmap(reinterpret_cast<void*>(address), block->second.bytes);
  ::munmap(block->second.memory, block->second.bytes);
  if (block->second.fd >= 0) ::close(block->second.fd);
  driver().used[device] -= block->second.bytes;
  driver().blocks.erase(block);
  return kOk;
}

}  // namespace standin
