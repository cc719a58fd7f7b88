// Writes entries of all processes as a Chrome trace, which Perfetto and chrome://tracing open: one
// process of the trace for each rank and server, and rows for its rounds, buffers, calls and sums.
// Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "observe/record.h"

namespace herring::observe {

class Timeline {
 public:
  // Times in the trace count from `zero`, in the clock of the rendezvous.
  Timeline(const Roster& roster, Nanos zero);

  // Returns the beginning of the file. A trace needs no end: viewers accept one that was cut.
  std::string begin() const;
  // Returns events for the entries of a process that have ended.
  std::string add(const Process& process, const ProcessRecord& record);
  static const char* end() { return "{}]\n"; }

 private:
  struct Rows {
    // By group, stream and buffer.
    std::map<std::tuple<uint32_t, uint32_t, uint32_t>, uint32_t> of_buffers;
    std::vector<Nanos> free_at;              // rows of calls and sums: when the last slice ends
    std::map<std::pair<uint32_t, uint32_t>, Nanos> done;  // of each stream: its latest round
    uint32_t named = 0;                      // rows of buffers that have a name
  };
  void slice(std::string& out, uint32_t pid, uint32_t row, const char* name, Nanos from, Nanos to,
             const std::string& args = {}) const;
  void name_row(std::string& out, uint32_t pid, uint32_t row, const std::string& name) const;
  uint32_t free_row(Rows& rows, Nanos from, Nanos to);

  const Roster& roster_;
  const Nanos zero_;
  std::map<Process, Rows> rows_;
};

}  // namespace herring::observe
