#include "bindings.h"

NB_MODULE(_core, module) {
  module.doc() = "Herring's core. Use the herring package; this module is its private half.";
  // Handles may outlive the interpreter's orderly end (a job shut down by atexit).
  nanobind::set_leak_warnings(false);
  herring::bindings::register_groups(module);
  herring::bindings::register_jax(module);
  herring::bindings::register_job(module);
  herring::bindings::register_partial(module);
  herring::bindings::register_plan(module);
  herring::bindings::register_planned(module);
  herring::bindings::register_tools(module);
}
