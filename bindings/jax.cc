// The functions that XLA calls for a collective of a compiled program, and the same for a Python
// callback. Uses only the C API of XLA's foreign function interface (xla_ffi.h).
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
#include <utility>

#include "bindings.h"
#include "keyed.h"
#include "xla_ffi.h"

namespace herring::bindings {
namespace {

struct Element {
  size_t bytes;
  std::optional<DType> dtype;  // none: it can be moved but not reduced
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

// The attributes of a call site.
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
  // Returns the first attribute that was missing or invalid, or "".
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

// Parses the name of a collective, as Python uses it.
Result<wire::Collective> parse_collective(const std::string& name, const Reduction& reduction,
                                          uint32_t root) {
  if (name == wire::AllReduce::kName) return wire::Collective(wire::AllReduce{reduction});
  if (name == wire::ReduceScatter::kName) return wire::Collective(wire::ReduceScatter{reduction});
  if (name == wire::AllGather::kName) return wire::Collective(wire::AllGather{});
  if (name == wire::Broadcast::kName) return wire::Collective(wire::Broadcast{root});
  return Status(Code::kInvalidArgument, concat("'", name, "' is not a collective for programs"));
}

// Operations that only move data also accept a dtype that the core does not know. Its bytes then
// become an additional dimension.
wire::Array array_of(const Element& element, std::vector<uint64_t> shape) {
  if (element.dtype) return {*element.dtype, std::move(shape)};
  shape.push_back(element.bytes);
  return {DType::kUInt8, std::move(shape)};
}

// Returns an error if the operation reduces and the dtype cannot be reduced.
Status check_element(const Element& element, const wire::Collective& what, int64_t operand) {
  if (element.dtype || wire::reduction_of(what) == nullptr) return {};
  return {Code::kInvalidArgument,
          concat("operand ", operand, " of a program's call has a dtype that cannot be reduced")};
}

// Returns the buffers after the first `skipped` operands.
Result<std::vector<calls::Buffer>> buffers_of(const xla::Operands& operands, int64_t skipped,
                                               const wire::Collective& what) {
  std::vector<calls::Buffer> buffers;
  for (int64_t i = skipped; i < operands.size; ++i) {
    if (operands.types[i] != xla::Operands::kBuffer) {
      return defect("operand ", i, " of a program's call is not an array");
    }
    const auto* array = static_cast<const xla::Array*>(operands.values[i]);
    const auto element = element_of(array->dtype);
    if (!element) {
      return Status(Code::kInvalidArgument,
                    concat("operand ", i, " of a program's call has dtype ",
                           static_cast<int>(array->dtype), " of XLA, which is not supported"));
    }
    HERRING_RETURN_IF_ERROR(check_element(*element, what, i));
    buffers.push_back({array_of(*element, {array->dims, array->dims + array->rank}),
                       static_cast<const char*>(array->data)});
  }
  return buffers;
}

Result<KeyedCall> call_of(const xla::CallFrame& frame) {
  Attributes attributes(frame.attributes);
  KeyedCall call;
  call.key = attributes.text("key");
  const std::string kind = attributes.text("kind"), op = attributes.text("op");
  call.refusal = attributes.text("refusal");
  call.group = attributes.number<int64_t>("group");
  call.call.agreement = attributes.text("agreement");
  call.call.timeout = attributes.number<double>("timeout");
  const auto root = static_cast<uint32_t>(attributes.number<int64_t>("root"));
  Reduction reduction;
  reduction.prescale = attributes.number<double>("prescale");
  reduction.postscale = attributes.number<double>("postscale");
  if (!attributes.lacking().empty()) {
    return defect("attribute '", attributes.lacking(), "' of '", call.key,
                  "' is missing or has the wrong type");
  }
  HERRING_RETURN_IF_ERROR(parse_reduce_op(op).move_to(reduction.op));
  HERRING_RETURN_IF_ERROR(parse_collective(kind, reduction, root).move_to(call.call.what));
  HERRING_RETURN_IF_ERROR(
      buffers_of(frame.arguments, 1, call.call.what).move_to(call.call.buffers));
  HERRING_ASSIGN_OR_RETURN(auto& places, buffers_of(frame.results, 1, call.call.what));
  for (calls::Buffer& one : places) call.results.push_back(std::move(one.array));
  return call;
}

// Returns whether the call is answered: the runtime only asks for metadata, or is not in the
// execute stage.
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

// Starts a call. Its arguments are a token from the call before and arrays. It returns a token and
// memory for the results, whose content is undefined.
xla::Error* start(xla::CallFrame* frame) {
  if (answers(*frame)) return nullptr;
  auto call = call_of(*frame);
  const Status status =
      call.ok() ? KeyedCalls::instance().start(std::move(*call)) : call.status();
  return status.ok() ? nullptr : error_of(*frame->api, status);
}

// Finishes a call. Its argument is the memory for the results, which it returns with the results in
// it. It returns at once, but the result completes later: an XLA thread that waited here might be
// the one that another rank waits for. It reads no other operand, because XLA gives an operand to
// later operations only when this call is complete.
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
  std::vector<char*> places;
  for (int64_t i = 0; i < frame->results.size; ++i) {
    places.push_back(static_cast<char*>(static_cast<xla::Array*>(frame->results.values[i])->data));
  }
  xla::FutureCreate create{sizeof(xla::FutureCreate), nullptr, nullptr};
  if (xla::Error* const error = api.future_create(&create); error != nullptr) return error;
  frame->future = create.future;
  KeyedCalls::instance().finish(key, std::move(places),
                                [&api, future = create.future](const Status& status) {
                                  complete(api, future, status);
                                });
  return nullptr;
}

// The device and the stream in which a program runs.
struct OnDevice {
  int device = 0;
  device::Stream stream = 0;
};

// Sets `where` to the place where a program runs: its stream, and the device of the first of
// `arrays`. Returns null, or an error.
xla::Error* look(const xla::CallFrame& frame, const xla::Operands& arrays, OnDevice& where) {
  const xla::Api& api = *frame.api;
  xla::StreamGet get{sizeof(xla::StreamGet), nullptr, frame.context, nullptr};
  if (xla::Error* const error = api.stream_get(&get); error != nullptr) return error;
  where.stream = reinterpret_cast<device::Stream>(get.stream);
  const auto pointer = [&]() -> Result<device::Pointer> {
    if (arrays.size == 0 || arrays.types[0] != xla::Operands::kBuffer) {
      return defect("a program's call has no array");
    }
    const auto* const array = static_cast<const xla::Array*>(arrays.values[0]);
    HERRING_ASSIGN_OR_RETURN(auto& platform, device::platform());
    return platform->query(reinterpret_cast<device::Address>(array->data));
  }();
  if (!pointer.ok()) return error_of(api, pointer.status());
  if (pointer->kind != device::Kind::kDevice && pointer->kind != device::Kind::kManaged) {
    return error_of(api, {Code::kInvalidArgument,
                          "an array of a program on a GPU does not lie in the memory of a GPU"});
  }
  where.device = pointer->device;
  return nullptr;
}

// Starts a call whose arrays are on a device. If a result has the same place as its argument, the
// argument stays there until finish_on_device() brings the result. Other arguments may be
// overwritten by what the program queues next.
xla::Error* start_on_device(xla::CallFrame* frame) {
  if (answers(*frame)) return nullptr;
  OnDevice where;
  if (xla::Error* const error = look(*frame, frame->arguments, where); error) return error;
  auto call = call_of(*frame);
  if (!call.ok()) return error_of(*frame->api, call.status());
  if (frame->results.size <= static_cast<int64_t>(call->call.buffers.size())) {
    return error_of(*frame->api, defect("a program's call has fewer results than arrays"));
  }
  bool overwrites = false;
  for (size_t i = 0; i < call->call.buffers.size(); ++i) {
    calls::Buffer& buffer = call->call.buffers[i];
    buffer.on_device = reinterpret_cast<device::Address>(std::exchange(buffer.send, nullptr));
    const auto* const place = static_cast<const xla::Array*>(frame->results.values[i + 1]);
    overwrites |= reinterpret_cast<device::Address>(place->data) != buffer.on_device;
  }
  const Status status = KeyedCalls::instance().start(std::move(*call), where.device, where.stream,
                                                     overwrites);
  return status.ok() ? nullptr : error_of(*frame->api, status);
}

// Finishes a call whose arrays are on a device. Returns when everything is queued; the program's
// stream continues when the results have arrived.
xla::Error* finish_on_device(xla::CallFrame* frame) {
  if (answers(*frame)) return nullptr;
  OnDevice where;
  if (xla::Error* const error = look(*frame, frame->results, where); error) return error;
  Attributes attributes(frame->attributes);
  const KeyedCalls::Key key(attributes.number<int64_t>("group"), attributes.text("key"));
  std::vector<calls::Operation::Place> places;
  const auto arrays = buffers_of(frame->results, 0, wire::Broadcast{});
  if (!arrays.ok()) return error_of(*frame->api, arrays.status());
  for (const calls::Buffer& one : *arrays) {
    places.push_back({reinterpret_cast<device::Address>(one.send), one.array.bytes()});
  }
  const Status status = KeyedCalls::instance().finish(key, std::move(places), where.stream);
  return status.ok() ? nullptr : error_of(*frame->api, status);
}

// An array of a callback: its bytes, its dtype, the bytes of an element, its shape.
using Described = std::tuple<nb::object, std::string, size_t, std::vector<uint64_t>>;

// Runs a collective for a callback and waits for the result.
void run(const std::string& kind, const std::string& key, const std::string& op, int64_t group,
         const std::string& agreement, uint32_t root, double prescale, double postscale,
         double timeout, const std::string& refusal, const std::vector<Described>& inputs,
         const std::vector<Described>& outputs) {
  KeyedCall call;
  call.key = key;
  call.group = group;
  call.refusal = refusal;
  call.call.what =
      take(parse_collective(kind, {take(parse_reduce_op(op)), prescale, postscale}, root));
  call.call.agreement = agreement;
  call.call.timeout = timeout;
  std::deque<ArrayView> views;
  std::vector<char*> places;
  for (const auto* arrays : {&inputs, &outputs}) {
    for (const auto& [bytes, dtype, item, shape] : *arrays) {
      const ArrayView& view = views.emplace_back(bytes, arrays == &outputs);
      const auto known = parse_dtype(dtype);
      const Element element{item, known.ok() ? std::optional(*known) : std::nullopt};
      check(check_element(element, call.call.what, static_cast<int64_t>(views.size())));
      wire::Array array = array_of(element, shape);
      if (view.dtype() != DType::kUInt8 || view.array().bytes() != array.bytes()) {
        raise({Code::kInvalidArgument,
               concat("an array of '", key, "' must be passed as its bytes")});
      }
      if (arrays == &inputs) {
        call.call.buffers.push_back({std::move(array), view.data()});
      } else {
        call.results.push_back(std::move(array));
        places.push_back(view.data());
      }
    }
  }
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
      KeyedCalls::instance().finish(place, std::move(places), [&outcome](const Status& status) {
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
  jax.def("device_handlers", [] {
    return std::make_tuple(nb::capsule(reinterpret_cast<void*>(&start_on_device)),
                           nb::capsule(reinterpret_cast<void*>(&finish_on_device)));
  });
  jax.def("settle", [](double seconds) { KeyedCalls::instance().settle(from_seconds(seconds)); },
          "seconds"_a, Release());
  jax.def("check", [] {
    Status failed;
    {
      GilReleased release;
      failed = KeyedCalls::instance().take_failure();
    }
    check(failed);
  });
  jax.def("attach", [](job::Job& job) { KeyedCalls::instance().attach(job); }, "job"_a,
          Release());
  jax.def("detach", [] { KeyedCalls::instance().detach(); }, Release());
  jax.def("forget", [] { KeyedCalls::instance().forget(); });
  jax.def("add_group",
          [](std::shared_ptr<engine::Group> group) {
            return KeyedCalls::instance().add_group(std::move(group));
          },
          "group"_a, Release());
  jax.def("run", &run, "kind"_a, "key"_a, "op"_a, "group"_a, "agreement"_a, "root"_a,
          "prescale"_a, "postscale"_a, "timeout"_a, "refusal"_a, "inputs"_a, "outputs"_a);
}

}  // namespace herring::bindings
