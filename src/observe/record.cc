#include "observe/record.h"

#include <algorithm>
#include <set>

#include "base/fields.h"
#include "observe/group_fields.h"
#include "observe/json.h"

namespace herring::observe {

ProcessRecord for_timeline(const Recorder& recorder, uint64_t& cursor, bool last) {
  ProcessRecord record;
  record.entries = recorder.ended_since(cursor, &record.lost);
  if (!last) return record;
  for (Entry& entry : recorder.latest(Recorder::kEntries)) {
    if (!entry.ended) record.entries.push_back(std::move(entry));
  }
  return record;
}

template <typename Io>
void fields(Io& io, Of<Io, Entry>& entry) {
  io(entry.id);
  io.choice(entry.kind, static_cast<size_t>(Kind::kLast) + 1);
  io.choice(entry.outcome, static_cast<size_t>(kLastCode) + 1);
  io(entry.ended, entry.group, entry.stream, entry.round, entry.buffer, entry.number);
  io(entry.bytes);
  for (auto& at : entry.at) io.times(at);
  io.times(entry.waited);
  std::string name(entry.title());
  io.people(name, Entry::kNameBytes);
  if constexpr (Io::kReads) entry.set_name(name);
}

template <typename Io>
void fields(Io& io, Of<Io, ProcessRecord>& record) {
  io.signed_times(record.offset, record.offset_error, record.age);
  io.people(record.failure, 4096, Lines::kMany);
  io.people(record.where, kMostTextBytes, Lines::kMany);
  io.people(record.stack, kMostTextBytes, Lines::kMany);
  group_fields(io, record.groups);
  uint64_t lost = record.lost;
  lost += record.entries.size() - std::min(record.entries.size(), kMostEntries);
  io(lost);
  io.last(record.entries, kMostEntries, [](auto& io, auto& entry) { io(entry); });
  if constexpr (Io::kReads) record.lost = lost;
}

std::string encode(const ProcessRecord& record) { return write_fields(record); }

Result<ProcessRecord> decode_process_record(std::string_view payload) {
  return read_fields<ProcessRecord>(payload, "record");
}

void keep_latest(std::vector<Entry>& entries, size_t most) {
  if (entries.size() <= most) return;
  size_t surplus = entries.size() - most;
  std::erase_if(entries, [&surplus](const Entry& entry) {
    if (!entry.ended || surplus == 0) return false;
    --surplus;
    return true;
  });
}

std::string record_as_json(const Picture& picture, const std::string& why,
                           const std::vector<std::pair<Process, ProcessRecord>>& records,
                           double unix_zero) {
  const Roster& roster = *picture.roster;
  Json json;
  json.begin_object().field("schema", "herring-flight-1").key("herring");
  roster.version.empty() ? json.null() : json.value(roster.version);
  json.field("job", roster.job).key("time").exact(picture.time).field("why", why);
  json.field("size", roster.ranks.size()).key("processes").begin_array();
  for (const auto& [process, record] : records) {
    const bool is_server = process.is_server;
    const auto& common = is_server
                             ? static_cast<const Picture::Common&>(picture.servers[process.index])
                             : picture.ranks[process.index];
    json.begin_object().field("kind", is_server ? "server" : "rank").field("index", process.index);
    json.field("host", is_server ? roster.servers[process.index].host
                                 : roster.ranks[process.index].host);
    json.field("pid", is_server ? roster.servers[process.index].pid
                                : roster.ranks[process.index].pid);
    json.field("state", name_of(common.state)).field("where", record.where);
    json.field("for", to_seconds(record.age)).field("stack", record.stack);
    json.field("clock_offset", to_seconds(record.offset));
    json.field("clock_error", to_seconds(record.offset_error)).field("failure", record.failure);
    json.key("entries").begin_array();
    for (const Entry& entry : record.entries) {
      json.begin_object().field("id", entry.id).field("kind", name_of(entry.kind));
      json.field("name", entry.title()).field("group", entry.group);
      json.field("stream", entry.stream).field("round", entry.round);
      json.field("buffer", entry.buffer).field("bytes", entry.bytes);
      if (entry.kind == Kind::kCall) json.field("number", entry.number);
      for (size_t i = 0; i < kMoments; ++i) {
        json.key(name_of(static_cast<Moment>(i)));
        entry.at[i] == 0 ? json.null()
                         : json.exact(unix_zero + to_seconds(entry.at[i] + record.offset));
      }
      json.field("waited", to_seconds(entry.waited)).key("outcome");
      entry.ended ? json.value(code_name(entry.outcome)) : json.null();
      json.end_object();
    }
    json.end_array().end_object();
  }
  json.end_array().key("groups").begin_array();
  // The record has the groups of its entries only; a job may have thousands.
  std::set<uint32_t> used;
  for (const auto& [process, record] : records) {
    for (const Entry& entry : record.entries) used.insert(entry.group);
  }
  for (const Groups::View& group : picture.groups) {
    if (group.group == 0 || !used.contains(group.group)) continue;
    json.begin_object().field("group", group.group).field("name", group.name);
    json.field("ranks", *group.ranks).end_object();
  }
  json.end_array().key("missing").begin_array();
  for (const Missing& one : picture.missing) {
    json.begin_object().field("what", one.what).field("for", to_seconds(one.age));
    json.field("ranks", one.ranks).end_object();
  }
  json.end_array().key("silent").begin_array();
  const auto silent = [&](const auto& processes, bool is_server) {
    for (uint32_t i = 0; i < processes.size(); ++i) {
      const Process process{is_server, i};
      const bool told = std::any_of(records.begin(), records.end(), [&](const auto& one) {
        return one.first == process;
      });
      if (!told) {
        json.value(concat(is_server ? "server " : "rank ", i, ": ", name_of(processes[i].state)));
      }
    }
  };
  silent(picture.ranks, false);
  silent(picture.servers, true);
  json.end_array().end_object();
  return json.take() + "\n";
}

}  // namespace herring::observe
