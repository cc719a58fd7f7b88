#include <nanobind/nanobind.h>

#include "module.h"

NB_MODULE(_simulate, module) {
  module.doc() = "Averaging in virtual time. Use herring_lab.simulate; this is its private half.";
  herring::bindings::register_simulate(module);
  herring::bindings::register_simulate_job(module);
}
