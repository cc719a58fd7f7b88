// Partial: a series of partial all-reduces over one array.
#include "rounds/partial.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bindings.h"
#include "job/job.h"

namespace herring::bindings {
namespace {

using rounds::Partial;

std::shared_ptr<Partial> make_partial(job::Job& job, const std::string& name,
                                      const std::string& dtype, uint64_t elements,
                                      const std::string& op, bool by_contributors,
                                      uint32_t quorum, double grace, uint32_t staleness,
                                      bool replays, uint32_t number, nb::handle group,
                                      const std::string& algorithm) {
  if (name.empty() || name.size() > 512) {
    raise({Code::kInvalidArgument, concat("the name of a partial all-reduce has ", name.size(),
                                          " bytes in UTF-8; 1 to 512 are allowed")});
  }
  rounds::PartialOptions options;
  options.name = name;
  options.group = group_of(group);
  options.dtype = take(parse_dtype(dtype));
  options.elements = elements;
  options.op = take(parse_reduce_op(op));
  options.by_contributors = by_contributors;
  options.quorum = quorum;
  options.grace = grace;
  options.staleness = staleness;
  options.replays = replays;
  options.number = number;
  options.algorithm = take(collective::parse_algorithm(algorithm)).algorithm;
  return take(Partial::create(job.engine().series(), std::move(options)));
}

void check_fits(const Partial& partial, const ArrayView& array) {
  uint64_t elements = 1;
  for (uint64_t dimension : array.shape()) elements *= dimension;
  const auto& options = partial.options();
  if (array.dtype() == options.dtype && elements == options.elements) return;
  raise({Code::kInvalidArgument,
         concat("'", options.name, "' is over ", counted(options.elements, "element"), " of ",
                name_of(options.dtype), ", but the array has ", elements, " of ",
                name_of(array.dtype()), "; use another name for another array")});
}

// Holds the C++ data without converting it to Python. Round info is looked at later, if at all, and
// many workers of one machine return from a round at once.
struct Taken {
  rounds::RoundInfo info;
  double queued = 0;  // seconds that the result waited here
};

Taken take_result(Partial& partial, nb::object object, double seconds) {
  const ArrayView array(object, true);
  check_fits(partial, array);
  const Nanos deadline = seconds > 0 ? monotonic_now() + from_seconds(seconds) : 0;
  for (;;) {
    bool done = false;
    {
      GilReleased release;
      Nanos slice = 100 * kMillisecond;
      if (deadline != 0) slice = std::clamp<Nanos>(deadline - monotonic_now(), 0, slice);
      done = partial.wait_for(slice);
    }
    if (done) break;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (deadline != 0 && monotonic_now() >= deadline) {
      raise({Code::kTimeout, concat("round ", partial.taken(), " of '", partial.options().name,
                                    "' is not complete after ", seconds,
                                    " s; it goes on in the background")});
    }
  }
  auto info = [&] {
    GilReleased release;
    return partial.take(array.data());
  }();
  Taken taken{take(std::move(info))};
  taken.queued = to_seconds(monotonic_now() - taken.info.completed_at);
  return taken;
}

}  // namespace

void register_partial(nb::module_& module) {
  using namespace nb::literals;
  using partial::Contributor;
  nb::class_<Contributor>(module, "Contributor",
                          "A worker in a round's result. rank: its rank. upto: the number of its "
                          "newest contribution in the result, which contains all of them since the "
                          "worker's previous one. staleness: rounds between this round and the "
                          "result from which the oldest contribution was computed. active: whether "
                          "it waited for this round or flushes. waited: seconds since it "
                          "contributed; negative if it was late for the round that it missed.")
      .def_ro("rank", &Contributor::rank)
      .def_ro("upto", &Contributor::upto)
      .def_ro("staleness", &Contributor::staleness)
      .def_ro("active", &Contributor::active)
      .def_prop_ro("waited", [](const Contributor& one) { return to_seconds(one.waited); });

  nb::class_<Taken>(module, "RoundInfo",
                    "Facts about a round, the same on every rank. round: its number from 0. "
                    "contributors: sorted by rank. active: how many of them waited for it. "
                    "divisor: what sums were divided by. attempts: more than 1 if contributors "
                    "died. last: whether the series ends with it. lost: a list of (rank, "
                    "contributions counted, contributions announced) of workers that are gone. "
                    "Only about this rank: queued, the seconds that the result waited here.")
      .def_prop_ro("round", [](const Taken& t) { return t.info.round; })
      .def_prop_ro("divisor", [](const Taken& t) { return t.info.divisor; })
      .def_prop_ro("attempts", [](const Taken& t) { return t.info.attempts; })
      .def_prop_ro("last", [](const Taken& t) { return t.info.last; })
      .def_prop_ro("contributors", [](const Taken& t) { return t.info.contributors; })
      .def_prop_ro("active", [](const Taken& t) {
        return std::count_if(t.info.contributors.begin(), t.info.contributors.end(),
                             [](const Contributor& one) { return one.active; });
      })
      .def_prop_ro("lost", [](const Taken& t) {
        nb::list lost;
        for (const partial::Lost& one : t.info.lost) {
          lost.append(nb::make_tuple(one.rank, one.counted, one.announced));
        }
        return lost;
      })
      .def_ro("queued", &Taken::queued)
      .def("__repr__", [](const Taken& t) {
        return concat("RoundInfo(round=", t.info.round, ", contributors=",
                      t.info.contributors.size(), ", last=", t.info.last ? "True" : "False", ")");
      });

  nb::class_<Partial>(module, "Partial")
      .def_static("create", &make_partial, "job"_a, "name"_a, "dtype"_a, "elements"_a, "op"_a,
                  "by_contributors"_a, "quorum"_a, "grace"_a, "staleness"_a, "replays"_a = false,
                  "number"_a = 0, "group"_a = nb::none(), "algorithm"_a = "herring",
                  nb::keep_alive<0, 1>())
      .def("contribute", [](Partial& partial, nb::object object, bool waits, bool last,
                            bool caller_waits, uint32_t round, uint32_t contributors,
                            uint64_t upto) {
        const ArrayView array(object, false);
        check_fits(partial, array);
        Status status;
        {
          GilReleased release;
          const partial::Place place{round, contributors, upto};
          status = partial.contribute(array.data(), waits, last, place, caller_waits);
        }
        check(status);
      }, "array"_a.none(), "waits"_a = true, "last"_a = false, "caller_waits"_a = false,
         "round"_a = 0, "contributors"_a = 0, "upto"_a = 0)
      .def("digest", &Partial::digest, "rounds"_a, "value"_a)
      .def("take", &take_result, "array"_a.none(), "seconds"_a = 0.0)
      .def_prop_ro("ready", &Partial::ready)
      .def_prop_ro("produced", &Partial::produced)
      .def_prop_ro("counted", &Partial::counted)
      .def_prop_ro("taken", &Partial::taken)
      .def_prop_ro("blocks", &Partial::blocks);
}

}  // namespace herring::bindings
