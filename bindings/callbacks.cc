#include "callbacks.h"

#include <map>

#include "base/clock.h"
#include "base/log.h"

namespace herring::bindings {
namespace {

// Callbacks by the loop of their job's engine. Guarded by the GIL; never destroyed.
std::map<const transport::EventLoop*, std::shared_ptr<Callbacks>>& all_callbacks() {
  static auto* const all = new std::map<const transport::EventLoop*, std::shared_ptr<Callbacks>>;
  return *all;
}

}  // namespace

std::shared_ptr<Callbacks> callbacks_of(const engine::Future& future) {
  auto& callbacks = all_callbacks()[&future.loop()];
  if (!callbacks) callbacks = std::make_shared<Callbacks>();
  return callbacks;
}

bool call_when_done(engine::Future& future, const std::string& what, nb::object callback) {
  if (future.done()) return false;
  if (!future.loop().here()) {
    raise({Code::kShutdown, concat(what, " was started before this process was forked, and "
                                   "completes only in the parent")});
  }
  PyObject* const held = callback.inc_ref().ptr();
  const bool waits =
      future.then_unless_done([to = callbacks_of(future), held] { to->put(held); });
  if (!waits) callback.dec_ref();
  return waits;
}

void end_callbacks(const transport::EventLoop* loop) {
  constexpr Nanos kPatience = 10 * kSecond, kSlice = 100 * kMillisecond;
  const auto found = all_callbacks().find(loop);
  if (found == all_callbacks().end()) return;
  const std::shared_ptr<Callbacks> ending = std::move(found->second);
  all_callbacks().erase(found);
  ending->close();
  const nb::object thread = ending->thread;
  if (thread.is_none() || thread.is(nb::module_::import_("threading").attr("current_thread")())) {
    return;
  }
  // Waits for the very end of the thread: if it were still in here when the interpreter ends, it
  // would end the process.
  const Nanos deadline = monotonic_now() + kPatience;
  for (;;) {
    thread.attr("join")(to_seconds(kSlice));
    if (!nb::cast<bool>(thread.attr("is_alive")())) return;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (monotonic_now() < deadline) continue;
    return log(LogLevel::kWarning, "a callback of a handle still runs ", in_seconds(kPatience),
               " after shutdown(), which no longer waits for it");
  }
}

}  // namespace herring::bindings
