#include <exception>
#include <new>
#include <system_error>

#include "bindings.h"

namespace {

namespace nb = nanobind;

// What has run out at the API's edge. Everything that Herring raises is a HerringError.
void translate(const std::exception_ptr& thrown, void*) {
  const auto set = [](const std::exception& error) {
    const herring::Status status = herring::status_of(error);
    const char* const name = herring::bindings::class_of(status.code());
    nb::object type = nb::module_::import_("herring.errors").attr(name);
    PyErr_SetString(type.ptr(), status.message().c_str());
  };
  try {
    std::rethrow_exception(thrown);
  } catch (const std::bad_alloc& error) {
    set(error);
  } catch (const std::system_error& error) {
    set(error);
  }
}

}  // namespace

NB_MODULE(_core, module) {
  module.doc() = "Herring's core. Use the herring package; this module is its private half.";
  // Handles may outlive the interpreter's orderly end (a job shut down by atexit).
  nanobind::set_leak_warnings(false);
  nb::register_exception_translator(translate);
  herring::bindings::register_devices(module);
  herring::bindings::register_groups(module);
  herring::bindings::register_jax(module);
  herring::bindings::register_job(module);
  herring::bindings::register_partial(module);
  herring::bindings::register_plan(module);
  herring::bindings::register_planned(module);
  herring::bindings::register_tools(module);
}
