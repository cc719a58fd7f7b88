// Job and Operation: the life of a worker, and its named operations.
#include "job/job.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iterator>
#include <tuple>

#include "bindings.h"
#include "callbacks.h"
#include "collective/schedule.h"

namespace herring::bindings {
namespace {

using job::Job;
using calls::Operation;

// An operation, and the arrays that must stay alive while it is in flight.
struct InFlight {
  std::shared_ptr<Operation> operation;
  std::vector<std::shared_ptr<ArrayView>> views;
};

// Operations whose handles were destroyed before the operations completed. The engine may still
// write to their arrays, or a device may read them. Guarded by the GIL. Never destroyed, because
// Python ends before static objects are destroyed.
std::vector<InFlight>& abandoned() {
  static auto* const list = new std::vector<InFlight>;
  return *list;
}

// Releases arrays that nobody accesses any more.
void release_abandoned() {
  auto& list = abandoned();
  const auto complete = std::partition(list.begin(), list.end(), [](const InFlight& one) {
    return !one.operation->at_rest();
  });
  // Releasing an array may run any code, including this function.
  std::vector<InFlight> released(std::make_move_iterator(complete),
                                       std::make_move_iterator(list.end()));
  list.erase(complete, list.end());
}

struct Handle : InFlight {
  std::string what;

  ~Handle() {
    if (operation && !operation->at_rest()) {
      abandoned().push_back({std::move(operation), std::move(views)});
    }
    release_abandoned();
  }
};

wire::Collective parse_kind(const std::string& name) {
  if (auto what = wire::collective_of(name)) return std::move(*what);
  raise({Code::kInvalidArgument, "no collective is called '" + name + "'"});
}

void check_name(const std::string& name) {
  if (!name.empty() && name.size() <= 512) return;
  raise({Code::kInvalidArgument, concat("the name of an operation has ", name.size(),
                                        " bytes in UTF-8; 1 to 512 are allowed")});
}

std::unique_ptr<Job> start_job(int rank, int size, int local_rank, int local_size, int servers,
                               const std::string& rendezvous, int rendezvous_fd,
                               const std::string& host_id, nb::bytes secret,
                               const std::map<std::string, std::string>& settings) {
  job::JobOptions options;
  options.rank = rank;
  options.size = size;
  options.local_rank = local_rank;
  options.local_size = local_size;
  options.dedicated_servers = servers;
  options.rendezvous = rendezvous;
  options.rendezvous_fd = rendezvous_fd;
  options.host_id = host_id;
  options.secret = std::string(secret.c_str(), secret.size());
  auto loaded = Settings::load(settings);
  if (!loaded.ok()) {
    // The other ranks get the error, too. Only the settings needed to find them are used.
    std::map<std::string, std::string> known;
    if (const char* name = std::getenv("HERRING_JOB"); name != nullptr && *name != '\0') {
      known["job"] = name;
    }
    options.settings = take(Settings::load(known, [](const char*) -> const char* {
      return nullptr;
    }));
    without_gil([&] {
      Job::decline(std::move(options), loaded.status());
      return true;
    });
    raise(loaded.status());
  }
  options.settings = std::move(*loaded);
  return take(without_gil([&] { return Job::start(std::move(options)); }));
}

// The options of a call, by name.
class Fields {
 public:
  Fields(const nb::kwargs& given, const std::string& kind, uint32_t ranks)
      : given_(given), kind_(kind), ranks_(ranks) {}

  bool device_sums = false;  // see calls::Call

  bool has(const char* name) const { return given_.contains(name); }
  template <typename T>
  T get(const char* name, T otherwise) {
    if (!has(name)) return otherwise;
    ++used_;
    return nb::cast<T>(given_[name]);
  }
  uint32_t rank(const char* name) {
    const auto given = get<int64_t>(name, 0);
    if (given >= 0 && given < ranks_) return static_cast<uint32_t>(given);
    raise({Code::kInvalidArgument, concat(kind_, ": ", name, " is ", given, "; ranks are 0 to ",
                                          ranks_ - 1)});
  }
  Reduction reduction() {
    return {take(parse_reduce_op(get<std::string>("op", "sum"))), get("prescale", 1.0),
            get("postscale", 1.0), get<uint32_t>("divisor", 0)};
  }
  void check_all_used() const {
    if (used_ == given_.size()) return;
    raise({Code::kInvalidArgument, concat(kind_, " was given an option that it does not have: ",
                                          nb::str(given_.keys()).c_str())});
  }

