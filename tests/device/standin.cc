#include "tests/device/standin.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <future>
#include <vector>

#include "tests/device/driver.h"

namespace {

using namespace standin;

void put(Stream* stream, std::function<void()> item) {
  std::lock_guard held(context_of(stream->device)->mutex);
  stream->put(std::move(item));
}

void run_kernel(void* handle, uint64_t at, size_t count, uint32_t microseconds,
                std::function<void(float*)> kernel) {
  put(stream_of(handle), [=, device = stream_of(handle)->device] {
    if (!rest(device, std::chrono::microseconds(microseconds))) return;
    auto* const floats = reinterpret_cast<float*>(driver().bytes_at(at, count * sizeof(float)));
    if (floats == nullptr) std::abort();  // an illegal address
    kernel(floats);
  });
}

}  // namespace

extern "C" {

uint64_t standin_calls(const char* function) {
  std::lock_guard lock(driver().mutex);
  if (function != nullptr) return driver().calls[function];
  uint64_t all = 0;
  for (const auto& [name, count] : driver().calls) all += count;
  return all;
}
void standin_bytes(uint64_t* out, uint64_t* in, uint64_t* pageable) {
  *out = bytes_out.load();
  *in = bytes_in.load();
  *pageable = bytes_pageable.load();
}
size_t standin_threads() {
  std::lock_guard lock(driver().mutex);
  return driver().threads.size();
}
void standin_jitter(uint32_t microseconds) { jitter.store(microseconds); }
void standin_fail(const char* function, uint64_t n, int result, bool sticky) {
  std::lock_guard lock(driver().mutex);
  driver().fails = function == nullptr ? "" : function;
  driver().fails_in = n;
  driver().failure = result;
  driver().sticky = sticky;
  driver().always = false;
  driver().stuck = false;
  driver().loses = -1;
}
void standin_lose(uint64_t n, int device) {
  if (n == 0) {
    if (device < 0) lost_devices.store(0);
    else lost_devices.fetch_or(1u << device);
    return;
  }
  std::lock_guard lock(driver().mutex);
  driver().fails = "";
  driver().fails_in = n;
  driver().stuck = false;
  driver().loses = device;
}
const char* standin_failed() {
  std::lock_guard lock(driver().mutex);
  return driver().failed;
}
bool standin_capture(void* stream, bool captures) {
  static_cast<Stream*>(stream)->captures = captures;
  standin::captures += captures ? 1 : -1;
  return !captures_broken.exchange(false);
}
void standin_stream_memory(bool has) { has_stream_memory.store(has); }
void standin_time_limit(bool has) { has_time_limit.store(has); }

void standin_fill(void* stream, uint64_t to, size_t count, float value, uint32_t microseconds) {
  run_kernel(stream, to, count, microseconds,
             [=](float* floats) { std::fill(floats, floats + count, value); });
}
void standin_store(void* stream, uint64_t to, const void* from, size_t bytes,
                   uint32_t microseconds) {
  const auto* const first = static_cast<const char*>(from);
  run_kernel(stream, to, bytes / sizeof(float), microseconds,
             [=, copy = std::vector<char>(first, first + bytes)](float* at) {
               std::memcpy(at, copy.data(), bytes);
             });
}
void standin_scale(void* stream, uint64_t at, size_t count, float factor, uint32_t microseconds) {
  run_kernel(stream, at, count, microseconds, [=](float* floats) {
    for (size_t i = 0; i < count; ++i) floats[i] *= factor;
  });
}
void standin_hold(void* stream, const std::atomic<uint32_t>* word) {
  put(stream_of(stream), [word, device = stream_of(stream)->device] {
    while (word->load(std::memory_order_acquire) == 0) {
      if (!rest(device, std::chrono::microseconds(100))) return;
    }
  });
}
void standin_peek(void* to, uint64_t from, size_t bytes) {
  std::memcpy(to, driver().bytes_at(from, bytes), bytes);
}
void standin_poke(uint64_t to, const void* from, size_t bytes) {
  std::memcpy(driver().bytes_at(to, bytes), from, bytes);
}
uint64_t standin_allocate(int device, size_t bytes) {
  std::lock_guard held(context_of(device)->mutex);
  uint64_t address = 0;
  return allocate(device, &address, bytes) == kOk ? address : 0;
}
void standin_free(int device, uint64_t address) { release(device, address); }
void standin_reuse(uint64_t address, int device) {
  if (device >= 0) context_of(device);
  const AllIdle idle;
  std::lock_guard lock(driver().mutex);
  Block& block = driver().blocks.at(address);
  if (block.device >= 0) driver().used[block.device] -= block.bytes;
  if (device >= 0) driver().used[device] += block.bytes;
  ::munmap(block.memory, block.bytes);
  ::close(block.fd);
  block.device = device;
  block.number = ++driver().allocated;
  block.fd = ::memfd_create("standin", MFD_CLOEXEC);
  if (::ftruncate(block.fd, static_cast<off_t>(block.bytes)) != 0) std::abort();
  const auto map = [&block](void* at, int access, int fixed) {
    void* const mapped = ::mmap(at, block.bytes, access, MAP_SHARED | fixed, block.fd, 0);
    if (mapped == MAP_FAILED) std::abort();
    return static_cast<char*>(mapped);
  };
  block.memory = map(nullptr, PROT_READ | PROT_WRITE, 0);
  // The host reaches its own memory at the address, too.
  map(reinterpret_cast<void*>(address), device < 0 ? PROT_READ | PROT_WRITE : PROT_NONE, MAP_FIXED);
}
void standin_adopt(int device, uint64_t address, size_t bytes) {
  context_of(device);
  std::lock_guard lock(driver().mutex);
  driver().blocks[address] = {bytes, reinterpret_cast<char*>(address), device};
}
void standin_disown(uint64_t address) {
  std::lock_guard lock(driver().mutex);
  driver().blocks.erase(address);
}
void* standin_stream(int device) {
  Context& context = *context_of(device);
  auto* const stream = new Stream(device);
  std::lock_guard lock(context.mutex);
  context.streams.insert(stream);
  return stream;
}
void standin_order(void* first, void* second) {
  auto* const producer = static_cast<Stream*>(first);
  if (second == nullptr) return producer->wait_idle();
  auto through = std::make_shared<std::promise<void>>();
  put(producer, [through] { through->set_value(); });
  put(static_cast<Stream*>(second), [came = through->get_future().share()] { came.wait(); });
}
void standin_synchronize(int device) {
  Context& context = *context_of(device);
  std::set<Stream*> all;
  {
    std::lock_guard held(context.mutex);
    all = context.streams;
  }
  for (Stream* stream : all) stream->wait_idle();
}
size_t standin_allocations() {
  std::lock_guard lock(driver().mutex);
  return std::count_if(driver().blocks.begin(), driver().blocks.end(),
                       [](const auto& one) { return one.second.device >= 0; });
}
size_t standin_registrations() {
  std::lock_guard lock(driver().mutex);
  return std::count_if(driver().blocks.begin(), driver().blocks.end(),
                       [](const auto& one) { return one.second.device < 0; });
}

}
