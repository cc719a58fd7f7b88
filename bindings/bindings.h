// What the files of this room share: errors across the edge, arrays, waiting with the GIL released.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/interrupt.h"
#include "base/status.h"
#include "device/copiers.h"
#include "gil.h"
#include "wire/array.h"
#include "worker/future.h"
#include "worker/group.h"

namespace herring::bindings {

namespace nb = nanobind;

// The name of the class below herring.errors.HerringError that belongs to the code.
const char* class_of(Code code);
// Raises it.
[[noreturn]] void raise(const Status& status);
inline void check(const Status& status) {
  if (!status.ok()) raise(status);
}
template <typename T>
T take(Result<T> result) {
  if (!result.ok()) raise(result.status());
  return std::move(*result);
}

// A contiguous array that Python owns, seen through the buffer protocol or DLPack.
class ArrayView {
 public:
  // InvalidArgumentError names what is wrong: not an array, not contiguous, read-only where it must
  // be written, on a device, of a dtype that is not supported. `before`: what it begins with.
  ArrayView(nb::handle object, bool writable, const std::string& before = {})
      : ArrayView(object, writable, before, false) {}
  // Likewise, but one on a GPU is taken too: it has a copier then, and a stream in which what its
  // library has queued for the array comes before what is queued there from now on.
  static std::shared_ptr<ArrayView> anywhere(nb::handle object, bool writable,
                                             const std::string& before = {}) {
    return std::shared_ptr<ArrayView>(new ArrayView(object, writable, before, true));
  }
  ~ArrayView();
  ArrayView(const ArrayView&) = delete;
  ArrayView& operator=(const ArrayView&) = delete;

  char* data() const { return data_; }  // of one on a GPU, where it lies there
  const std::shared_ptr<device::Copier>& copier() const { return copier_; }
  device::Stream stream() const { return stream_; }
  DType dtype() const { return array_.dtype; }
  const std::vector<uint64_t>& shape() const { return array_.shape; }
  const wire::Array& array() const { return array_; }

 private:
  ArrayView(nb::handle object, bool writable, const std::string& before, bool anywhere);
  void from_buffer(nb::handle object, bool writable);
  void from_dlpack(nb::handle object, bool anywhere);

  char* data_ = nullptr;
  wire::Array array_;
  Py_buffer buffer_{};
  bool has_buffer_ = false;
  nb::object owner_;
  std::shared_ptr<device::Copier> copier_;
  device::Stream stream_ = 0;
};

// Waits with the GIL released; Ctrl-C raises. `what` and `seconds` are for the error of a deadline
// (0: wait for ever). What it waits for may need a device: `check_device` notices one that is lost.
void wait(worker::Future& future, double seconds, const std::string& what,
          const std::function<Status()>& check_device = nullptr);
inline void wait(worker::Future& future, double seconds, const std::string& what,
                 device::Copier* copier) {
  wait(future, seconds, what, [copier] { return copier ? copier->check() : Status(); });
}

// The interpreter ends, and waits for what daemon threads have begun: they begin nothing more.
inline std::atomic<bool> process_ends{false};

// Calls `start` with the GIL released; Ctrl-C ends its waits, and raises. The end of the process
// ends them too.
template <typename Start>
auto without_gil(Start&& start) {
  bool raised = false;
  auto result = [&] {
    GilReleased release;
    Interruptible scope([&raised] {
      if (process_ends.load()) return true;
      GilTaken acquire;
      return raised = PyErr_CheckSignals() != 0;
    });
    return start();
  }();
  if (raised) throw nb::python_error();
  return result;
}

// The group that a call names; None: all ranks.
std::shared_ptr<worker::Group> group_of(nb::handle group);

void register_devices(nb::module_& module);
void register_groups(nb::module_& module);
void register_jax(nb::module_& module);
void register_job(nb::module_& module);
void register_partial(nb::module_& module);
void register_plan(nb::module_& module);
void register_planned(nb::module_& module);
void register_tools(nb::module_& module);

}  // namespace herring::bindings
