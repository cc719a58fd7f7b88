#include "observe/timeline.h"

#include <algorithm>
#include <cstdio>

#include "observe/json.h"

namespace herring::observe {
namespace {

// Numbers of processes and rows in the trace.
constexpr uint32_t kFirstServer = 1000000;
constexpr uint32_t kRoundRow = 1, kFirstBufferRow = 2, kFirstCallRow = 10000;
constexpr size_t kMostRows = 64;  // of calls and of sums that overlap

std::string quoted(std::string_view text) {
  Json json;
  json.value(text);
  return json.take();
}

}  // namespace

Timeline::Timeline(const Roster& roster, Nanos zero) : roster_(roster), zero_(zero) {}

std::string Timeline::begin() const {
  std::string out = "[\n";
  const auto process = [&](uint32_t pid, const std::string& name) {
    out += concat("{\"ph\":\"M\",\"pid\":", pid, ",\"name\":\"process_name\",\"args\":{\"name\":",
                  quoted(name), "}},\n{\"ph\":\"M\",\"pid\":", pid,
                  ",\"name\":\"process_sort_index\",\"args\":{\"sort_index\":", pid, "}},\n");
  };
  for (uint32_t i = 0; i < roster_.ranks.size(); ++i) {
    process(i, roster_.name({false, i}));
    name_row(out, i, kRoundRow, "rounds");
  }
  for (uint32_t i = 0; i < roster_.servers.size(); ++i) {
    process(kFirstServer + i, roster_.name({true, i}));
  }
  return out;
}

void Timeline::name_row(std::string& out, uint32_t pid, uint32_t row,
                        const std::string& name) const {
  out += concat("{\"ph\":\"M\",\"pid\":", pid, ",\"tid\":", row,
                ",\"name\":\"thread_name\",\"args\":{\"name\":", quoted(name), "}},\n");
}

void Timeline::slice(std::string& out, uint32_t pid, uint32_t row, const char* name, Nanos from,
                     Nanos to, const std::string& args) const {
  if (from == 0 || to < from) return;
  char times[80];
  std::snprintf(times, sizeof times, "%.1f,\"dur\":%.1f", static_cast<double>(from - zero_) * 1e-3,
                static_cast<double>(to - from) * 1e-3);
  out += concat("{\"ph\":\"X\",\"pid\":", pid, ",\"tid\":", row, ",\"ts\":", times,
                ",\"name\":\"", name, "\"", args.empty() ? "" : ",\"args\":{" + args + "}", "},\n");
}

uint32_t Timeline::free_row(Rows& rows, Nanos from, Nanos to) {
  for (size_t i = 0; i < rows.free_at.size(); ++i) {
    if (rows.free_at[i] <= from) {
      rows.free_at[i] = to;
      return static_cast<uint32_t>(i);
    }
  }
  if (rows.free_at.size() < kMostRows) rows.free_at.push_back(to);
  return static_cast<uint32_t>(rows.free_at.size() - 1);
}

std::string Timeline::add(const Process& process, const ProcessRecord& record) {
  std::string out;
  const uint32_t pid = process.index + (process.is_server ? kFirstServer : 0);
  Rows& rows = rows_[process];
  // A row holds slices that follow or contain each other, so entries come in the order of their
  // start.
  std::vector<const Entry*> entries;
  for (const Entry& entry : record.entries) {
    if (entry.ended) entries.push_back(&entry);
  }
  const auto start = [](const Entry* entry) {
    for (const Nanos at : entry->at) {
      if (at != 0) return at;
    }
    return Nanos{0};
  };
  std::stable_sort(entries.begin(), entries.end(), [&start](const Entry* a, const Entry* b) {
    return start(a) < start(b);
  });
  for (const Entry* const entry : entries) {
    const auto at = [&](Moment moment) {
      const Nanos time = entry->when(moment);
      return time == 0 ? 0 : time + record.offset;
    };
    const Nanos called = at(Moment::kCalled), ready = at(Moment::kReady), done = at(Moment::kDone);
    if (done == 0) continue;
    const std::string round = concat("\"round\":", entry->round);
    switch (entry->kind) {
      case Kind::kRound: {
        Nanos& before = rows.done[{entry->group, entry->stream}];
        const Nanos from = before != 0 ? before : called;
        slice(out, pid, kRoundRow, "compute", from, ready, round);
        slice(out, pid, kRoundRow, "results", ready, done, round);
        before = std::max(before, done);
        break;
      }
      case Kind::kBuffer: {
        const auto [row, fresh] = rows.of_buffers.try_emplace(
            {entry->group, entry->stream, entry->buffer},
            kFirstBufferRow + static_cast<uint32_t>(rows.of_buffers.size()));
        if (fresh) {
          name_row(out, pid, row->second,
                   concat(entry->title(), " buffer ", entry->buffer));
        }
        const Nanos reduced = at(Moment::kReduced), pushed = at(Moment::kPushed);
        const Nanos combined = reduced != 0 ? reduced : ready;
        if (reduced != 0) slice(out, pid, row->second, "node stage", ready, reduced, round);
        slice(out, pid, row->second, "push", combined, pushed);
        slice(out, pid, row->second, "pull", pushed != 0 ? pushed : combined, done);
        break;
      }
      case Kind::kCall:
      case Kind::kSum: {
        const Nanos from = called != 0 ? called : ready;
        const uint32_t row = kFirstCallRow + free_row(rows, from, done);
        const std::string args = concat("\"name\":", quoted(entry->title()), ",", round,
                                        ",\"bytes\":", entry->bytes);
        if (entry->kind == Kind::kCall) {
          slice(out, pid, row, "call", from, done, args);
          break;
        }
        const Nanos summed = at(Moment::kSummed);
        slice(out, pid, row, "receive", from, ready != 0 ? ready : done, args);
        if (summed != 0) {
          slice(out, pid, row, "sum", ready != 0 ? ready : from, summed);
          slice(out, pid, row, "send", summed, done);
        }
        break;
      }
    }
  }
  return out;
}

}  // namespace herring::observe
