#include <nanobind/nanobind.h>

#include "module.h"

NB_MODULE(_simulate, module) {
  module.doc() = "Averaging in virtual time. Private: use herring_lab.simulate instead.";
  herring::bindings::register_simulate(module);
  herring::bindings::register_simulate_job(module);
}
