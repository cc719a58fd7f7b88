#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include "base/process_texts.h"
#include "bindings.h"
#include "waiting.h"

namespace herring::bindings {
namespace {

struct InvalidArray {
  std::string text;
};

[[noreturn]] void invalid(std::string text) { throw InvalidArray{std::move(text)}; }

std::string class_name(nb::handle object) {
  return nb::cast<std::string>(nb::str(object.type().attr("__name__")));
}

// Maps struct-module format codes in native size, which numpy and the array module use.
bool dtype_of_format(const char* format, size_t item, DType* dtype) {
  const std::string text = format == nullptr ? "B" : format;
  const char code = text.empty() ? 'B' : text.back();
  if (text.size() > 2 || (text.size() == 2 && text[0] != '@' && text[0] != '=' && text[0] != '<')) {
    return false;
  }
  switch (code) {
    case 'f': *dtype = DType::kFloat32; return true;
    case 'd': *dtype = DType::kFloat64; return true;
    case 'e': *dtype = DType::kFloat16; return true;
    case '?': *dtype = DType::kBool; return true;
    case 'B': case 'c': *dtype = DType::kUInt8; return true;
    case 'b': *dtype = DType::kInt8; return true;
    case 'h': *dtype = DType::kInt16; return true;
    case 'i': case 'l': case 'q':
      if (item != 4 && item != 8) return false;
      *dtype = item == 4 ? DType::kInt32 : DType::kInt64;
      return true;
    default: return false;
  }
}

bool dtype_of_dlpack(nb::dlpack::dtype type, DType* dtype) {
  using nb::dlpack::dtype_code;
  if (type.lanes != 1) return false;
  const auto is = [&](dtype_code code, int bits, DType result) {
    if (type.code != static_cast<uint8_t>(code) || type.bits != bits) return false;
    *dtype = result;
    return true;
  };
  return is(dtype_code::Float, 32, DType::kFloat32) || is(dtype_code::Float, 64, DType::kFloat64) ||
         is(dtype_code::Float, 16, DType::kFloat16) ||
         is(dtype_code::Bfloat, 16, DType::kBFloat16) ||
         is(dtype_code::Int, 8, DType::kInt8) || is(dtype_code::Int, 16, DType::kInt16) ||
         is(dtype_code::Int, 32, DType::kInt32) || is(dtype_code::Int, 64, DType::kInt64) ||
         is(dtype_code::UInt, 8, DType::kUInt8) || is(dtype_code::Bool, 8, DType::kBool);
}

constexpr const char* kSupported =
    "float32, float64, float16, bfloat16, int8, int16, int32, int64, uint8, bool";

// Returns the dtype's name in the array's own library, or `otherwise` if there is none.
std::string dtype_name(nb::handle array, const std::string& otherwise) {
  if (!nb::hasattr(array, "dtype")) return otherwise;
  try {
    const nb::object dtype = array.attr("dtype");
    const auto name = nb::cast<std::string>(nb::str(nb::handle(dtype)));
    constexpr std::string_view kTorch = "torch.";
    return name.starts_with(kTorch) ? name.substr(kTorch.size()) : name;
  } catch (const std::exception&) {  // an attribute with another meaning
    PyErr_Clear();
    return otherwise;
  }
}

[[noreturn]] void invalid_dtype(nb::handle array, const std::string& otherwise) {
  const std::string name = dtype_name(array, otherwise);
  const bool complex = name.find("complex") != std::string::npos;
  invalid(concat("the dtype ", name, " is not supported; use one of ", kSupported,
                 complex ? ". Complex numbers can be passed as pairs of floats: "
                           "array.view(float32), or torch.view_as_real(tensor)"
                         : ""));
}

// Raises the exception with which an array refuses to be exported, which nanobind drops, unless it
// is one with which DLPack says that the array cannot be exported. Other exceptions have nothing to
// do with DLPack: frameworks raise those of the computation whose result the array is.
void raise_own_error(nb::handle exported) {
  if (!nb::hasattr(exported, "__dlpack__")) return;
  try {
    exported.attr("__dlpack__")();
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_BufferError) && !error.matches(PyExc_TypeError)) throw;
  }
}

}  // namespace

