// Group: ranks of a job that do collectives together.
#include "engine/group.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"

namespace herring::bindings {

std::shared_ptr<engine::Group> group_of(nb::handle group) {
  return group.is_none() ? nullptr : nb::cast<std::shared_ptr<engine::Group>>(group);
}

void register_groups(nb::module_& module) {
  using engine::Group;
  nb::class_<Group>(module, "Group")
      .def_prop_ro("number", &Group::id)
      .def_prop_ro("ranks", [](const Group& group) { return group.members().ranks(); })
      .def_prop_ro("name", [](const Group& group) { return group.members().name(); })
      .def_prop_ro("rank", &Group::index)
      .def_prop_ro("size", &Group::size)
      .def_prop_ro("nodes", [](const Group& group) { return group.members().nodes(); })
      .def("failure", [](const Group& group) { return group.failure().message(); });
}

}  // namespace herring::bindings
