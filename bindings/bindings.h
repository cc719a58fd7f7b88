// Shared by the files of this folder: errors towards Python, arrays, and waiting without the GIL.
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
#include "engine/future.h"
#include "engine/group.h"

namespace herring::job {
class Job;
}  // namespace herring::job

namespace herring::bindings {

namespace nb = nanobind;

// Returns the name of the subclass of herring.errors.HerringError that belongs to the code.
const char* class_of(Code code);
// Raises the status as a Python exception.
[[noreturn]] void raise(const Status& status);
inline void check(const Status& status) {
  if (!status.ok()) raise(status);
}
template <typename T>
T take(Result<T> result) {
  if (!result.ok()) raise(result.status());
  return std::move(*result);
}

// Returns a dictionary with the given names: dict_of("sent"_a = 3, "received"_a = 4).
template <typename... Entries>
nb::dict dict_of(const Entries&... entries) {
  nb::dict result;
  ((result[entries.name_] = entries.value), ...);
  return result;
}

// A contiguous array owned by Python, accessed through the buffer protocol or DLPack.
class ArrayView {
 public:
  // Raises InvalidArgumentError if the object is not a contiguous array in host memory with a
  // supported dtype, or is read-only although it must be written. `before`: start of the message.
  ArrayView(nb::handle object, bool writable, const std::string& before = {})
      : ArrayView(object, writable, before, false) {}
  // Also accepts an array on a GPU, which then has a copier and a stream. Work that its library has
  // queued for the array precedes everything queued in that stream from now on.
  static std::shared_ptr<ArrayView> anywhere(nb::handle object, bool writable,
                                             const std::string& before = {}) {
    return std::shared_ptr<ArrayView>(new ArrayView(object, writable, before, true));
  }
  ~ArrayView();
  ArrayView(const ArrayView&) = delete;
  ArrayView& operator=(const ArrayView&) = delete;

  char* data() const { return data_; }  // for an array on a GPU, its address there
  const std::shared_ptr<device::Copier>& copier() const { return copier_; }
  device::Stream stream() const { return stream_; }
  DType dtype() const { return array_.dtype; }
  const std::vector<uint64_t>& shape() const { return array_.shape; }
  const wire::Array& array() const { return array_; }

 private:
  ArrayView(nb::handle object, bool writable, const std::string& before, bool anywhere);
  bool take_buffer(nb::handle object);
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

// The thread that last began or awaited work, as threading.get_native_id() names it; 0: none has.
// Identifiers of get_ident() pass on to new threads at once.
inline std::atomic<unsigned long> last_caller{0};
void note_caller();

// Waits with the GIL released; Ctrl-C raises. `what` and `seconds` (0: wait forever) are used in
// the timeout error. If the future needs a device, `check_device` notices that the device is lost.
void wait(engine::Future& future, double seconds, const std::string& what,
          const std::function<Status()>& check_device = nullptr);

// Returns kInvalidArgument unless an array lies on the device. A copy from memory elsewhere would
// be an error that leaves the device unusable.
Status check_memory_of(int device, const char* data, size_t bytes);

// Raises InvalidArgumentError if a stream of the copier's device is being captured for a graph,
// before a wait for the future, because nothing inside a capture may wait on the host.
void check_not_capturing(const engine::Future& future, device::Copier* copier,
                         const std::vector<device::Stream>& streams);

// Set when the interpreter ends and waits for what daemon threads have begun; they must begin
// nothing more.
inline std::atomic<bool> process_ends{false};

// Set while a start shall end early, because it can no longer succeed.
inline std::atomic<bool> start_ends{false};

// Calls `start` with the GIL released. Ctrl-C ends its waits and raises; the end of the process
// and `start_ends` end them, too.
template <typename Start>
auto without_gil(Start&& start) {
  bool raised = false;
  auto result = [&] {
    GilReleased release;
    Interruptible scope([&raised] {
      if (process_ends.load() || start_ends.load()) return true;
      GilTaken acquire;
      return raised = PyErr_CheckSignals() != 0;
    });
    return start();
  }();
  if (raised) throw nb::python_error();
  return result;
}

// Returns the group of a call; None means all ranks (null).
std::shared_ptr<engine::Group> group_of(nb::handle group);

void register_devices(nb::module_& module);
void register_groups(nb::module_& module);
void register_jax(nb::module_& module);
void register_job(nb::module_& module);
void register_log(nb::module_& module);
void register_partial(nb::module_& module);
void register_plan(nb::module_& module);
void register_planned(nb::module_& module);
void register_program(nb::module_& module);
void register_tools(nb::module_& module);
// Adds the methods of observed.cc to the class of jobs.
void bind_observed(nb::class_<job::Job>& bound);

}  // namespace herring::bindings
