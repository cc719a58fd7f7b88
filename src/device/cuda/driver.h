// The part of CUDA's driver API that is used here, by the addresses of its functions. The library
// is loaded when the first device is asked for, and building Herring needs nothing of CUDA. Types
// and numbers follow the documented interface; a test compares them with cuda.h if that is
// installed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace herring::device::cuda {

using Answer = int;  // CUresult
using DeviceNumber = int;
using DevicePointer = unsigned long long;
using Context = struct ContextState*;
using StreamHandle = struct StreamState*;
using EventHandle = struct EventState*;
using Module = struct ModuleState*;
using Function = struct FunctionState*;
struct IpcHandle {
  char bytes[64];
};

constexpr Answer kSuccess = 0, kNotReady = 600;

enum Attribute : int {
  kMultiprocessors = 16,
  kKernelTimeLimit = 17,     // as for a GPU with a display
  kUnifiedAddressing = 41,
  kCapabilityMajor = 75,
  kCapabilityMinor = 76,
  kStreamMemoryFirst = 92,   // for the first version of these functions
  kStreamMemory64 = 122,
  kHostNumaNode = 134,
};

enum PointerAttribute : int {
  kMemoryType = 2,
  kIsManaged = 8,
  kDeviceOrdinal = 9,
};

constexpr unsigned kMemoryTypeDevice = 2;
constexpr unsigned kStreamNonBlocking = 1, kEventWithoutTiming = 2;
constexpr unsigned kRegisterPortable = 1, kRegisterMapped = 2;
constexpr unsigned kLazyPeerAccess = 1;
constexpr unsigned kWaitUntilReached = 0, kWriteAfterAll = 0;
constexpr int kRelaxedCapture = 2;  // what the thread calls breaks no capture

// Member, name in the library, CUDA version whose form of the function is used, arguments.
#define HERRING_CUDA_FUNCTIONS(X)                                                              \
  X(error_name, "cuGetErrorName", 6000, (Answer, const char**))                                \
  X(error_text, "cuGetErrorString", 6000, (Answer, const char**))                              \
  X(init, "cuInit", 2000, (unsigned))                                                          \
  X(driver_version, "cuDriverGetVersion", 2020, (int*))                                        \
  X(device_count, "cuDeviceGetCount", 2000, (int*))                                            \
  X(device, "cuDeviceGet", 2000, (DeviceNumber*, int))                                         \
  X(device_name, "cuDeviceGetName", 2000, (char*, int, DeviceNumber))                          \
  X(device_memory, "cuDeviceTotalMem", 3020, (size_t*, DeviceNumber))                          \
  X(device_bus, "cuDeviceGetPCIBusId", 4010, (char*, int, DeviceNumber))                       \
  X(device_attribute, "cuDeviceGetAttribute", 2000, (int*, int, DeviceNumber))                 \
  X(can_access_peer, "cuDeviceCanAccessPeer", 4000, (int*, DeviceNumber, DeviceNumber))        \
  X(retain_primary, "cuDevicePrimaryCtxRetain", 7000, (Context*, DeviceNumber))                \
  X(push, "cuCtxPushCurrent", 4000, (Context))                                                 \
  X(pop, "cuCtxPopCurrent", 4000, (Context*))                                                  \
  X(priorities, "cuCtxGetStreamPriorityRange", 5050, (int*, int*))                             \
  X(allocate, "cuMemAlloc", 3020, (DevicePointer*, size_t))                                    \
  X(free, "cuMemFree", 3020, (DevicePointer))                                                  \
  X(allocate_host, "cuMemHostAlloc", 2020, (void**, size_t, unsigned))                         \
  X(free_host, "cuMemFreeHost", 2000, (void*))                                                 \
  X(register_host, "cuMemHostRegister", 6050, (void*, size_t, unsigned))                       \
  X(unregister_host, "cuMemHostUnregister", 4000, (void*))                                     \
  X(address_of, "cuMemHostGetDevicePointer", 3020, (DevicePointer*, void*, unsigned))          \
  X(range_of, "cuMemGetAddressRange", 3020, (DevicePointer*, size_t*, DevicePointer))          \
  X(export_memory, "cuIpcGetMemHandle", 4010, (IpcHandle*, DevicePointer))                     \
  X(import_memory, "cuIpcOpenMemHandle", 11000, (DevicePointer*, IpcHandle, unsigned))         \
  X(close_import, "cuIpcCloseMemHandle", 4010, (DevicePointer))                                \
  X(pointer_attributes, "cuPointerGetAttributes", 7000,                                        \
    (unsigned, int*, void**, DevicePointer))                                                   \
  X(create_stream, "cuStreamCreateWithPriority", 5050, (StreamHandle*, unsigned, int))         \
  X(destroy_stream, "cuStreamDestroy", 4000, (StreamHandle))                                   \
  X(query_stream, "cuStreamQuery", 2000, (StreamHandle))                                       \
  X(synchronize, "cuStreamSynchronize", 2000, (StreamHandle))                                  \
  X(wait_event, "cuStreamWaitEvent", 3020, (StreamHandle, EventHandle, unsigned))              \
  X(is_capturing, "cuStreamIsCapturing", 10000, (StreamHandle, int*))                          \
  X(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", 10010, (int*))                 \
  X(create_event, "cuEventCreate", 2000, (EventHandle*, unsigned))                             \
  X(destroy_event, "cuEventDestroy", 4000, (EventHandle))                                      \
  X(record_event, "cuEventRecord", 2000, (EventHandle, StreamHandle))                          \
  X(copy_in, "cuMemcpyHtoDAsync", 3020, (DevicePointer, const void*, size_t, StreamHandle))    \
  X(copy_out, "cuMemcpyDtoHAsync", 3020, (void*, DevicePointer, size_t, StreamHandle))         \
  X(fill, "cuMemsetD8Async", 3020, (DevicePointer, unsigned char, size_t, StreamHandle))       \
  X(load_module, "cuModuleLoadData", 2000, (Module*, const void*))                             \
  X(find_function, "cuModuleGetFunction", 2000, (Function*, Module, const char*))              \
  X(launch, "cuLaunchKernel", 4000,                                                            \
    (Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,           \
     StreamHandle, void**, void**))                                                            \
  X(write_word, "cuStreamWriteValue32", 11070,                                                 \
    (StreamHandle, DevicePointer, uint32_t, unsigned))                                         \
  X(wait_word, "cuStreamWaitValue32", 11070,                                                   \
    (StreamHandle, DevicePointer, uint32_t, unsigned))

struct Driver {
#define HERRING_DECLARE(member, symbol, version, arguments) Answer(*member) arguments = nullptr;
  HERRING_CUDA_FUNCTIONS(HERRING_DECLARE)
#undef HERRING_DECLARE

  // Returns kConfiguration if the library is missing, or lacks a function.
  static Result<Driver> load(const std::string& library);

  // Returns OK, or kDevice with "<who>: <function> failed: <the driver's message>".
  Status check(Answer result, const char* function, const std::string& who) const;
};

}  // namespace herring::device::cuda
