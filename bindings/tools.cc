// Functions that need no job: settings, servers, and the abilities of this machine.
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "base/reminders.h"
#include "base/settings.h"
#include "bindings.h"
#include "cost.h"
#include "job/dedicated.h"
#include "job/options.h"
#include "job/process.h"
#include "observe/metrics_table.h"
#include "reduce/reduce.h"
#include "wire/hello.h"

namespace herring::bindings {
namespace {

// Returns the table of settings, independent of the environment.
nb::list setting_rows() {
  using namespace nb::literals;
  nb::list rows;
  for (const SettingSpec& spec : setting_specs()) {
    const std::vector<std::string> choices(spec.limits.choices.begin(), spec.limits.choices.end());
    rows.append(dict_of(
        "name"_a = std::string(spec.name), "env"_a = environment_name(spec.name),
        "type"_a = name_of(spec.type), "scope"_a = name_of(spec.scope),
        "minimum"_a = spec.limits.minimum, "maximum"_a = spec.limits.maximum,
        "choices"_a = choices, "default"_a = std::string(spec.default_text),
        "flags"_a = std::string(spec.flags), "help"_a = std::string(spec.help),
        "allowed"_a = allowed_values(spec)));
  }
  return rows;
}

// Returns the table of metrics: scopes, the labels of a job, metrics.
nb::tuple metric_rows() {
  nb::list scopes, metrics;
  for (const observe::ScopeSpec& one : observe::kScopes) {
    scopes.append(nb::make_tuple(one.name, one.items, one.labels));
  }
  for (const observe::MetricSpec& one : observe::kMetrics) {
    const char* const scope = observe::kScopes[static_cast<size_t>(one.scope)].name;
    metrics.append(nb::make_tuple(one.name, scope, one.help, one.fields, one.by, one.labels));
  }
  return nb::make_tuple(scopes, observe::kJobLabels, metrics);
}

// Returns the table with the current value of each setting and its origin.
nb::list settings() {
  const Settings current = take(Settings::load());
  nb::list rows = setting_rows();
  for (nb::handle row : rows) {
    const auto name = nb::cast<std::string>(row["name"]);
    row["value"] = current.text(name);
    row["origin"] = current.origin(name);
  }
  return rows;
}

// Parses a text according to a setting: True, 4, 0.5 or a text. Texts are bytes, as in the
// environment.
nb::object parse(const std::string& name, nb::bytes text, const std::string& shown) {
  const SettingSpec* spec = find_setting(name);
  if (spec == nullptr) throw nb::key_error(name.c_str());
  const SettingValue value = take(parse_setting(*spec, {text.c_str(), text.size()}, shown));
  switch (spec->type) {
    case SettingType::kBool: return nb::cast(value.integer != 0);
    case SettingType::kInt:
    case SettingType::kBytes: return nb::cast(value.integer);
    case SettingType::kSeconds: return nb::cast(value.real);
    default: return nb::bytes(value.text.data(), value.text.size());
  }
}

nb::list setting_warnings() {
  const Settings settings = take(Settings::load());
  nb::list all;
  for (const std::string& text : settings.warnings()) all.append(text);
  return all;
}

// Returns how long the start may take, when it first reports missing ranks, and whether the
// settings are valid. If they are not, the times are the defaults. Job.start then reports the error
// to all ranks.
std::tuple<double, double, bool> start_up_times(
    const std::map<std::string, std::string>& overrides) {
  auto loaded = Settings::load(overrides);
  const bool right = loaded.ok();
  const Settings settings = right ? std::move(*loaded) : Settings();
  return {settings.get_seconds("connect_timeout"),
          to_seconds(first_reminder(from_seconds(settings.get_seconds("warn_after")))), right};
}

// Describes a server on this machine that is reached at `address`. Returns the number of cores, the
// link's speed in bits per second (0: unknown), and the largest number of proxies.
std::tuple<uint32_t, uint64_t, uint32_t> server_proxies(const std::string& address) {
  const job::ServingHost host = job::serving_host(address);
  return {host.cores, host.rate, job::proxies_for(host, ~0u)};
}

// Returns what a connection costs here for one value of HERRING_TLS: bytes per second, and the
// processor seconds of both sides per 1e9 bytes. Measures with `bytes`.
std::tuple<double, double> encryption_cost(const std::string& tls, size_t bytes) {
  const Settings settings = take(Settings::load({{"tls", tls}}));
  const transport::Credentials credentials =
      take(job::credentials_of("a secret for measurements", settings));
  const auto cost =
      without_gil([&] { return measure_cost(credentials.tls, bytes); });
  check(cost.status());
  return {cost->rate, cost->cpu_per_gb};
}

void run_server(nb::dict options) {
  std::map<std::string, std::string> overrides;
  std::string rendezvous, secret;
  Nanos waits_since = 0;
  for (auto [key, value] : options) {
    const auto name = nb::cast<std::string>(key);
    if (name == "secret") {
      const auto bytes = nb::cast<nb::bytes>(value);
      secret.assign(bytes.c_str(), bytes.size());
    } else if (name == "waited") {  // seconds waited before this call
      waits_since = monotonic_now() - from_seconds(nb::cast<double>(value));
    } else if (name == "rendezvous") {
      rendezvous = nb::cast<std::string>(value);
    } else {
      overrides[name] = nb::cast<std::string>(nb::str(value));
    }
  }
  const Settings settings = take(Settings::load(overrides));
  check(without_gil([&] {
    return job::run_dedicated_server(rendezvous, secret, settings, waits_since);
  }));
}

}  // namespace

void register_tools(nb::module_& module) {
  using namespace nb::literals;
  module.attr("PROTOCOL_VERSION") = wire::kProtocolVersion;
  module.def("setting_rows", &setting_rows);
  module.def("metric_rows", &metric_rows);
  module.def("settings", &settings);
  module.def("parse_setting", &parse, "name"_a, "text"_a, "shown"_a);
  module.def("setting_warnings", &setting_warnings);
  module.def("start_up_times", &start_up_times, "overrides"_a);
  module.def("server_proxies", &server_proxies, "address"_a);
  // Threads for each of `workers` on this machine, if HERRING_NODE_THREADS leaves the choice.
  module.def("node_threads",
             [](uint32_t workers) { return job::node_threads_for(job::usable_cores(), workers); },
             "workers"_a);
  module.def("encryption_cost", &encryption_cost, "tls"_a, "bytes"_a);
  module.def("run_server", &run_server, "options"_a);
  module.def("simd_level", &reduce::simd_level);
  module.def("dtype_of", [](nb::object array) {
    return std::string(name_of(ArrayView(array, false).dtype()));
  }, "array"_a.none());
  // The only parsers of times and sizes. ConfigurationError names the text and the allowed values.
  module.def("parse_seconds", [](const std::string& text) { return take(parse_seconds(text)); },
             "text"_a);
  module.def("parse_bytes", [](const std::string& text) { return take(parse_bytes(text)); },
             "text"_a);
}

}  // namespace herring::bindings
