// What tests ask of the stand-in for CUDA's driver, beside CUDA's own functions. They find these
// in libcuda.so.1 by name.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// Calls of a function of CUDA's so far, by its name; of all if it is null.
uint64_t standin_calls(const char* function);
// Bytes copied: out of devices, into them, and of both those of host memory that is not registered.
void standin_bytes(uint64_t* out, uint64_t* in, uint64_t* pageable);
// Threads that have made calls.
size_t standin_threads();
// Items of a stream take up to so long before they begin.
void standin_jitter(uint32_t microseconds);
// The n-th call from now on of a function (of any, if it is null) fails with this result; sticky:
// so does everything after it. n = 0: nothing fails any more.
void standin_fail(const char* function, uint64_t n, int result, bool sticky);
// The function that has failed so, or an empty text.
const char* standin_failed();
void standin_capture(void* stream, bool captures);
// Whether devices have memory operations on streams; before the driver is initialized.
void standin_stream_memory(bool has);

// Kernels. Each takes so long, then does what it says with floats in device memory.
void standin_fill(void* stream, uint64_t to, size_t count, float value, uint32_t microseconds);
// Writes these bytes, of which it takes a copy at once.
void standin_store(void* stream, uint64_t to, const void* from, size_t bytes,
                   uint32_t microseconds);
void standin_scale(void* stream, uint64_t at, size_t count, float factor, uint32_t microseconds);
// Copies at once, waiting for nothing.
void standin_peek(void* to, uint64_t from, size_t bytes);
void standin_poke(uint64_t to, const void* from, size_t bytes);
// Of the default context of a device: what cudaMalloc and cudaStreamCreate give.
uint64_t standin_allocate(int device, size_t bytes);
void standin_free(int device, uint64_t address);
// Takes memory of the host's for a device's, which the host can then read too.
void standin_adopt(int device, uint64_t address, size_t bytes);
void standin_disown(uint64_t address);
void* standin_stream(int device);
void standin_synchronize(int device);
// Lets what is queued in a stream from now on come after what is queued in another; null: waits for
// that.
void standin_order(void* first, void* second);
// Allocations of a device that were not freed.
size_t standin_allocations();
size_t standin_registrations();

}
