// The core's log, for Python's logging: herring/process/logs.py takes the lines on a thread of its
// own.
#include "base/log.h"

#include <nanobind/stl/string.h>

#include "base/process_texts.h"
#include "bindings.h"
#include "waiting.h"

namespace herring::bindings {
namespace {

// A list of (seconds since 1970, level from 0 to 3, who, text); empty: the queue is closed.
nb::list log_lines() {
  std::vector<LogLine> lines;
  {
    const WaitingThread waiting(nullptr);
    GilReleased release;
    lines = take_log_lines();
  }
  nb::list all;
  for (const LogLine& line : lines) {
    all.append(nb::make_tuple(to_seconds(line.time), static_cast<int>(line.level), line.who,
                              nb::steal(PyUnicode_DecodeUTF8(
                                  line.text.data(), static_cast<Py_ssize_t>(line.text.size()),
                                  "replace"))));
  }
  return all;
}

}  // namespace

void register_log(nb::module_& module) {
  using namespace nb::literals;
  module.def("set_version", &set_version, "version"_a);
  module.def("log_info", [](const std::string& text) { log(LogLevel::kInfo, text); }, "text"_a);
  module.def("log_warning", [](const std::string& text) { log(LogLevel::kWarning, text); },
             "text"_a);
  module.def("log_error", [](const std::string& text) { log(LogLevel::kError, text); }, "text"_a);
  module.def("open_log_queue", &open_log_queue);
  module.def("take_log_lines", &log_lines);
  module.def("wait_for_log_reader", [](double seconds) {
    GilReleased release;
    return wait_for_log_reader(from_seconds(seconds));
  }, "seconds"_a);
  module.def("close_log_queue", &close_log_queue);
  module.def("flush_log_queue", &flush_log_queue);
  module.def("write_log_line",
             [](double seconds, int level, const std::string& who, const std::string& text) {
               write_log_line({from_seconds(seconds), static_cast<LogLevel>(level), who, text});
             },
             "seconds"_a, "level"_a, "who"_a, "text"_a);
}

}  // namespace herring::bindings
