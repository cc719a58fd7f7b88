// The flight record: what each process did lately, kept until something fails. One file has the
// records of all processes (docs/how-to/flight-recorder.md).
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "observe/entry.h"
#include "observe/picture.h"
#include "observe/recorder.h"

namespace herring::observe {

inline constexpr size_t kMostRecorded = 512;  // entries of one process
inline constexpr size_t kMostEntries = 8192;  // in one message

// The latest entries of a process, or those that have ended since the last message.
struct ProcessRecord {
  Nanos offset = 0, offset_error = -1;  // as in Report
  std::string failure;                  // why the process cannot go on; empty if it can
  std::string where;                    // as in Report; workers only
  Nanos age = 0;
  std::string stack;
  std::vector<GroupNews> groups;        // that no report has told yet
  std::vector<Entry> entries;
  uint64_t lost = 0;  // entries that should be here; of a timeline only
};

// Returns the entries that have ended since the call that returned this cursor; with `last`, also
// those that have not ended.
ProcessRecord for_timeline(const Recorder& recorder, uint64_t& cursor, bool last);

std::string encode(const ProcessRecord& record);
// Checks every length and count.
Result<ProcessRecord> decode_process_record(std::string_view payload);

// Drops all but the latest entries, and those that have not ended.
void keep_latest(std::vector<Entry>& entries, size_t most);

// Returns the file as JSON of the schema "herring-flight-1". `picture`: the job at that time. Times
// in it are seconds since 1970 on the clock of rank 0.
std::string record_as_json(const Picture& picture, const std::string& why,
                           const std::vector<std::pair<Process, ProcessRecord>>& records,
                           double unix_zero);

}  // namespace herring::observe