Status check_memory_of(int device, const char* data, size_t bytes) {
  const auto address = reinterpret_cast<device::Address>(data);
  // Checks both ends, because memory that a library has assembled from pieces is several
  // allocations to the driver.
  bool there = true;
  for (const device::Address end : {address, address + bytes - 1}) {
    const auto found = without_gil([end]() -> Result<device::Pointer> {
      auto platform = device::platform();
      return platform.ok() ? (*platform)->query(end) : platform.status();
    });
    if (!found.ok()) return found.status();
    const bool is_memory =
        found->kind == device::Kind::kDevice || found->kind == device::Kind::kManaged;
    there &= is_memory && found->device == device;
  }
  if (there) return {};
  return {Code::kInvalidArgument,
          concat("its ", bytes, " bytes do not lie in memory of GPU ", device,
                 ": it was freed, or its library numbers the GPUs differently")};
}

const char* class_of(Code code) {
  switch (code) {
    case Code::kInvalidArgument: return "InvalidArgumentError";
    case Code::kConfiguration: return "ConfigurationError";
    case Code::kAuthentication: return "AuthenticationError";
    case Code::kMismatch: return "MismatchError";
    case Code::kTimeout: return "TimeoutError";
    case Code::kPeerLost: return "PeerLostError";
    case Code::kShutdown: return "ShutdownError";
    case Code::kDevice: return "DeviceError";
    default: return "HerringError";
  }
}

void raise(const Status& status) {
  nb::object type = nb::module_::import_("herring.errors").attr(class_of(status.code()));
  std::string message = status.message();
  if (status.code() == Code::kTimeout || status.code() == Code::kPeerLost) {
    const std::string place = record_place();
    if (!place.empty()) message += concat("; what all ranks did last is in ", place);
  }
  PyErr_SetString(type.ptr(), message.c_str());
  throw nb::python_error();
}

ArrayView::ArrayView(nb::handle object, bool writable, const std::string& before, bool anywhere) {
  try {
    if (PyObject_CheckBuffer(object.ptr()) && take_buffer(object)) {
      from_buffer(object, writable);
    } else if (nb::hasattr(object, "__dlpack__")) {
      from_dlpack(object, anywhere);
    } else {
      invalid("expected an array (the buffer protocol or __dlpack__), got " + class_name(object));
    }
  } catch (const InvalidArray& wrong) {
    raise({Code::kInvalidArgument, before + wrong.text});
  }
}

ArrayView::~ArrayView() {
  if (has_buffer_) PyBuffer_Release(&buffer_);
}

// Returns whether the array gives its buffer. CuPy's arrays have the buffer protocol, but refuse
// it for memory of a GPU, so an array that refuses may offer DLPack.
bool ArrayView::take_buffer(nb::handle object) {
  has_buffer_ = PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_RECORDS_RO) == 0;
  if (has_buffer_) return true;
  PyErr_Clear();
  if (!nb::hasattr(object, "__dlpack__")) invalid_dtype(object, "of this " + class_name(object));
  return false;
}

void ArrayView::from_buffer(nb::handle object, bool writable) {
  const auto fail = [&](const std::string& text) {
    PyBuffer_Release(&buffer_);
    has_buffer_ = false;
    invalid(text);
  };
  if (!dtype_of_format(buffer_.format, buffer_.itemsize, &array_.dtype)) {
    const std::string format = concat("with the buffer format '", buffer_.format, "'");
    PyBuffer_Release(&buffer_);
    has_buffer_ = false;
    invalid_dtype(object, format);
  }
  if (!PyBuffer_IsContiguous(&buffer_, 'C')) {
    fail("the array is not contiguous (C order); pass numpy.ascontiguousarray(array)");
  }
  if (writable && buffer_.readonly) {
    fail("the array is read-only, but results are written in place");
  }
  data_ = static_cast<char*>(buffer_.buf);
  for (int i = 0; i < buffer_.ndim; ++i) array_.shape.push_back(buffer_.shape[i]);
}

