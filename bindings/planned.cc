// Planned: rounds over the fusion buffers of a plan.
#include "rounds/planned.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "device/kept.h"
#include "job/job.h"
#include "rounds/device_rounds.h"

namespace herring::bindings {
namespace {

using rounds::DeviceCasts;
using rounds::DeviceRounds;
using rounds::Planned;

using Arenas = std::vector<std::shared_ptr<ArrayView>>;
using Memory = std::vector<std::shared_ptr<void>>;

// Keeps memory to which neighbours' devices may still write from being reused. Releases memory that
// was kept for long enough. Needs the GIL.
void keep_for_a_while(Memory memory) {
  static auto* const kept = new device::KeptForAWhile<Memory>;
  const Nanos now = monotonic_now();
  const std::vector<Memory> over = kept->take(now);  // freeing them may call this function
  if (!memory.empty()) kept->put(std::move(memory), now);
}

// The job outlives the plan and every view of its memory, which may outlive the plan.
struct PlanHandle {
  nb::object job;
  std::unique_ptr<Planned> on_host;      // either this or `rounds` is set
  std::unique_ptr<DeviceRounds> rounds;
  Arenas arenas;                         // on the device

  ~PlanHandle() {
    const bool shared = rounds && rounds->may_be_written();
    Memory memory(arenas.begin(), arenas.end());
    if (rounds && rounds->memory()) memory.push_back(rounds->memory());
    bool through = true;
    {
      GilReleased release;  // copies may still be on their way
      if (rounds) through = rounds->end();
      rounds.reset();
    }
    if (!through) device::keep_for_ever(memory);  // the GPU may still use it
    keep_for_a_while(shared && through ? std::move(memory) : Memory());
  }
  PlanHandle(nb::object job) : job(std::move(job)) {}
  PlanHandle(PlanHandle&&) = default;
  Planned& planned() const { return rounds ? rounds->planned() : *on_host; }
  // As it lies in the caller's memory.
  const plan::Plan& plan() const { return rounds ? rounds->plan() : on_host->plan(); }
  DeviceRounds& on_device() const {
    if (rounds) return *rounds;
    raise({Code::kInvalidArgument,
           "this plan is for gradients in host memory; create it with device="});
  }
};

PlanHandle make_plan(nb::object job_object,
                     const std::vector<std::pair<int64_t, std::string>>& gradients,
                     const std::string& name, const std::string& op, const std::string& wire_dtype,
                     size_t buffer_bytes, size_t note_bytes, uint32_t stream, nb::handle group,
                     std::optional<int> device, bool on_devices, bool casts, bool divide_by_all,
                     bool error_feedback) {
  job::Job& job = nb::cast<job::Job&>(job_object);
  rounds::PlannedOptions options;
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
  if (options.narrow) options.wire = take(parse_wire_dtype(wire_dtype));
  options.buffer_bytes = buffer_bytes;
  options.note_bytes = note_bytes;
  options.on_devices = on_devices;
  options.divide_by_all = divide_by_all;
  options.error_feedback = error_feedback;
  keep_for_a_while({});
  PlanHandle handle(job_object);
  if (!device) {
    handle.on_host = take(Planned::create(job.engine().rounds(), list, std::move(options)));
    return handle;
  }
  handle.rounds = take(without_gil([&]() -> Result<std::unique_ptr<DeviceRounds>> {
    HERRING_ASSIGN_OR_RETURN(auto& copier, device::own_copier(*device));
    std::shared_ptr<DeviceCasts> made;
    if (casts && DeviceCasts::apply_to(list, options.wire)) {
      HERRING_RETURN_IF_ERROR(DeviceCasts::create(*copier, options.wire).move_to(made));
    }
    return DeviceRounds::create(job.engine().rounds(), list, std::move(options), copier,
                                std::move(made));
  }));
  return handle;
}

nb::object arena(const PlanHandle& handle, size_t i) {
  const Planned& planned = handle.planned();
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

// Returns the residual of an arena as a new array.
nb::object residual(const PlanHandle& handle, size_t i) {
  if (i >= handle.planned().plan().arenas.size()) throw nb::index_error("no such arena");
  auto* values = new std::vector<float>(take(handle.planned().residual(i)));
  nb::capsule capsule(values, [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, float, nb::ndim<1>>(values->data(), {values->size()},
                                                             capsule));
}

using Values = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void set_residual(const PlanHandle& handle, size_t i, const Values& values) {
  const auto& arenas = handle.planned().plan().arenas;
  if (i >= arenas.size()) throw nb::index_error("no such arena");
  const size_t elements = arenas[i].bytes / size_of(arenas[i].dtype);
  if (values.size() != elements) {
    raise({Code::kInvalidArgument, concat("the residual of arena ", i, " has ", elements,
                                          " elements, not ", values.size())});
  }
  check(handle.planned().set_residual(i, {values.data(), values.data() + elements}));
}

// Returns (arena, offset, bytes) for each item.
template <typename T>
std::vector<std::tuple<uint32_t, size_t, size_t>> places_of(const std::vector<T>& list) {
  std::vector<std::tuple<uint32_t, size_t, size_t>> all;
  for (const T& one : list) all.emplace_back(one.arena, one.range.offset, one.range.bytes);
  return all;
}

void place(PlanHandle& handle, const nb::list& arenas) {
  Arenas views;
  std::vector<device::Address> addresses;
  const auto& expected = handle.on_device().plan().arenas;
  const device::Device& gpu = handle.on_device().copier()->device();
  const auto lies_there = [&gpu](const ArrayView& view) {
    return view.copier() && &view.copier()->device() == &gpu;
  };
  for (const nb::handle arena : arenas) {
    views.push_back(ArrayView::anywhere(arena, true, concat("arena ", views.size(), ": ")));
    const ArrayView& view = *views.back();
    const size_t i = views.size() - 1;
    const size_t bytes = i < expected.size() ? expected[i].bytes : 0;
    if (!lies_there(view) || view.array().bytes() != bytes) {
      raise({Code::kInvalidArgument,
             concat("arena ", i, " has ", counted(view.array().bytes(), "byte"), " ",
                    view.copier() ? concat("on GPU ", view.copier()->device().index())
                                  : "in host memory",
                    "; this plan needs ", bytes, " on GPU ", gpu.index())});
    }
    addresses.push_back(reinterpret_cast<device::Address>(view.data()));
  }
  check(handle.on_device().place(std::move(addresses)));
  handle.arenas = std::move(views);
}

// Calls a function that queues work on a device, with the GIL released.
template <typename Call>
void queue(Call&& call) {
  Status status;
  {
    GilReleased release;
    status = call();
  }
  check(status);
}

// Loads the kernels that cast on this GPU. Returns why that is not possible, or an empty text.
std::string load_casts(int device, const std::string& wire_dtype) {
  const DType wire = take(parse_wire_dtype(wire_dtype));
  if (is_packed(wire)) return concat("wire_dtype is ", name_of(wire));
  const auto casts = without_gil([&]() -> Result<std::shared_ptr<DeviceCasts>> {
    HERRING_ASSIGN_OR_RETURN(auto& copier, device::own_copier(device));
    return DeviceCasts::create(*copier, wire);
  });
  return casts.ok() ? std::string() : casts.status().message();
}

// Returns the names of the packed types that parse_wire_dtype() takes, among them the short ones.
nb::tuple packed_dtypes() {
  nb::list names;
  for (int number = kNumDTypes; number < kNumWireDTypes; ++number) {
    const std::string name = name_of(static_cast<DType>(number));
    names.append(name);
    if (name.starts_with("fp8_e4m3")) names.append("fp8" + name.substr(8));
  }
  return nb::tuple(names);
}

}  // namespace

void register_planned(nb::module_& module) {
  using namespace nb::literals;
  module.attr("PACKED_DTYPES") = packed_dtypes();
  module.def("next_stream", [](job::Job& job, nb::handle group) {
    const auto members = group_of(group);
    return (members ? members : job.engine().world())->next_stream();
  }, "job"_a, "group"_a = nb::none());
  module.def("load_casts", &load_casts, "device"_a, "wire_dtype"_a);
  nb::class_<PlanHandle>(module, "Planned")
      .def_static("create", &make_plan, "job"_a, "gradients"_a, "name"_a, "op"_a, "wire_dtype"_a,
                  "buffer_bytes"_a, "note_bytes"_a, "stream"_a, "group"_a = nb::none(),
                  "device"_a = nb::none(), "on_devices"_a = false, "casts"_a = false,
                  "divide_by_all"_a = false, "error_feedback"_a = true)
      .def("place", &place, "arenas"_a)
      .def("out_stream", [](PlanHandle& h) { return h.on_device().copier()->out_stream(); })
      .def("begin_on", [](PlanHandle& h, device::Stream stream, bool active) {
        note_caller();
        queue([&] { return h.on_device().begin(stream, active); });
      }, "stream"_a, "active"_a)
      .def("ready_on", [](PlanHandle& h, device::Stream stream,
                          const std::vector<size_t>& indices) {
        queue([&] { return h.on_device().ready(stream, indices); });
      }, "stream"_a, "indices"_a)
      .def("join", [](PlanHandle& h, device::Stream stream) {
        queue([&] { return h.on_device().join(stream); });
      }, "stream"_a)
      .def_prop_ro("node_stage", [](PlanHandle& h) {
        return h.rounds ? name_of(h.rounds->level()) : "host";
      })
      .def("await_back", [](PlanHandle& h, double seconds) {
        DeviceRounds& rounds = h.on_device();
        const auto back = take(without_gil([&] { return rounds.when_back(); }));
        wait(*back, seconds, "the copy of the averages to the GPU",
             [&rounds] { return rounds.check(); });
      }, "seconds"_a = 0.0)
      .def("begin", [](PlanHandle& h, bool active) {
        note_caller();
        check(h.planned().begin(active));
      }, "active"_a = true)
      .def("ready", [](PlanHandle& h, size_t index) { check(h.planned().ready(index)); }, "index"_a)
      .def("ready_all", [](PlanHandle& h, const std::vector<size_t>& indices) {
        for (const size_t index : indices) check(h.planned().ready(index));
      }, "indices"_a)
      .def("note", [](PlanHandle& h, nb::bytes note) {
        check(h.planned().note({note.c_str(), note.size()}));
      }, "note"_a)
      .def_prop_ro("notes", [](PlanHandle& h) {
        const std::string notes = take(h.planned().notes());
        return nb::bytes(notes.data(), notes.size());
      })
      .def("wait", [](PlanHandle& h, double seconds,
                      const std::vector<device::Stream>& streams) {
        if (!h.rounds) return wait(*take(h.on_host->waiting()), seconds, "the round");
        DeviceRounds& rounds = *h.rounds;
        const auto round = take(rounds.waiting());
        check_not_capturing(*round, rounds.copier().get(), streams);
        try {
          wait(*round, seconds, "the round", [&rounds] { return rounds.check(); });
        } catch (...) {
          {
            GilReleased release;
            rounds.poison(streams);
          }
          throw;
        }
      }, "seconds"_a = 0.0, "streams"_a = std::vector<device::Stream>())
      .def("arena", &arena, "index"_a)
      .def_prop_ro("local_size", [](const PlanHandle& h) {
        return h.planned().options().group->local_size();
      })
      .def("residual", &residual, "index"_a)
      .def("set_residual", &set_residual, "index"_a, "values"_a)
      .def("take_back", [](const PlanHandle& h) { check(h.planned().take_back()); })
      .def_prop_ro("arenas", [](const PlanHandle& h) {
        std::vector<std::pair<std::string, size_t>> all;
        for (const auto& arena : h.plan().arenas) {
          all.emplace_back(name_of(arena.dtype), arena.bytes);
        }
        return all;
      })
      .def_prop_ro("placements", [](const PlanHandle& h) {
        return places_of(h.plan().placements);
      })
      .def_prop_ro("buffers", [](const PlanHandle& h) {
        return places_of(h.plan().buffers);
      })
      .def_prop_ro("signature", [](const PlanHandle& h) { return h.planned().signature(); })
      .def_prop_ro("contributors", [](const PlanHandle& h) { return h.planned().contributors(); });
}

}  // namespace herring::bindings
