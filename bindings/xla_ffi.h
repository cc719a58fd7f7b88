// The part of XLA's foreign function interface that is used here, as its public C API defines it
// (xla/ffi/api/c_api.h, version 0.1, which later versions keep). It is declared here, so that one
// build works with every jaxlib and none is needed for the build. Each structure begins with its
// size, which tells the runtime which fields the caller knows. Structures only grow at their end.
#pragma once

#include <cstddef>
#include <cstdint>

namespace herring::bindings::xla {

inline constexpr int kMajorVersion = 0, kMinorVersion = 1;  // the version that the handler claims

struct Error;   // opaque
struct Future;  // opaque

enum class DataType : int32_t {
  kPred = 1,
  kS8 = 2,
  kS16 = 3,
  kS32 = 4,
  kS64 = 5,
  kU8 = 6,
  kU16 = 7,
  kU32 = 8,
  kU64 = 9,
  kF16 = 10,
  kF32 = 11,
  kF64 = 12,
  kC64 = 15,
  kBF16 = 16,
  kC128 = 18,
};

enum class ErrorCode : int32_t {
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kFailedPrecondition = 9,
  kInternal = 13,
  kUnavailable = 14,
};

enum class Stage : int32_t { kInstantiate = 0, kPrepare = 1, kInitialize = 2, kExecute = 3 };

// An optional structure that follows another one.
struct Extension {
  size_t struct_size;
  int32_t type;
  Extension* next;
};

struct Version {
  size_t struct_size;
  Extension* extensions;
  int32_t major;  // out
  int32_t minor;  // out
};

// Filled for the runtime, which asks for it before the first call.
struct Metadata {
  size_t struct_size;
  Version version;
  uint32_t traits;
};

struct MetadataExtension {
  static constexpr int32_t kType = 1;
  Extension base;
  Metadata* metadata;
};

struct ByteSpan {
  const char* data;
  size_t size;
};

struct Scalar {
  DataType dtype;
  const void* value;
};

struct Array {
  size_t struct_size;
  Extension* extensions;
  DataType dtype;
  void* data;
  int64_t rank;
  const int64_t* dims;
};

// Arguments or results. The entry in `types` for a buffer is kBuffer.
struct Operands {
  static constexpr int32_t kBuffer = 1;
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  const int32_t* types;
  void** values;
};

// Sorted by name.
struct Attributes {
  static constexpr int32_t kScalar = 3, kString = 4;
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  const int32_t* types;
  const ByteSpan* const* names;
  void** values;
};

struct ErrorCreate {
  size_t struct_size;
  Extension* extensions;
  const char* message;
  ErrorCode code;
};

struct ErrorDestroy {
  size_t struct_size;
  Extension* extensions;
  Error* error;
};

struct FutureCreate {
  size_t struct_size;
  Extension* extensions;
  Future* future;  // out
};

struct FutureSetAvailable {
  size_t struct_size;
  Extension* extensions;
  Future* future;
};

struct FutureSetError {
  size_t struct_size;
  Extension* extensions;
  Future* future;
  Error* error;  // owned by the runtime from now on
};

// Asks for the stream in which a program runs on its device.
struct StreamGet {
  size_t struct_size;
  Extension* extensions;
  void* context;
  void* stream;  // out
};

// The functions of the runtime. Functions that are not called here are untyped pointers.
struct Api {
  size_t struct_size;
  Extension* extensions;
  Version version;
  const void* internal;

  Error* (*error_create)(ErrorCreate*);
  void* error_get_message;
  void (*error_destroy)(ErrorDestroy*);
  void* handler_register;
  Error* (*stream_get)(StreamGet*);
  void* type_register;
  void* context_get;
  void* state_set;
  void* state_get;
  void* memory_allocate;
  void* memory_free;
  void* pool_schedule;
  void* pool_threads;
  Error* (*future_create)(FutureCreate*);
  Error* (*future_set_available)(FutureSetAvailable*);
  Error* (*future_set_error)(FutureSetError*);
};

struct CallFrame {
  size_t struct_size;
  Extension* extensions;
  const Api* api;
  void* context;
  Stage stage;
  Operands arguments;
  Operands results;
  Attributes attributes;
  // Set by a handler that returns before it is done. Arguments, results and attributes stay alive
  // until the future is complete.
  Future* future;
};

// Returns null if there is no error.
using Handler = Error* (*)(CallFrame*);

}  // namespace herring::bindings::xla
