#include "observe/record.h"

#include <algorithm>
#include <set>

#include "base/bytes.h"
#include "observe/json.h"

namespace herring::observe {
namespace {

// Text from another process must be safe on a terminal.
std::string get_text(ByteReader& in, size_t most) {
  std::string text = in.text(most);
  for (char& c : text) {
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\n') || c == 0x7f) c = ' ';
  }
  return text;
}

void put(ByteWriter& out, const Entry& entry) {
  out.put(entry.id).put(entry.kind).put(static_cast<uint8_t>(entry.outcome)).put(entry.ended);
  out.put(entry.group).put(entry.stream).put(entry.round).put(entry.buffer);
  out.put(entry.number).put(entry.bytes);
  for (const Nanos at : entry.at) out.put(at);
  out.put(entry.waited).text(entry.title());
}
constexpr size_t kLeastEntry = 8 + 3 + 20 + 8 + 8 * kMoments + 8 + 4;

bool get(ByteReader& in, Entry& entry) {
  entry.id = in.get<uint64_t>();
  const auto kind = in.get<uint8_t>();
  const auto outcome = in.get<uint8_t>();
  entry.ended = in.get<uint8_t>() != 0;
  entry.group = in.get<uint32_t>();
  entry.stream = in.get<uint32_t>();
  entry.round = in.get<uint32_t>();
  entry.buffer = in.get<uint32_t>();
  entry.number = in.get<uint32_t>();
  entry.bytes = in.get<uint64_t>();
  bool sane = kind <= static_cast<uint8_t>(Kind::kLast) &&
              outcome <= static_cast<uint8_t>(kLastCode);
  for (Nanos& at : entry.at) {
    at = in.get<Nanos>();
    sane = sane && at >= 0 && at < kEndless;
  }
  entry.waited = in.get<Nanos>();
  sane = sane && entry.waited >= 0 && entry.waited < kEndless;
  std::string name = get_text(in, Entry::kNameBytes);
  std::replace(name.begin(), name.end(), '\n', ' ');
  entry.set_name(name);
  if (!sane || !in.ok()) return false;
  entry.kind = static_cast<Kind>(kind);
  entry.outcome = static_cast<Code>(outcome);
  return true;
}

}  // namespace

ProcessRecord for_timeline(const Recorder& recorder, uint64_t& cursor, bool last) {
  ProcessRecord record;
  record.entries = recorder.ended_since(cursor, &record.lost);
  if (!last) return record;
  for (Entry& entry : recorder.latest(Recorder::kEntries)) {
    if (!entry.ended) record.entries.push_back(std::move(entry));
  }
  return record;
}

std::string encode(const ProcessRecord& record) {
  ByteWriter out;
  const auto text = [&out](const std::string& s, size_t most) {
    out.text(std::string_view(s).substr(0, most));
  };
  out.put(record.offset).put(record.offset_error).put(record.age);
  text(record.failure, 4096);
  text(record.where, kMostTextBytes);
  text(record.stack, kMostTextBytes);
  put_groups(out, record.groups);
  const size_t count = std::min(record.entries.size(), kMostEntries);
  out.put(record.lost + (record.entries.size() - count)).put(static_cast<uint32_t>(count));
  for (size_t i = record.entries.size() - count; i < record.entries.size(); ++i) {
    put(out, record.entries[i]);
  }
  return out.take();
}

Result<ProcessRecord> decode_process_record(std::string_view payload) {
  ByteReader in(payload);
  ProcessRecord record;
  record.offset = in.get<Nanos>();
  record.offset_error = in.get<Nanos>();
  record.age = in.get<Nanos>();
  record.failure = get_text(in, 4096);
  record.where = get_text(in, kMostTextBytes);
  record.stack = get_text(in, kMostTextBytes);
  bool sound = true;
  for (const Nanos time : {record.offset, record.offset_error, record.age}) {
    sound = sound && time > -kEndless && time < kEndless;
  }
  auto groups = get_groups(in);
  sound = sound && groups;
  if (sound) record.groups = std::move(*groups);
  record.lost = in.get<uint64_t>();
  const auto count = in.get<uint32_t>();
  sound = sound && count <= kMostEntries && count * kLeastEntry <= in.remaining();
  for (uint32_t i = 0; sound && i < count; ++i) {
    sound = get(in, record.entries.emplace_back());
  }
  if (!sound || !in.done()) return breach("malformed record");
  return record;
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
