#include "observe/timeline.h"

#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <utility>

#include "base/streams.h"
#include "observe/json.h"

namespace herring::observe {
namespace {

// Rows are numbered such that viewers show calls first, then each stream with its rounds and its
// buffers. No row has the number of a process, because viewers take such a row for its main thread.
constexpr uint32_t kFirstRow = 1000000;
constexpr uint32_t kBlock = 4096;          // rows of all calls, or of one stream
constexpr uint32_t kLanes = 4;             // rows of one kind within a stream
constexpr uint32_t kMostBuffers = kBlock / kLanes - 1;
constexpr Nanos kTellClock = 10 * kSecond;

std::string quoted(std::string_view text) {
  Json json;
  json.value(text);
  return json.take();
}

std::string metadata(uint32_t pid, std::string_view what, std::string_view args) {
  return concat(",\n{\"ph\":\"M\",\"pid\":", pid, ",\"name\":\"", what, "\",\"args\":{", args,
                "}}");
}

std::string micros(Nanos time) {
  char text[40];
  std::snprintf(text, sizeof text, "%.1f", static_cast<double>(time) * 1e-3);
  return text;
}

Nanos tenth(Nanos time) { return time - time % 100; }

Nanos first_of(const Entry& entry) {
  for (const Nanos at : entry.at) {
    if (at != 0) return at;
  }
  return 0;
}

}  // namespace

Timeline::Timeline(const Roster& roster, Nanos zero) : roster_(roster), zero_(zero) {
  while (first_server_ < roster.ranks.size()) first_server_ *= 10;
}

uint32_t Timeline::pid_of(const Process& process) const {
  return process.index + (process.is_server ? first_server_ : 0);
}

std::string Timeline::begin() const {
  std::string out = concat("[\n{\"ph\":\"M\",\"pid\":0,\"name\":\"herring\",\"args\":{\"job\":",
                           quoted(roster_.job), "}}");
  const auto process = [&](const Process& one) {
    const uint32_t pid = pid_of(one);
    out += metadata(pid, "process_name", "\"name\":" + quoted(roster_.name(one)));
    out += metadata(pid, "process_sort_index", concat("\"sort_index\":", pid));
  };
  for (uint32_t i = 0; i < roster_.ranks.size(); ++i) process({false, i});
  for (uint32_t i = 0; i < roster_.servers.size(); ++i) process({true, i});
  return out;
}

std::string Timeline::end() const {
  std::string out;
  for (const auto& [process, rows] : rows_) {
    out += metadata(pid_of(process), "herring_clock",
                    concat("\"offset_us\":", micros(rows.offset), ",\"error_us\":",
                           rows.error < 0 ? "null" : micros(rows.error), ",\"lost\":", rows.lost));
  }
  return out + "\n]\n";
}

uint64_t Timeline::lost() const {
  uint64_t lost = 0;
  for (const auto& [process, rows] : rows_) lost += rows.lost;
  return lost;
}

bool Timeline::planned(const Entry& entry) const {
  return entry.kind == Kind::kRound || entry.kind == Kind::kBuffer ||
         (entry.kind == Kind::kSum &&
          !is_of_calls(entry.stream, static_cast<uint32_t>(roster_.servers.size())));
}

void Timeline::slice(std::string& out, uint32_t pid, uint32_t row, const Slice& slice) const {
  // Both ends are rounded alike, so that slices that follow each other do not overlap.
  const Nanos from = tenth(slice.from - zero_), to = tenth(slice.to - zero_);
  if (from == to) return;
  out += concat(",\n{\"ph\":\"X\",\"pid\":", pid, ",\"tid\":", row, ",\"ts\":", micros(from),
                ",\"dur\":", micros(to - from), ",\"name\":", slice.name);
  if (!slice.args.empty()) out += concat(",\"args\":{", slice.args, "}");
  out += '}';
}

// Puts slices that follow or contain each other into the first lane that has room for all.
void Timeline::put(std::string& out, uint32_t pid, Rows& rows, uint32_t first,
                   const std::string& name, const std::vector<Slice>& slices) const {
  Nanos from = 0, to = 0;
  for (const Slice& one : slices) {
    if (one.from == 0 || one.to < one.from || one.to < zero_) continue;
    from = from == 0 ? one.from : std::min(from, one.from);
    to = std::max(to, one.to);
  }
  if (from == 0) return;
  Lanes& lanes = rows.lanes[first];
  // The clock's offset changes by its error, which must not look like an overlap.
  const Nanos slack = std::clamp<Nanos>(2 * rows.error, 0, kMillisecond);
  size_t lane = 0;
  while (lane < lanes.ends.size() && lanes.ends[lane] > from + slack) ++lane;
  lane = std::min<size_t>(lane, first == kFirstRow ? kBlock - 1 : kLanes - 1);
  const auto row = static_cast<uint32_t>(first + lane);
  if (lane == lanes.ends.size()) {
    lanes.ends.push_back(0);
    const std::string label = lane == 0 ? name : concat(name, " (", lane + 1, ")");
    out += concat(",\n{\"ph\":\"M\",\"pid\":", pid, ",\"tid\":", row,
                  ",\"name\":\"thread_name\",\"args\":{\"name\":", quoted(label), "}}");
  }
  const Nanos earliest = std::max(lanes.ends[lane], zero_);
  for (Slice one : slices) {
    if (one.from == 0 || one.to < one.from) continue;
    one.from = std::max(one.from, earliest);
    if (one.to >= one.from) slice(out, pid, row, one);
  }
  lanes.ends[lane] = std::max(lanes.ends[lane], to);
}

void Timeline::clock(std::string& out, uint32_t pid, Rows& rows, const ProcessRecord& record,
                     Nanos now) {
  if (record.offset_error < 0) return;
  const bool first = rows.error < 0;
  rows.offset = record.offset;
  rows.error = std::max(rows.error, record.offset_error);
  if (!first && now - rows.told < kTellClock) return;
  rows.told = now;
  if (first) {
    out += metadata(pid, "process_labels", concat("\"labels\":\"clock known to ",
                                                  micros(record.offset_error), " us\""));
  }
  out += concat(",\n{\"ph\":\"C\",\"pid\":", pid, ",\"ts\":", micros(now - zero_),
                ",\"name\":\"error of the clock\",\"args\":{\"us\":",
                micros(record.offset_error), "}}");
}

std::string Timeline::add(const Process& process, const ProcessRecord& record, Nanos now) {
  std::string out;
  const uint32_t pid = pid_of(process);
  Rows& rows = rows_[process];
  rows.lost += record.lost;
  clock(out, pid, rows, record, now);
  // Lanes are filled in the order in which entries begin.
  std::vector<const Entry*> entries;
  for (const Entry& entry : record.entries) entries.push_back(&entry);
  std::stable_sort(entries.begin(), entries.end(), [](const Entry* a, const Entry* b) {
    return first_of(*a) < first_of(*b);
  });
  for (const Entry* entry : entries) add(out, pid, rows, *entry, record.offset, now);
  return out;
}

void Timeline::add(std::string& out, uint32_t pid, Rows& rows, const Entry& entry, Nanos offset,
                   Nanos now) {
  const auto at = [&](Moment moment) {
    const Nanos time = entry.when(moment);
    return time == 0 ? 0 : time + offset;
  };
  const auto first_known = [](std::initializer_list<Nanos> times) {
    for (const Nanos time : times) {
      if (time != 0) return time;
    }
    return Nanos{0};
  };
  const Nanos called = at(Moment::kCalled), ready = at(Moment::kReady);
  const Nanos reduced = at(Moment::kReduced), pushed = at(Moment::kPushed);
  const Nanos summed = at(Moment::kSummed);
  const Nanos done = entry.ended ? at(Moment::kDone) : now;
  const std::string round = concat("\"round\":", entry.round);
  std::string about = concat(round, ",\"bytes\":", entry.bytes);
  if (!entry.ended) about += ",\"ended\":false";
  if (entry.outcome != Code::kOk) {
    about += concat(",\"outcome\":\"", code_name(entry.outcome), "\"");
  }

  uint32_t first = kFirstRow;
  std::string name = entry.kind == Kind::kSum ? "sums" : "calls";
  if (planned(entry)) {
    const std::pair stream{entry.group, entry.stream};
    const bool is_round = entry.kind == Kind::kRound;
    const auto block = rows.blocks.try_emplace(stream, rows.blocks.size() + 1).first->second;
    const uint32_t place = is_round ? 0 : 1 + entry.buffer % kMostBuffers;
    first += block * kBlock + place * kLanes;
    name = concat(entry.title(), is_round ? " rounds" : concat(" buffer ", entry.buffer),
                  entry.group == 0 ? "" : concat(" of group ", entry.group));
  } else if (entry.kind == Kind::kSum) {
    about = concat("\"name\":", quoted(entry.title()), ",", about);
  }

  std::vector<Slice> slices;
  const auto node_push_pull = [&](std::string args) {
    const Nanos combined = first_known({reduced, ready});
    const Nanos sent = std::max(pushed, combined);
    if (reduced != 0) {
      slices.push_back({"\"node stage\"", ready, reduced, std::exchange(args, round)});
    }
    if (pushed != 0 || !entry.ended) {
      slices.push_back({"\"push\"", combined, pushed != 0 ? sent : done,
                        std::exchange(args, round)});
    }
    if (pushed != 0 || entry.ended) slices.push_back({"\"pull\"", sent, done, args});
  };
  switch (entry.kind) {
    case Kind::kRound: {
      const std::pair stream{entry.group, entry.stream};
      Nanos& before = rows.done[stream];
      Nanos& given = rows.ready[stream];
      // The program computes from the results of a round to the data of the next one. Rounds of
      // which several are under way overlap.
      const Nanos until = first_known({ready, done});
      const Nanos from = before == 0 ? called : before <= until ? before : std::max(given, called);
      slices.push_back({"\"compute\"", from, until, about});
      if (ready != 0) {
        slices.push_back({"\"results\"", ready, done, concat(round, ",\"waited_us\":",
                                                            micros(entry.waited))});
      }
      before = std::max(before, done);
      given = std::max(given, ready);
      break;
    }
    case Kind::kBuffer:
      node_push_pull(about);
      break;
    case Kind::kCall: {
      // The call's name is that of the slice which contains the others.
      const std::string title = quoted(entry.title());
      slices.push_back({title.c_str(), first_known({called, ready}), done, about});
      if (ready != 0) node_push_pull(round);
      put(out, pid, rows, first, name, slices);
      return;
    }
    case Kind::kSum:
      slices.push_back({"\"receive\"", first_known({called, ready}), first_known({ready, done}),
                        about});
      if (ready != 0) slices.push_back({"\"sum\"", ready, first_known({summed, done}), round});
      if (summed != 0) slices.push_back({"\"send\"", summed, done, round});
      break;
  }
  put(out, pid, rows, first, name, slices);
}

}  // namespace herring::observe
