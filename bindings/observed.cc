// Job: what it has counted and recorded, and what it writes for people.
#include <nanobind/stl/string.h>

#include "bindings.h"
#include "job/job.h"

namespace herring::bindings {
namespace {

using job::Job;

nb::dict stats(Job& job) {
  using namespace nb::literals;
  worker::Engine::Counters counters;
  {
    GilReleased release;
    counters = job.engine().counters();
  }
  uint64_t sent = counters.workers.bytes_sent, received = counters.workers.bytes_received;
  nb::list servers;
  for (size_t i = 0; i < counters.servers.size(); ++i) {
    const auto& one = counters.servers[i];
    const transport::PathInfo& path = counters.paths[i];
    servers.append(dict_of("name"_a = counters.names[i],
                           "dedicated"_a = job.cluster().servers[i].dedicated,
                           "weight"_a = job.cluster().servers[i].weight,
                           "bytes_sent"_a = one.bytes_sent,
                           "bytes_received"_a = one.bytes_received,
                           "retransmits"_a = path.retransmits,
                           "rtt"_a = path.rtt == 0 ? nb::object(nb::none())
                                                   : nb::cast(to_seconds(path.rtt))));
    sent += one.bytes_sent;
    received += one.bytes_received;
  }
  const nb::dict workers = dict_of("bytes_sent"_a = counters.workers.bytes_sent,
                                   "bytes_received"_a = counters.workers.bytes_received);
  return dict_of("bytes_sent"_a = sent, "bytes_received"_a = received, "servers"_a = servers,
                 "workers"_a = workers, "credit_bytes"_a = counters.credit_bytes,
                 "kept_bytes"_a = counters.kept_bytes,
                 "wakeups"_a = counters.wakeups, "gpu_sums"_a = counters.device_sums,
                 "gpu_peer_sums"_a = counters.neighbour_sums,
                 "late_seconds"_a = to_seconds(job.late()));
}

// Returns the latest entries of this worker. Times are those of time.monotonic().
nb::list recorded(Job& job, size_t most) {
  using namespace nb::literals;
  using observe::Moment;
  nb::list all;
  for (const observe::Entry& one : job.engine().program().recorder().latest(most)) {
    const std::string_view name = one.title();
    PyObject* const text = PyUnicode_DecodeUTF8(name.data(), static_cast<Py_ssize_t>(name.size()),
                                                "replace");  // a name may be cut anywhere
    if (text == nullptr) throw nb::python_error();
    nb::dict entry =
        dict_of("id"_a = one.id, "kind"_a = observe::name_of(one.kind),
                "name"_a = nb::steal<nb::str>(text), "group"_a = one.group,
                "stream"_a = one.stream, "round"_a = one.round, "buffer"_a = one.buffer,
                "bytes"_a = one.bytes, "waited"_a = to_seconds(one.waited));
    for (size_t i = 0; i < observe::kMoments; ++i) {
      const auto moment = static_cast<Moment>(i);
      const Nanos at = one.when(moment);
      entry[observe::name_of(moment)] = at == 0 ? nb::object(nb::none())
                                                : nb::cast(to_seconds(at));
    }
    entry["outcome"] = one.ended ? nb::object(nb::str(code_name(one.outcome)))
                                 : nb::object(nb::none());
    all.append(entry);
  }
  return all;
}

nb::dict activity(Job& job) {
  using namespace nb::literals;
  const engine::Activity activity = job.engine().program().activity(job.engine().loop()->now());
  return dict_of("where"_a = activity.where, "since"_a = to_seconds(activity.since),
                 "rounds"_a = activity.rounds, "calls"_a = activity.calls,
                 "in_flight"_a = activity.in_flight, "waited"_a = to_seconds(activity.waited));
}

}  // namespace

void bind_observed(nb::class_<Job>& bound) {
  using namespace nb::literals;
  bound
      .def("stats", &stats)
      .def("recorded", &recorded, "most"_a = observe::Recorder::kEntries)
      .def("activity", &activity)
      .def("pause_recording",
           [](Job& job, bool yes) { job.engine().program().recorder().pause(yes); },
           "yes"_a)
      .def("begin_timeline", [](Job& job, const std::string& path) {
        check(without_gil([&] { return job.begin_timeline(path); }));
      }, "path"_a)
      .def("end_timeline", [](Job& job) {
        check(without_gil([&] { return job.end_timeline(); }));
      })
      .def("write_record", [](Job& job, const std::string& why) {
        return take(without_gil([&] { return job.write_record(why); }));
      }, "why"_a);
}

}  // namespace herring::bindings
