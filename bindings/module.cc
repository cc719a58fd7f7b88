#include <exception>
#include <new>
#include <system_error>

#include "bindings.h"

namespace {

namespace nb = nanobind;

// Translates exhausted resources at the edge of the API. Everything that Herring raises is a
// HerringError.
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
  module.doc() = "Herring's core. This module is private; use the herring package.";
  // Handles may outlive the orderly end of the interpreter, if a job is shut down by atexit.
  nanobind::set_leak_warnings(false);
  nb::register_exception_translator(translate);
  herring::bindings::register_devices(module);
  herring::bindings::register_groups(module);
  herring::bindings::register_jax(module);
  herring::bindings::register_job(module);
  herring::bindings::register_log(module);
  herring::bindings::register_partial(module);
  herring::bindings::register_plan(module);
  herring::bindings::register_planned(module);
  herring::bindings::register_program(module);
  herring::bindings::register_tools(module);
}
