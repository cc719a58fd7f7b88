// What XLA calls for a collective of a compiled program, and the same from a Python callback.
// Written against the C API of XLA's foreign function interface alone (xla_ffi.h).
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <string_view>
#include <tuple>

#include "bindings.h"
#include "keyed.h"
#include "xla_ffi.h"

namespace herring::bindings {
namespace {

struct Element {
  size_t bytes;
  std::optional<DType> dtype;  // none: it can be moved, not reduced
};

std::optional<Element> element_of(xla::DataType type) {
  switch (type) {
    case xla::DataType::kPred: return Element{1, DType::kBool};
    case xla::DataType::kS8: return Element{1, DType::kInt8};
    case xla::DataType::kS16: return Element{2, DType::kInt16};
    case xla::DataType::kS32: return Element{4, DType::kInt32};
    case xla::DataType::kS64: return Element{8, DType::kInt64};
    case xla::DataType::kU8: return Element{1, DType::kUInt8};
    case xla::DataType::kF16: return Element{2, DType::kFloat16};
    case xla::DataType::kBF16: return Element{2, DType::kBFloat16};
    case xla::DataType::kF32: return Element{4, DType::kFloat32};
    case xla::DataType::kF64: return Element{8, DType::kFloat64};
    case xla::DataType::kU16: return Element{2, std::nullopt};
    case xla::DataType::kU32: return Element{4, std::nullopt};
    case xla::DataType::kU64:
    case xla::DataType::kC64: return Element{8, std::nullopt};
    case xla::DataType::kC128: return Element{16, std::nullopt};
    default: return std::nullopt;
  }
}

xla::ErrorCode code_of(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
    case Code::kMismatch: return xla::ErrorCode::kInvalidArgument;
    case Code::kTimeout: return xla::ErrorCode::kDeadlineExceeded;
    case Code::kPeerLost: return xla::ErrorCode::kUnavailable;
    case Code::kShutdown: return xla::ErrorCode::kFailedPrecondition;
    default: return xla::ErrorCode::kInternal;
  }
}

xla::Error* error_of(const xla::Api& api, const Status& status) {
  const std::string text = concat("herring.", class_of(status.code()), ": ", status.message());
  xla::ErrorCreate create{sizeof(xla::ErrorCreate), nullptr, text.c_str(), code_of(status.code())};
  return api.error_create(&create);
}

void drop(const xla::Api& api, xla::Error* error) {
  if (error == nullptr) return;
  xla::ErrorDestroy destroy{sizeof(xla::ErrorDestroy), nullptr, error};
  api.error_destroy(&destroy);
}

void complete(const xla::Api& api, xla::Future* future, const Status& status) {
  if (status.ok()) {
    xla::FutureSetAvailable set{sizeof(xla::FutureSetAvailable), nullptr, future};
    return drop(api, api.future_set_available(&set));
  }
  xla::FutureSetError set{sizeof(xla::FutureSetError), nullptr, future, error_of(api, status)};
  drop(api, api.future_set_error(&set));
}

// What a call site says about itself.
class Attributes {
 public:
  explicit Attributes(const xla::Attributes& all) : all_(all) {}

  std::string text(std::string_view name) {
    const auto* span = static_cast<const xla::ByteSpan*>(find(name, xla::Attributes::kString));
    return span == nullptr ? std::string() : std::string(span->data, span->size);
  }
  template <typename T>
  T number(std::string_view name) {
    constexpr auto kType =
        std::is_floating_point_v<T> ? xla::DataType::kF64 : xla::DataType::kS64;
    const auto* scalar = static_cast<const xla::Scalar*>(find(name, xla::Attributes::kScalar));
    T value{};
    if (scalar == nullptr) return value;
    if (scalar->dtype != kType) {
      lacking_ = name;
      return value;
    }
    std::memcpy(&value, scalar->value, sizeof value);
    return value;
  }
  // The first that was not there as it should be, or "".
  const std::string& lacking() const { return lacking_; }

 private:
  const void* find(std::string_view name, int32_t type) {
    for (int64_t i = 0; i < all_.size; ++i) {
      if (std::string_view(all_.names[i]->data, all_.names[i]->size) != name) continue;
      if (all_.types[i] == type) return all_.values[i];
    }
    lacking_ = name;
    return nullptr;
  }