 private:
  const nb::kwargs& given_;
  const std::string& kind_;
  const int64_t ranks_;
  size_t used_ = 0;
};

void fill(wire::AllReduce& what, Fields& fields) {
  what.reduction = fields.reduction();
  const auto algorithm = fields.get<std::string>("algorithm", "herring");
  const collective::Choice choice = take(collective::parse_algorithm(algorithm));
  what.algorithm = choice.algorithm;
  fields.device_sums = choice.device_sums;
}
void fill(wire::Broadcast& what, Fields& fields) { what.root = fields.rank("root"); }
void fill(wire::AllGather&, Fields&) {}
void fill(wire::ReduceScatter& what, Fields& fields) {
  what.reduction = fields.reduction();
  what.rows = fields.get("splits", std::vector<uint64_t>());
}
void fill(wire::AllToAll& what, Fields& fields) {
  what.rows = fields.get("splits", std::vector<uint64_t>());
}
void fill(wire::Barrier&, Fields&) {}
void fill(wire::FormGroup& what, Fields& fields) {
  what.ranks = fields.get("ranks", std::vector<uint32_t>());
}
void fill(wire::Send& what, Fields& fields) {
  what.to = fields.rank("to");
  what.tag = fields.get<uint64_t>("tag", 0);
}
void fill(wire::Receive& what, Fields& fields) {
  if (fields.has("source")) what.from = fields.rank("source");
  if (fields.has("tag")) what.tag = fields.get<uint64_t>("tag", 0);
}
void fill(wire::Join&, Fields&) {}

std::string place_of(const ArrayView& view) {
  return view.copier() ? concat("on GPU ", view.copier()->device().index()) : "in host memory";
}

// `arrays`: a list if `listed`; otherwise an array, or None if the kind takes none. `anywhere`: the
// results of a list are taken by return_to(), so its arrays may be on a GPU.
std::unique_ptr<Handle> submit(Job& job, const std::string& kind, nb::object arrays,
                               const std::string& name, double timeout, bool waits,
                               nb::handle group, nb::object into, bool listed,
                               const std::string& agreement, bool anywhere,
                               nb::kwargs options) {
  note_caller();
  calls::Call call;
  call.group = group_of(group);
  call.what = parse_kind(kind);
  call.name = name;
  check_name(name);
  call.list = listed;
  call.agreement = agreement;
  call.timeout = timeout;
  Fields fields(options, kind, call.group ? call.group->size() : job.cluster().size);
  std::visit([&fields](auto& what) { fill(what, fields); }, call.what);
  fields.check_all_used();
  call.device_sums = fields.device_sums;
  auto handle = std::make_unique<Handle>();
  handle->what = concat(listed ? "grouped_" : "", kind, " '", name, "'");
  const bool in_place = wire::is<wire::AllReduce>(call.what) ||
                        wire::is<wire::Broadcast>(call.what) ||
                        wire::is<wire::Receive>(call.what);
  const bool takes_devices = in_place && !wire::is<wire::Receive>(call.what);
  const auto add = [&](nb::handle array, const std::string& before) {
    handle->views.push_back(takes_devices || (listed && anywhere)
                                ? ArrayView::anywhere(array, in_place, before)
                                : std::make_shared<ArrayView>(array, in_place, before));
    const ArrayView& view = *handle->views.back();
    if (call.buffers.empty()) {
      call.copier = view.copier();
    } else if (call.copier != view.copier()) {
      raise({Code::kInvalidArgument,
             concat(before, "it lies ", place_of(view), ", and array 0 ",
                    place_of(*handle->views.front()), "; pass arrays of one place in one list")});
    }
    calls::Buffer& one = call.buffers.emplace_back();
    one.array = view.array();
    if (call.copier) {
      one.on_device = reinterpret_cast<device::Address>(view.data());
      const auto known = std::find(call.streams.begin(), call.streams.end(), view.stream());
      if (known == call.streams.end()) call.streams.push_back(view.stream());
    } else {
      one.send = view.data();
      one.receive = in_place ? view.data() : nullptr;
    }
  };
  const bool takes_none = wire::is<wire::Barrier>(call.what) || wire::is<wire::Join>(call.what);
  if (listed) {
    size_t i = 0;
    for (const nb::handle array : nb::cast<nb::list>(arrays)) {
      add(array, concat("'", name, "', array ", i++, " of the list: "));
    }
  } else if (!takes_none) {
    add(arrays, {});
    const Reduction* const reduction = wire::reduction_of(call.what);
    if (reduction != nullptr) check(check_reducible(call.buffers[0].array.dtype, *reduction));
  }
  if (!into.is_none()) {
    handle->views.push_back(std::make_shared<ArrayView>(into, true));
    const ArrayView& view = *handle->views.back();
    call.buffers[0].receive = view.data();
    call.buffers[0].receive_bytes = view.array().bytes();
  }
  release_abandoned();
  if (!listed && !call.copier) {
    handle->operation = take(job.engine().submit(std::move(call), waits));
    return handle;
  }
  auto submitted = [&] {
    GilReleased release;  // arrays are copied
    return job.engine().submit(std::move(call), waits);
  }();
  handle->operation = take(std::move(submitted));
  return handle;
}

// One part of an array and its place in a staging array: staging array, first byte there, array,
// first byte there, number of bytes.
using Part = std::tuple<nb::object, size_t, nb::object, size_t, size_t>;

// Copies all parts from their arrays to staging or, with `back`, from staging to their arrays. An
// error leaves everything uncopied.
void copy_parts(const std::vector<Part>& parts, bool back) {
  struct Copy {
    char* to;
    const char* from;
    size_t bytes;
  };
  const auto at = [](const ArrayView& array, size_t first, size_t bytes) {
    size_t size = size_of(array.dtype());
    for (const uint64_t dimension : array.shape()) size *= dimension;
    if (first <= size && bytes <= size - first) return array.data() + first;
    raise({Code::kInvalidArgument, "the size of an array has changed while it was in use"});
  };
  std::deque<ArrayView> views;
  std::vector<Copy> copies;
  for (const auto& [staging, place, array, first, bytes] : parts) {
    char* const here = at(views.emplace_back(staging, !back), place, bytes);
    char* const there = at(views.emplace_back(array, back), first, bytes);
    if (bytes > 0) copies.push_back({back ? there : here, back ? here : there, bytes});
  }
  GilReleased release;
  for (const Copy& one : copies) std::memcpy(one.to, one.from, one.bytes);
}

// Forms a group. The caller waits for the operation once, because all ranks of the group take part.
std::unique_ptr<Handle> form_group(Job& job, const std::vector<uint32_t>& ranks,
                                   const std::string& name, double timeout, bool unique) {
  check_name(name);
  check(control::Group::check(job.cluster(), ranks));
  if (!std::binary_search(ranks.begin(), ranks.end(), job.rank())) {
    raise({Code::kInvalidArgument, concat("rank ", job.rank(), " is not in group '", name, "' (",
                                          list_ranks(ranks), ") that it forms")});
  }
  calls::Call call;
  call.what = wire::FormGroup{ranks};
  call.name = name;
  call.timeout = timeout;
  call.unique = unique;
  auto handle = std::make_unique<Handle>();
  handle->what = concat("new_group '", name, "' (", list_ranks(ranks), ")");
  handle->operation = take(job.engine().submit(std::move(call), true));
  return handle;
}

// Returns bytes as an array that NumPy can view and that owns them.
nb::object as_bytes(std::unique_ptr<char[]> data, size_t bytes) {
  char* const raw = data.release();
  nb::capsule owner(raw, [](void* p) noexcept { delete[] static_cast<char*>(p); });
  using Bytes = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;
  return nb::cast(Bytes(raw, {bytes}, owner));
}

// Returns the result of allgather, reduce_scatter and alltoall.
nb::object result_of(Handle& handle) {
  check(handle.operation->status());
  const size_t bytes = handle.operation->result_bytes;
  if (bytes > 0 && handle.operation->result == nullptr) {
    raise({Code::kInvalidArgument, concat("the result of ", handle.what, " was already taken")});
  }
  return as_bytes(std::move(handle.operation->result), bytes);
}

// Returns the results of a list: for each array its dtype, its shape and its bytes.
nb::list results_of(Handle& handle) {
  Operation& operation = *handle.operation;
  check(operation.status());
  std::vector<std::unique_ptr<char[]>> results;
  std::vector<char*> places;
  for (size_t i = 0; i < handle.views.size(); ++i) {
    const size_t bytes = operation.result_rows()[i] * handle.views[i]->array().row_bytes();
    results.push_back(std::make_unique_for_overwrite<char[]>(bytes));
    places.push_back(results.back().get());
  }
  {
    GilReleased release;
    operation.take(places);
  }
  nb::list all;
  for (size_t i = 0; i < results.size(); ++i) {
    wire::Array array = handle.views[i]->array();
    array.shape[0] = operation.result_rows()[i];
    nb::list shape;
    for (const uint64_t dimension : array.shape) shape.append(dimension);
    all.append(nb::make_tuple(name_of(array.dtype), nb::tuple(shape),
                              as_bytes(std::move(results[i]), array.bytes())));
  }
  return all;
}

// Copies the results of a complete operation on a device back there. Waits for the copies if no
// streams are given.
void take_back(Handle& handle, const std::vector<device::Stream>& streams, double seconds) {
  Operation& operation = *handle.operation;
  Status queued;
  {
    GilReleased release;
    queued = operation.take_back(streams);
  }
  check(queued);
  if (!streams.empty()) return;
  wait(*operation.taken_back(), seconds, handle.what,
       [&operation] { return operation.check_device(); });
}

// Brings the results of a complete list on a device to `outputs`, arrays on the same device. With
// `waits` the host waits for this. Otherwise the arrays' streams wait, and until then the memory of
// the arrays must stay.
void return_to(Handle& handle, const nb::list& outputs, bool waits, double seconds) {
  Operation& operation = *handle.operation;
  check(operation.status());
  std::vector<Operation::Place> places;
  std::vector<device::Stream> streams;
  for (size_t i = 0; i < nb::len(outputs); ++i) {
    const auto view = ArrayView::anywhere(outputs[i], true);
    const size_t bytes = view->array().bytes();
    const uint64_t expected =
        i < handle.views.size()
            ? operation.result_rows()[i] * handle.views[i]->array().row_bytes()
            : 0;
    if (view->copier() != operation.copier() || bytes != expected) {
      raise({Code::kMismatch, concat("result ", i, " of ", handle.what, " has ",
                                     counted(expected, "byte"), ", and the array for it has ",
                                     bytes, " ", place_of(*view))});
    }
    if (std::find(streams.begin(), streams.end(), view->stream()) == streams.end()) {
      streams.push_back(view->stream());
    }
    places.push_back({reinterpret_cast<device::Address>(view->data()), bytes});
  }
  const auto there = std::make_shared<engine::Future>(operation.loop_of());
  there->continue_from(operation);
  Status queued;
  {
    GilReleased release;
    queued = operation.return_to(std::move(places), streams, [] {},
                                 [there](const Status& status) { there->set(status); });
  }
  check(queued);
  if (!waits) return;
  wait(*there, seconds, handle.what, [&operation] { return operation.check_device(); });
}

// Ctrl-C ends the wait for other ranks, and raises when this rank has left.
void shut_down(Job& job, bool failed) {
  bool raised = false;
  {
    GilReleased release;
    Interruptible scope([&raised] {
      GilTaken acquire;
      return raised = PyErr_CheckSignals() != 0;
    });
    job.shutdown(failed);
    device::drain_shared_copiers();  // shared copiers may still bring results of the ended job
  }
  {
    const nb::error_scope interrupt;
    end_callbacks(job.engine().loop().get());
    release_abandoned();
  }
  if (raised) throw nb::python_error();
}

nb::object empty(nb::object job_object, size_t bytes) {
  Job& job = nb::cast<Job&>(job_object);
  void* data = take(job.engine().heap().allocate(bytes));
  // The array keeps the job alive, and with it the heap.
  struct Owner {
    nb::object job;
    SharedHeap* heap;
    void* data;
  };
  auto* owner = new Owner{job_object, &job.engine().heap(), data};
  nb::capsule capsule(owner, [](void* p) noexcept {
    auto* one = static_cast<Owner*>(p);
    one->heap->free(one->data);
    GilTaken gil;
    delete one;
  });
  return nb::cast(
      nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(static_cast<uint8_t*>(data), {bytes}, capsule));
}

}  // namespace

void register_job(nb::module_& module) {
  nb::class_<Callbacks>(module, "Callbacks")
      .def_rw("thread", &Callbacks::thread, nb::for_setter(nb::arg("thread").none()))
      .def("take", &Callbacks::take);
  module.def("end_starts", [] { process_ends.store(true); });
  module.def("end_start", [](bool now) { start_ends.store(now); }, nb::arg("now"));
  module.def("keep_for_ever", [](const nb::object& object) { object.inc_ref(); });
  nb::class_<Handle>(module, "Operation")
      .def("wait",
           [](Handle& h, double seconds) {
             wait(*h.operation, seconds, h.what,
                  [&h] { return h.operation->check_device(); });
           },
           nb::arg("seconds") = 0.0)
      .def_prop_ro("on_device", [](const Handle& h) { return h.operation->on_device(); })
      .def("check_not_capturing",
           [](const Handle& h, const std::vector<device::Stream>& streams) {
             check_not_capturing(*h.operation, h.operation->copier().get(), streams);
           },
           nb::arg("streams"))
      .def_prop_ro("comes_back", [](const Handle& h) { return h.operation->comes_back(); })
      .def("take_back", &take_back, nb::arg("streams"), nb::arg("seconds") = 0.0)
      .def("return_to", &return_to, nb::arg("outputs"), nb::arg("waits"),
           nb::arg("seconds") = 0.0)
      .def("done", [](const Handle& h) { return h.operation->done(); })
      .def("callbacks", [](const Handle& h) { return callbacks_of(*h.operation); })
      .def("call_when_done",
           [](const Handle& h, nb::object callback) {
             return call_when_done(*h.operation, h.what, std::move(callback));
           },
           nb::arg("callback"))
      .def("result", &result_of)
      .def("results", &results_of)
      .def_prop_ro("placed", [](const Handle& h) {
        check(h.operation->status());
        return h.operation->placed;
      })
      .def("formed", [](Handle& h) {
        check(h.operation->status());
        return h.operation->formed;
      })
      .def_prop_ro("counts", [](const Handle& h) { return h.operation->counts; });

  using namespace nb::literals;
  nb::class_<Job> bound(module, "Job");
  bind_observed(bound);
  bound
      .def_static("start", &start_job, "rank"_a, "size"_a, "local_rank"_a, "local_size"_a,
                  "servers"_a, "rendezvous"_a, "rendezvous_fd"_a, "host_id"_a, "secret"_a,
                  "settings"_a)
      .def("submit", &submit, "kind"_a, "arrays"_a.none(), "name"_a, "timeout"_a = 0.0,
           "waits"_a = false, "group"_a = nb::none(), "into"_a.none() = nb::none(),
           "listed"_a = false, "agreement"_a = "", "anywhere"_a = false, "options"_a)
      .def("form_group", &form_group, "ranks"_a, "name"_a, "timeout"_a = 0.0,
           "unique"_a = false)
      .def("destroy_group",
           [](Job& job, nb::handle group) {
             const auto leaves = group_of(group);
             Status status;
             {
               GilReleased release;
               status = job.engine().destroy(leaves);
             }
             check(status);
           },
           "group"_a)
      .def("name_group",
           [](Job& job, nb::handle group, const std::string& name) {
             const auto named = group_of(group);
             const uint32_t number = named ? named->id() : control::Group::kWorld;
             job.engine().program().groups().rename(number, name);
           },
           "group"_a.none(), "name"_a)
      .def("refuse",
           [](Job& job, const std::string& kind, const std::string& name, const std::string& why,
              nb::handle group) {
             check_name(name);
             job.engine().refuse(group_of(group), parse_kind(kind), name, why);
           },
           "kind"_a, "name"_a, "why"_a, "group"_a = nb::none())
      .def("abort", &Job::abort, nb::call_guard<GilReleased>())
      .def("shutdown", &shut_down, "failed"_a = false)
      .def("failure", [](Job& job) {
        // Calls fail as soon as the group of all ranks is called off.
        const Status failure = job.engine().failure();
        return (failure.ok() ? job.engine().world()->called_off() : failure).message();
      })
      .def_prop_ro("rank", &Job::rank)
      .def_prop_ro("size", [](const Job& job) { return job.cluster().size; })
      .def_prop_ro("local_rank", [](const Job& job) {
        return job.cluster().workers[job.rank()].local_rank;
      })
      .def_prop_ro("local_size", [](const Job& job) {
        return job.cluster().local_size(job.cluster().workers[job.rank()].node);
      })
      .def_prop_ro("node_rank",
                   [](const Job& job) { return job.cluster().workers[job.rank()].node; })
      .def_prop_ro("num_nodes", [](const Job& job) { return job.cluster().nodes; })
      .def("ranks_of_node", [](const Job& job, uint32_t node) {
        if (node >= job.cluster().nodes) {
          raise({Code::kInvalidArgument, concat("node is ", node, "; the job's nodes are 0 to ",
                                                job.cluster().nodes - 1)});
        }
        return job.cluster().ranks_of(node);
      }, "node"_a)
      .def_prop_ro("objects", [](const Job& job) { return job.cluster().settings.at("objects"); })
      .def_prop_ro("num_servers", [](const Job& job) { return job.cluster().servers.size(); });
  module.def("empty", &empty, "job"_a, "bytes"_a);
  module.def("copy_parts", &copy_parts, "parts"_a, "back"_a = false);
}

}  // namespace herring::bindings
