// Where the Python program is: herring/process/stacks.py answers on a thread of its own.
#include "base/program_stack.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include "bindings.h"
#include "waiting.h"

namespace herring::bindings {
namespace {

// Returns the native id of the thread that last called Herring, 0 if none has. Returns None when
// requests are closed.
nb::object next_stack_request() {
  bool asked = false;
  {
    GilReleased release;
    asked = wait_for_stack_request();
  }
  return asked ? nb::cast(last_caller.load(std::memory_order_relaxed)) : nb::none();
}

// Returns how often a wait for a result has begun or ended; the identifiers of the threads that
// wait now; and those that have ever begun or awaited work, each with its native id.
nb::tuple waiting_threads() {
  const WaitingThreads& all = WaitingThreads::here();
  nb::list waiting, callers;
  for (const unsigned long id : all.waiting()) waiting.append(id);
  for (const auto& [native, id] : all.callers()) callers.append(nb::make_tuple(id, native));
  return nb::make_tuple(all.changes(), waiting, callers);
}

// Returns text, cause, and the ages in seconds of the answer and of the open request, or None.
nb::tuple latest_stack() {
  const ProgramStack stack = latest_program_stack();
  const Nanos now = monotonic_now();
  const auto age = [now](Nanos since) {
    return since == 0 ? nb::none() : nb::cast(to_seconds(now - since));
  };
  return nb::make_tuple(stack.say(now), stack.cause, age(stack.taken), age(stack.asked));
}

}  // namespace

void register_program(nb::module_& module) {
  using namespace nb::literals;
  module.def("open_stack_requests", &open_stack_requests);
  module.def("wait_for_stack_request", &next_stack_request);
  module.def("answer_stack", &answer_stack_request, "text"_a, "cause"_a, "held"_a = 0);
  module.def("waiting_threads", &waiting_threads);
  module.def("close_stack_requests", &close_stack_requests);
  module.def("ask_stack", &ask_program_stack);
  module.def("latest_stack", &latest_stack);
}

}  // namespace herring::bindings