  const xla::Attributes& all_;
  std::string lacking_;
};

// The same name as Python's.
Result<wire::Collective> parse_collective(const std::string& name) {
  for (const auto kind : {wire::Collective::kAllreduce, wire::Collective::kBroadcast,
                          wire::Collective::kAllgather, wire::Collective::kReduceScatter}) {
    if (name == wire::name_of(kind)) return kind;
  }
  return Status(Code::kInvalidArgument, concat("'", name, "' is no collective of a program"));
}

bool reduces(wire::Collective kind) {
  return kind == wire::Collective::kAllreduce || kind == wire::Collective::kReduceScatter;
}

Result<std::vector<Buffer>> buffers_of(const xla::Operands& operands, int64_t first) {
  std::vector<Buffer> buffers;
  for (int64_t i = first; i < operands.size; ++i) {
    if (operands.types[i] != xla::Operands::kBuffer) {
      return defect("operand ", i, " of a program's call is no array");
    }
    const auto* array = static_cast<const xla::Array*>(operands.values[i]);
    const auto element = element_of(array->dtype);
    if (!element) {
      return Status(Code::kInvalidArgument,
                    concat("operand ", i, " of a program's call has dtype ",
                           static_cast<int>(array->dtype), " of XLA, which is not supported"));
    }
    buffers.push_back({static_cast<char*>(array->data), element->bytes,
                       {array->dims, array->dims + array->rank}});
  }
  return buffers;
}

// That of all operands behind the token.
Result<DType> dtype_of(const xla::Operands& operands, const std::string& key) {
  std::optional<DType> common;
  for (int64_t i = 1; i < operands.size; ++i) {
    const auto dtype = element_of(static_cast<const xla::Array*>(operands.values[i])->dtype)->dtype;
    if (!dtype) {
      return Status(Code::kInvalidArgument,
                    concat("operand ", i, " of '", key, "' has a dtype that cannot be reduced"));
    }
    if (common.value_or(*dtype) != *dtype) {
      return defect("operands of '", key, "' differ in dtype");
    }
    common = dtype;
  }
  return common.value_or(DType::kUInt8);
}

Result<KeyedCall> call_of(const xla::CallFrame& frame) {
  Attributes attributes(frame.attributes);
  KeyedCall call;
  call.key = attributes.text("key");
  const std::string kind = attributes.text("kind"), op = attributes.text("op");
  call.refusal = attributes.text("refusal");
  call.group = attributes.number<int64_t>("group");
  call.digest = static_cast<uint32_t>(attributes.number<int64_t>("digest"));
  call.root = static_cast<uint32_t>(attributes.number<int64_t>("root"));
  call.prescale = attributes.number<double>("prescale");
  call.postscale = attributes.number<double>("postscale");
  call.timeout = attributes.number<double>("timeout");
  if (!attributes.lacking().empty()) {
    return defect("attribute '", attributes.lacking(), "' of '", call.key,
                  "' is not there, or of another type");
  }
  auto parsed = parse_collective(kind);
  if (!parsed.ok()) return parsed.status();
  call.kind = *parsed;
  auto parsed_op = parse_reduce_op(op);
  if (!parsed_op.ok()) return parsed_op.status();
  call.op = *parsed_op;
  auto inputs = buffers_of(frame.arguments, 1);
  if (!inputs.ok()) return inputs.status();
  call.inputs = std::move(*inputs);
  auto places = buffers_of(frame.results, 1);
  if (!places.ok()) return places.status();
  for (const Buffer& one : *places) call.result_bytes += one.bytes();
  if (reduces(call.kind)) {
    auto dtype = dtype_of(frame.arguments, call.key);
    if (!dtype.ok()) return dtype.status();
    call.dtype = *dtype;
    HERRING_RETURN_IF_ERROR(check_reducible(call.dtype, call.op, call.prescale, call.postscale));
  }
  return call;
}

// Whether there is nothing more to do: the runtime asks what this is, or is not executing.
bool answers(xla::CallFrame& frame) {
  for (xla::Extension* one = frame.extensions; one != nullptr; one = one->next) {
    if (one->type != xla::MetadataExtension::kType) continue;
    xla::Metadata& metadata = *reinterpret_cast<xla::MetadataExtension*>(one)->metadata;
    metadata.version.major = xla::kMajorVersion;
    metadata.version.minor = xla::kMinorVersion;
    metadata.traits = 0;
    return true;
  }
  return frame.stage != xla::Stage::kExecute;
}

// A token, which the call before has made, and arrays; returns a token and the places of results,
// whose content is undefined.
xla::Error* start(xla::CallFrame* frame) {
  if (answers(*frame)) return nullptr;
  auto call = call_of(*frame);
  const Status status =
      call.ok() ? KeyedCalls::instance().start(std::move(*call)) : call.status();
  return status.ok() ? nullptr : error_of(*frame->api, status);
}

// The places; returns them, with the results. Not before they are there, but at once: a thread of
// XLA's that waited here could be the one that another rank waits for. It reads nothing else, as
// what it reads is not given to anything that comes after it before it is complete.
xla::Error* finish(xla::CallFrame* frame) {
  if (answers(*frame)) return nullptr;
  const xla::Api& api = *frame->api;
  if (api.struct_size < sizeof(xla::Api)) {
    return error_of(api, {Code::kConfiguration,
                          "this jaxlib has no futures for foreign functions: use 0.6 or newer, or "
                          "set HERRING_JAX_IMPL=callback"});
  }
  Attributes attributes(frame->attributes);
  const KeyedCalls::Key key(attributes.number<int64_t>("group"), attributes.text("key"));
  auto outputs = buffers_of(frame->results, 0);
  if (!outputs.ok()) return error_of(api, outputs.status());
  xla::FutureCreate create{sizeof(xla::FutureCreate), nullptr, nullptr};
  if (xla::Error* const error = api.future_create(&create); error != nullptr) return error;
  frame->future = create.future;
  KeyedCalls::instance().finish(key, std::move(*outputs),
                                [&api, future = create.future](const Status& status) {
                                  complete(api, future, status);
                                });
  return nullptr;
}

// Bytes, bytes of an element, shape.
using Described = std::tuple<nb::object, size_t, std::vector<uint64_t>>;

// The collective as a callback has it, which waits.
void run(const std::string& kind, const std::string& key, const std::string& dtype,
         const std::string& op, int64_t group, int64_t digest, uint32_t root, double prescale,
         double postscale, double timeout, const std::string& refusal,
         const std::vector<Described>& inputs, const std::vector<Described>& outputs) {
  KeyedCall call;
  std::vector<Buffer> results;
  call.kind = take(parse_collective(kind));
  call.key = key;
  call.op = take(parse_reduce_op(op));
  call.group = group;
  call.digest = static_cast<uint32_t>(digest);
  call.root = root;
  call.prescale = prescale;
  call.postscale = postscale;
  call.timeout = timeout;
  call.refusal = refusal;
  if (reduces(call.kind)) {
    call.dtype = take(parse_dtype(dtype));
    check(check_reducible(call.dtype, call.op, prescale, postscale));
  }
  std::deque<ArrayView> views;
  for (const auto& [arrays, buffers, writes] :
       {std::tuple(&inputs, &call.inputs, false), std::tuple(&outputs, &results, true)}) {
    for (const auto& [bytes, item, shape] : *arrays) {
      const ArrayView& view = views.emplace_back(bytes, writes);
      buffers->push_back({view.data(), item, shape});
      if (view.dtype() == DType::kUInt8 && view.shape().size() == 1 &&
          view.shape()[0] == buffers->back().bytes()) {
        continue;
      }
      raise({Code::kInvalidArgument, concat("an array of '", key, "' is not given as its bytes")});
    }
  }
  for (const Buffer& one : results) call.result_bytes += one.bytes();
  struct {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<Status> status;
  } outcome;
  {
    GilReleased release;
    const KeyedCalls::Key place(group, key);
    const Status started = KeyedCalls::instance().start(std::move(call));
    if (started.ok()) {
      KeyedCalls::instance().finish(place, std::move(results), [&outcome](const Status& status) {
        std::lock_guard lock(outcome.mutex);
        outcome.status = status;
        outcome.changed.notify_all();
      });
    }
    std::unique_lock lock(outcome.mutex);
    if (!started.ok()) outcome.status = started;
    outcome.changed.wait(lock, [&outcome] { return outcome.status.has_value(); });
  }
  check(*outcome.status);
}

}  // namespace

void register_jax(nb::module_& module) {
  using namespace nb::literals;
  using Release = nb::call_guard<GilReleased>;
  nb::module_ jax = module.def_submodule("jax");
  jax.def("handlers", [] {
    return std::make_tuple(nb::capsule(reinterpret_cast<void*>(&start)),
                           nb::capsule(reinterpret_cast<void*>(&finish)));
  });
  jax.def("attach", [](job::Job& job) { KeyedCalls::instance().attach(job); }, "job"_a,
          Release());
  jax.def("detach", [] { KeyedCalls::instance().detach(); }, Release());
  jax.def("forget", [] { KeyedCalls::instance().forget(); });
  jax.def("add_group",
          [](std::shared_ptr<worker::Group> group) {
            return KeyedCalls::instance().add_group(std::move(group));
          },
          "group"_a, Release());
  jax.def("run", &run, "kind"_a, "key"_a, "dtype"_a, "op"_a, "group"_a, "digest"_a, "root"_a,
          "prescale"_a, "postscale"_a, "timeout"_a, "refusal"_a, "inputs"_a, "outputs"_a);
}

}  // namespace herring::bindings
