// Functions of the stand-in for CUDA's driver that tests call, besides CUDA's own. Tests find them
// in libcuda.so.1 by name.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

extern "C" {

// Returns the number of calls so far of a CUDA function, or of all functions if `function` is null.
uint64_t standin_calls(const char* function);
// Gives the bytes copied out of devices and into devices. `pageable` counts those of either
// direction whose host memory is not registered.
void standin_bytes(uint64_t* out, uint64_t* in, uint64_t* pageable);
// Returns the number of threads that have made calls, besides continuations that asked whether a
// device is lost.
size_t standin_threads();
// Each item of a stream waits for a random time of up to `microseconds` before it begins.
void standin_jitter(uint32_t microseconds);
// Makes the n-th call from now on of a function (of any function if null) fail with this result. If
// `sticky`, every later call fails as well. With n = 0, nothing fails any more.
void standin_fail(const char* function, uint64_t n, int result, bool sticky);
// Loses a device at the n-th call from now on: its streams stop where they are, and all later calls
// for it fail with CUDA_ERROR_LAUNCH_FAILED. With n = 0 it is lost now; -1 then brings all back.
void standin_lose(uint64_t n, int device);
// Returns the function that standin_fail() made fail, or at which standin_lose() lost a device, or
// an empty text.
const char* standin_failed();
// Begins or ends the capture of a stream. Returns whether nothing has broken a capture since the
// last call.
bool standin_capture(void* stream, bool captures);
// Set whether devices have memory operations on streams, and whether their kernels may run for a
// limited time only. Platforms that are loaded later see this.
void standin_stream_memory(bool has);
void standin_time_limit(bool has);

// The following are kernels. Each takes `microseconds`, and then works on floats in device memory.
void standin_fill(void* stream, uint64_t to, size_t count, float value, uint32_t microseconds);
// Writes these bytes, which are copied at the call.
void standin_store(void* stream, uint64_t to, const void* from, size_t bytes,
                   uint32_t microseconds);
void standin_scale(void* stream, uint64_t at, size_t count, float factor, uint32_t microseconds);
// Queues a kernel that runs until the host's word is not 0.
void standin_hold(void* stream, const std::atomic<uint32_t>* word);
// Copies at once, without waiting for anything.
void standin_peek(void* to, uint64_t from, size_t bytes);
void standin_poke(uint64_t to, const void* from, size_t bytes);
// Uses the default context of a device, like cudaMalloc and cudaStreamCreate.
uint64_t standin_allocate(int device, size_t bytes);
void standin_free(int device, uint64_t address);
// Frees memory that standin_allocate() has returned. Its addresses then belong to new memory of
// `device`, or to pinned memory of the host if `device` is -1.
void standin_reuse(uint64_t address, int device);
// Treats host memory as device memory that the host can read too.
void standin_adopt(int device, uint64_t address, size_t bytes);
void standin_disown(uint64_t address);
void* standin_stream(int device);
void standin_synchronize(int device);
// Makes what is queued in `second` from now on wait for what is queued in `first`. If `second` is
// null, waits until `first` is idle.
void standin_order(void* first, void* second);
// Returns the number of device allocations that were not freed.
size_t standin_allocations();
size_t standin_registrations();

}
