// Writes entries of all processes as a Chrome trace, which Perfetto and chrome://tracing open: one
// process of the trace for each rank and server, and rows for its calls, rounds and buffers. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "observe/record.h"

namespace herring::observe {

class Timeline {
 public:
  // Times in the trace count from `zero`, in the clock of the rendezvous. What ended before is left
  // out.
  Timeline(const Roster& roster, Nanos zero);

  // Returns the beginning of the file. A trace needs no end: viewers accept one that was cut.
  std::string begin() const;
  // Returns events for the entries of a process. Those that have not ended last until `now`.
  std::string add(const Process& process, const ProcessRecord& record, Nanos now);
  // Returns the end of the file, which states how well the clocks were known.
  std::string end() const;
  // Returns how many entries members could not send.
  uint64_t lost() const;

 private:
  // Rows of one kind. Slices that overlap go to several rows, which are its lanes.
  struct Lanes {
    uint32_t first = 0;         // number of the first row
    std::vector<Nanos> ends;    // of each lane: where its last slice ends
  };
  struct Rows {
    std::map<std::pair<uint32_t, uint32_t>, uint32_t> blocks;  // of each group and stream
    std::map<uint32_t, Lanes> lanes;                           // by the number of the first row
    std::map<std::pair<uint32_t, uint32_t>, Nanos> done, ready;  // of each stream's latest round
    Nanos offset = 0, error = -1;                              // of the clock; the worst error
    Nanos told = 0;                                            // when the error was last told
    uint64_t lost = 0;
  };
  struct Slice {
    const char* name;
    Nanos from, to;
    std::string args;
  };

  bool planned(const Entry& entry) const;
  void add(std::string& out, uint32_t pid, Rows& rows, const Entry& entry, Nanos offset, Nanos now);
  void clock(std::string& out, uint32_t pid, Rows& rows, const ProcessRecord& record, Nanos now);
  void put(std::string& out, uint32_t pid, Rows& rows, uint32_t first, const std::string& name,
           const std::vector<Slice>& slices) const;
  void slice(std::string& out, uint32_t pid, uint32_t row, const Slice& slice) const;
  uint32_t pid_of(const Process& process) const;

  const Roster& roster_;
  const Nanos zero_;
  uint32_t first_server_ = 1000;  // number of the first server's process in the trace
  std::map<Process, Rows> rows_;
};

}  // namespace herring::observe
