// Planned: rounds over the fusion buffers of a plan.
#include "worker/planned.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "job/job.h"

namespace herring::bindings {
namespace {

using worker::Planned;

// The job outlives the plan, and every view of its memory, which may outlive the plan.
struct PlanHandle {
  nb::object job;
  std::unique_ptr<Planned> planned;
};

PlanHandle make_plan(nb::object job_object,
                     const std::vector<std::pair<int64_t, std::string>>& gradients,
                     const std::string& name, const std::string& op, const std::string& wire_dtype,
                     size_t buffer_bytes, size_t note_bytes, uint32_t stream, nb::handle group) {
  job::Job& job = nb::cast<job::Job&>(job_object);
  worker::PlannedOptions options;
  options.group = group_of(group);
  options.stream = stream;
  std::vector<plan::Gradient> list;
  for (const auto& [elements, dtype] : gradients) {
    if (elements < 0) {
      raise({Code::kInvalidArgument,
             concat("'", name, "': a gradient has ", elements, " elements")});
    }
    list.push_back({static_cast<uint64_t>(elements), take(parse_dtype(dtype))});
  }
  options.name = name;
  options.op = take(parse_reduce_op(op));
  options.narrow = !wire_dtype.empty();
  if (options.narrow) options.wire = take(parse_dtype(wire_dtype));
  options.buffer_bytes = buffer_bytes;
  options.note_bytes = note_bytes;
  return {job_object, take(Planned::create(job.engine(), list, std::move(options)))};
}

nb::object arena(const PlanHandle& handle, size_t i) {
  const Planned& planned = *handle.planned;
  if (i >= planned.plan().arenas.size()) throw nb::index_error("no such arena");
  struct Owner {
    nb::object job;
    std::shared_ptr<char> memory;
  };
  auto* owner = new Owner{handle.job, planned.arena(i)};
  nb::capsule capsule(owner, [](void* p) noexcept {
    GilTaken gil;
    delete static_cast<Owner*>(p);
  });
  return nb::cast(nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(
      reinterpret_cast<uint8_t*>(owner->memory.get()), {planned.plan().arenas[i].bytes}, capsule));
}

// (arena, offset, bytes) of each.
template <typename T>
std::vector<std::tuple<uint32_t, size_t, size_t>> places_of(const std::vector<T>& list) {
  std::vector<std::tuple<uint32_t, size_t, size_t>> all;
  for (const T& one : list) all.emplace_back(one.arena, one.range.offset, one.range.bytes);
  return all;
}

}  // namespace

void register_planned(nb::module_& module) {
  using namespace nb::literals;
  module.def("next_stream", [](job::Job& job, nb::handle group) {
    const auto members = group_of(group);
    return (members ? members : job.engine().world())->next_stream();
  }, "job"_a, "group"_a = nb::none());
  nb::class_<PlanHandle>(module, "Planned")
      .def_static("create", &make_plan, "job"_a, "gradients"_a, "name"_a, "op"_a, "wire_dtype"_a,
                  "buffer_bytes"_a, "note_bytes"_a, "stream"_a, "group"_a = nb::none())
      .def("begin", [](PlanHandle& h, bool active) { check(h.planned->begin(active)); },
           "active"_a = true)
      .def("ready", [](PlanHandle& h, size_t index) { check(h.planned->ready(index)); }, "index"_a)
      .def("ready_all", [](PlanHandle& h, const std::vector<size_t>& indices) {
        for (const size_t index : indices) check(h.planned->ready(index));
      }, "indices"_a)
      .def("note", [](PlanHandle& h, nb::bytes note) {
        check(h.planned->note({note.c_str(), note.size()}));
      }, "note"_a)
      .def_prop_ro("notes", [](PlanHandle& h) {
        const std::string notes = take(h.planned->notes());
        return nb::bytes(notes.data(), notes.size());
      })
      .def("wait", [](PlanHandle& h, double seconds) {
        wait(*take(h.planned->waiting()), seconds, "the round");
      }, "seconds"_a = 0.0)
      .def("arena", &arena, "index"_a)
      .def_prop_ro("arenas", [](const PlanHandle& h) {
        std::vector<std::pair<std::string, size_t>> all;
        for (const auto& arena : h.planned->plan().arenas) {
          all.emplace_back(name_of(arena.dtype), arena.bytes);
        }
        return all;
      })
      .def_prop_ro("placements", [](const PlanHandle& h) {
        return places_of(h.planned->plan().placements);
      })
      .def_prop_ro("buffers", [](const PlanHandle& h) {
        return places_of(h.planned->plan().buffers);
      })
      .def_prop_ro("signature", [](const PlanHandle& h) { return h.planned->signature(); })
      .def_prop_ro("contributors", [](const PlanHandle& h) { return h.planned->contributors(); });
}

}  // namespace herring::bindings
