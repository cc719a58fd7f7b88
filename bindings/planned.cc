// Planned: rounds over the fusion buffers of a plan.
#include "worker/planned.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "worker/job.h"

namespace herring::bindings {
namespace {

using worker::Planned;

std::unique_ptr<Planned> make(worker::Job& job,
                              const std::vector<std::pair<uint64_t, std::string>>& gradients,
                              const std::string& name, const std::string& op,
                              const std::string& wire_dtype, size_t buffer_bytes) {
  std::vector<plan::Gradient> list;
  for (const auto& [elements, dtype] : gradients) {
    list.push_back({elements, take(parse_dtype(dtype))});
  }
  worker::PlannedOptions options;
  options.name = name;
  options.op = take(parse_reduce_op(op));
  options.narrow = !wire_dtype.empty();
  if (options.narrow) options.wire = take(parse_dtype(wire_dtype));
  options.buffer_bytes = buffer_bytes;
  return take(Planned::create(job.engine(), list, std::move(options)));
}

using Place = std::tuple<uint32_t, size_t, size_t>;

}  // namespace

void register_planned(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<Planned>(module, "Planned")
      .def_static("create", &make, "job"_a, "gradients"_a, "name"_a, "op"_a, "wire_dtype"_a,
                  "buffer_bytes"_a, nb::keep_alive<0, 1>())
      .def("begin", [](Planned& p, bool active) { check(p.begin(active)); }, "active"_a = true)
      .def("ready", [](Planned& p, size_t index) { check(p.ready(index)); }, "index"_a)
      .def("ready_all", [](Planned& p, const std::vector<size_t>& indices) {
        for (const size_t index : indices) check(p.ready(index));
      }, "indices"_a)
      .def("wait", [](Planned& p, double seconds) {
        wait(*take(p.waiting()), seconds, "the round");
      }, "seconds"_a = 0.0)
      .def("arena", [](nb::object self, size_t i) {
        Planned& p = nb::cast<Planned&>(self);
        if (i >= p.plan().arenas.size()) throw nb::index_error("no such arena");
        return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(
            reinterpret_cast<uint8_t*>(p.arena(i)), {p.plan().arenas[i].bytes}, self);
      }, "index"_a)
      .def_prop_ro("arenas", [](const Planned& p) {
        std::vector<std::pair<std::string, size_t>> all;
        for (const auto& arena : p.plan().arenas) {
          all.emplace_back(name_of(arena.dtype), arena.bytes);
        }
        return all;
      })
      .def_prop_ro("placements", [](const Planned& p) {
        std::vector<Place> all;
        for (const auto& one : p.plan().placements) {
          all.emplace_back(one.arena, one.range.offset, one.range.bytes);
        }
        return all;
      })
      .def_prop_ro("buffers", [](const Planned& p) {
        std::vector<Place> all;
        for (const auto& one : p.plan().buffers) {
          all.emplace_back(one.arena, one.range.offset, one.range.bytes);
        }
        return all;
      })
      .def_prop_ro("signature", &Planned::signature)
      .def_prop_ro("contributors", &Planned::contributors);
}

}  // namespace herring::bindings