void ArrayView::from_dlpack(nb::handle object, bool anywhere) {
  nb::tuple device = nb::cast<nb::tuple>(object.attr("__dlpack_device__")());
  const int kind = nb::cast<int>(device[0]), index = nb::cast<int>(device[1]);
  nb::object exported = nb::borrow(object);
  const bool on_gpu = kind == nb::device::cuda::value || kind == nb::device::cuda_managed::value;
  // Torch and others name memory of the host that a GPU's driver has pinned after that GPU.
  const bool on_host = kind == nb::device::cpu::value || kind == nb::device::cuda_host::value ||
                       kind == nb::device::rocm_host::value;
  if (on_gpu && anywhere) {
    auto copier = without_gil([index] { return device::shared_copier(index); });
    if (!copier.ok()) raise(copier.status());
    copier_ = *copier;
    // Uses the stream that the array's library names. Otherwise uses the copier's own stream, and
    // the library makes that stream wait.
    const nb::object known =
        nb::module_::import_("herring.arrays.devices").attr("stream_of")(object);
    stream_ = known.is_none() ? copier_->out_stream() : nb::cast<device::Stream>(known);
    constexpr int kNoWait = -1;
    exported = known.is_none() ? object.attr("__dlpack__")(nb::arg("stream") = stream_)
                               : object.attr("__dlpack__")(nb::arg("stream") = kNoWait);
  } else if (!on_host) {
    invalid(concat(class_name(object), " lies on ",
                   on_gpu ? concat("GPU ", index) : concat("device type ", kind),
                   ", not in host memory; copy it there first"));
  }
  nb::ndarray<nb::ro> array;
  if (!nb::try_cast(exported, array)) {
    raise_own_error(exported);
    invalid_dtype(object, concat("of this ", class_name(object), ", or its layout,"));
  }
  if (!dtype_of_dlpack(array.dtype(), &array_.dtype)) {
    invalid_dtype(object, concat("with DLPack's code ", int{array.dtype().code}, " and ",
                                 int{array.dtype().bits}, " bits"));
  }
  int64_t expected = 1;
  bool contiguous = true;
  for (size_t i = array.ndim(); i-- > 0;) {
    contiguous &= array.shape(i) <= 1 || array.stride(i) == expected;
    expected *= static_cast<int64_t>(array.shape(i));
  }
  if (!contiguous && array.size() > 0) {
    invalid("the array is not contiguous (C order); call .contiguous() first");
  }
  for (size_t i = 0; i < array.ndim(); ++i) array_.shape.push_back(array.shape(i));
  data_ = static_cast<char*>(const_cast<void*>(array.data()));
  if (copier_ && array_.bytes() > 0) {
    const Status there = check_memory_of(index, data_, array_.bytes());
    if (there.code() == Code::kInvalidArgument) invalid(there.message());
    check(there);
  }
  owner_ = nb::cast(array, nb::rv_policy::reference);
  if (copier_) owner_ = nb::make_tuple(owner_, object);  // the export may depend on `object`
}

void check_not_capturing(const engine::Future& future, device::Copier* copier,
                         const std::vector<device::Stream>& streams) {
  if (!future.loop().here()) return;  // a forked child must not call the driver
  for (const device::Stream stream : streams) {
    const Status state = copier->device().check_not_capturing(stream);
    if (state.code() == Code::kInvalidArgument) raise(state);
    // The wait reports other errors, with the operation's own reason if it has failed.
  }
}

void note_caller() {
  const unsigned long id = PyThread_get_thread_native_id();
  last_caller.store(id, std::memory_order_relaxed);
  thread_local unsigned long known = 0;  // its id; another one in a forked child
  if (std::exchange(known, id) != id) WaitingThreads::here().called(id);
}

void wait(engine::Future& future, double seconds, const std::string& what,
          const std::function<Status()>& check_device) {
  if (!future.done() && !future.loop().here()) {
    raise({Code::kShutdown, concat(what, " was started before this process was forked, and "
                                   "completes only in the parent")});
  }
  note_caller();
  const Nanos start = monotonic_now();
  const Nanos deadline = seconds > 0 ? start + from_seconds(seconds) : 0;
  // A wait with a limit of its own ends by itself.
  std::optional<WaitingThread> waiting;
  if (deadline == 0 && !future.done()) waiting.emplace(&future);
  for (;;) {
    bool done = false;
    {
      GilReleased release;
      Nanos slice = 100 * kMillisecond;
      if (deadline != 0) slice = std::min(slice, std::max<Nanos>(deadline - monotonic_now(), 0));
      done = future.wait_for(slice);
      if (!done && check_device) static_cast<void>(check_device());
    }
    if (done) return check(future.status());
    const bool raised = waiting ? waiting->outside([] { return PyErr_CheckSignals() != 0; })
                                : PyErr_CheckSignals() != 0;
    if (raised) throw nb::python_error();
    if (deadline != 0 && monotonic_now() >= deadline) {
      raise({Code::kTimeout, concat(what, " is not complete after ", seconds,
                                    " s; it goes on in the background; call wait() again")});
    }
  }
}

}  // namespace herring::bindings
