// Registers the parts of the extension module herring_lab._simulate.
#pragma once

#include <nanobind/nanobind.h>

namespace herring::bindings {

void register_simulate(nanobind::module_& module);
void register_simulate_job(nanobind::module_& module);

}  // namespace herring::bindings
