#include "observe/report.h"

#include <dirent.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "base/bytes.h"

namespace herring::observe {
namespace {

// A report must fit into a message to the rendezvous, which has at most 1 MiB.
constexpr size_t kMostRanks = 1 << 13, kMostMissingRanks = 1024;
constexpr uint32_t kNoRank = ~0u;

Status malformed(const char* what) { return breach("malformed ", what); }

void put_text(ByteWriter& out, const std::string& text) {
  out.text(std::string_view(text).substr(0, kMostTextBytes));
}

// Text from another process must be safe on a terminal and in a file.
std::string printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return text;
}
std::string get_text(ByteReader& in) { return printable(in.text(kMostTextBytes)); }

// Reads a count of items that have at least `least` bytes each. A count that cannot be true makes
// `sound` false.
uint32_t get_count(ByteReader& in, size_t most, size_t least, bool& sound) {
  const auto count = in.get<uint32_t>();
  if (count > most || count * least > in.remaining()) sound = false;
  return sound && in.ok() ? count : 0;
}

void put(ByteWriter& out, const RoundSample& s) {
  out.put(s.group).put(s.stream).put(s.round).put(s.before).put(s.called).put(s.ready);
  out.put(s.reduced).put(s.pushed).put(s.done).put(s.waited).put(s.bytes);
}

RoundSample get_sample(ByteReader& in) {
  RoundSample s;
  s.group = in.get<uint32_t>();
  s.stream = in.get<uint32_t>();
  s.round = in.get<uint32_t>();
  for (Nanos* time : {&s.before, &s.called, &s.ready, &s.reduced, &s.pushed, &s.done, &s.waited}) {
    *time = in.get<Nanos>();
  }
  s.bytes = in.get<uint64_t>();
  return s;
}

// Times are added and compared, so no value may come near the limits of the type.
bool sane(Nanos t) { return t > -kEndless && t < kEndless; }

bool sane(const RoundSample& s) {
  return sane(s.before) && sane(s.called) && sane(s.ready) && sane(s.reduced) && sane(s.pushed) &&
         sane(s.done) && sane(s.waited);
}

}  // namespace

Resources own_resources(bool all_threads) {
  Resources found;
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) == 0) {
    found.major_faults = static_cast<uint64_t>(usage.ru_majflt);
    const auto nanos = [](const timeval& t) {
      return t.tv_sec * kSecond + t.tv_usec * kMicrosecond;
    };
    found.cpu = nanos(usage.ru_utime) + nanos(usage.ru_stime);
  }
  uint64_t pages = 0;
  if (std::ifstream statm("/proc/self/statm"); statm >> pages >> pages) {
    found.memory = pages * 4096;
  }
  const auto add = [&found](const std::string& path) {
    Nanos on_processor = 0, delay = 0;
    if (std::ifstream file(path); file >> on_processor >> delay) found.run_delay += delay;
  };
  if (!all_threads) {
    add("/proc/self/schedstat");
    return found;
  }
  DIR* const threads = opendir("/proc/self/task");
  if (threads == nullptr) return found;
  while (const dirent* const thread = readdir(threads)) {
    if (thread->d_name[0] != '.') add(concat("/proc/self/task/", thread->d_name, "/schedstat"));
  }
  closedir(threads);
  return found;
}

std::string encode(const Report& report) {
  ByteWriter out;
  out.put(report.sent).put(report.offset).put(report.offset_error);
  put_text(out, report.where);
  out.put(report.age);
  put_text(out, report.stack);
  put_text(out, report.cause);
  out.put(report.rounds).put(report.calls).put(report.in_flight).put(report.credit);
  out.put(report.kept);
  out.put(report.stride);
  const size_t samples = std::min(report.samples.size(), kMostSamples);
  out.put(static_cast<uint32_t>(samples));
  // The latest samples matter most.
  for (size_t i = report.samples.size() - samples; i < report.samples.size(); ++i) {
    put(out, report.samples[i]);
  }
  const Resources& r = report.resources;
  out.put(r.memory).put(r.major_faults).put(r.cpu).put(r.run_delay);
  out.put(report.bytes_sent).put(report.bytes_received).put(report.retransmits);
  const size_t paths = std::min(report.paths.size(), kMostPaths);
  out.put(static_cast<uint32_t>(paths));
  for (size_t i = 0; i < paths; ++i) {
    const PathReport& path = report.paths[i];
    out.put(path.index).put(path.rtt).put(path.shortest_rtt).put(path.retransmits);
  }
  const size_t ranks = std::min(report.lateness.size(), kMostRanks);
  out.put(static_cast<uint32_t>(ranks));
  for (size_t i = 0; i < ranks; ++i) {
    const auto& [rank, late] = report.lateness[i];
    out.put(rank).put(late.calls).put(late.last_calls).put(late.calls_waited);
    out.put(late.segments).put(late.last_segments).put(late.segments_waited);
  }
  out.put(report.sums).put(report.sum_time);
  const size_t missing = std::min(report.missing.size(), kMostMissing);
  out.put(static_cast<uint32_t>(missing));
  for (size_t i = 0; i < missing; ++i) {
    const Missing& one = report.missing[i];
    put_text(out, one.what);
    const size_t count = std::min(one.ranks.size(), kMostMissingRanks);
    out.put(one.by.value_or(kNoRank)).put(one.age).put(static_cast<uint32_t>(count));
    for (size_t n = 0; n < count; ++n) out.put(one.ranks[n]);
  }
  put_groups(out, report.groups);
  out.put(static_cast<uint32_t>(report.operations.size()));
  for (const OperationCount& one : report.operations) {
    out.put(one.collective).put(one.size).put(one.ended).put(one.bytes).put(one.time);
  }
  return out.take();
}

void put_groups(ByteWriter& out, const std::vector<GroupNews>& groups) {
  out.put(static_cast<uint32_t>(groups.size()));
  for (const GroupNews& one : groups) {
    out.put(one.group).put(one.gone).put(one.rounds).put(one.calls).put(one.in_flight);
    out.put(one.age).text(std::string_view(one.name).substr(0, kMostGroupNameBytes));
    out.put(static_cast<uint32_t>(one.ranks.size()));
    for (const uint32_t rank : one.ranks) out.put(rank);
  }
}

std::optional<std::vector<GroupNews>> get_groups(ByteReader& in) {
  std::vector<GroupNews> groups;
  bool sound = true;
  size_t ranks = 0;
  for (uint32_t i = get_count(in, kMostGroupNews, 45, sound); sound && i > 0; --i) {
    GroupNews& one = groups.emplace_back();
    one.group = in.get<uint32_t>();
    one.gone = in.get<uint8_t>() != 0;
    one.rounds = in.get<uint64_t>();
    one.calls = in.get<uint64_t>();
    one.in_flight = in.get<uint64_t>();
    one.age = in.get<Nanos>();
    one.name = printable(in.text(kMostGroupNameBytes));
    sound = sound && one.age >= 0 && sane(one.age);
    for (uint32_t n = get_count(in, kMostGroupRanks - ranks, 4, sound); n > 0; --n) {
      one.ranks.push_back(in.get<uint32_t>());
    }
    ranks += one.ranks.size();
  }
  if (!sound || !in.ok()) return std::nullopt;
  return groups;
}

Result<Report> decode_report(std::string_view payload) {
  ByteReader in(payload);
  Report report;
  bool sound = true;
  report.sent = in.get<Nanos>();
  report.offset = in.get<Nanos>();
  report.offset_error = in.get<Nanos>();
  report.where = get_text(in);
  report.age = in.get<Nanos>();
  report.stack = get_text(in);
  report.cause = get_text(in);
  report.rounds = in.get<uint64_t>();
  report.calls = in.get<uint64_t>();
  report.in_flight = in.get<uint64_t>();
  report.credit = in.get<uint64_t>();
  report.kept = in.get<uint64_t>();
  report.stride = in.get<uint32_t>();
  for (uint32_t i = get_count(in, kMostSamples, 76, sound); i > 0; --i) {
    report.samples.push_back(get_sample(in));
    sound = sound && sane(report.samples.back());
  }
  Resources& r = report.resources;
  r.memory = in.get<uint64_t>();
  r.major_faults = in.get<uint64_t>();
  r.cpu = in.get<Nanos>();
  r.run_delay = in.get<Nanos>();
  report.bytes_sent = in.get<uint64_t>();
  report.bytes_received = in.get<uint64_t>();
  report.retransmits = in.get<uint64_t>();
  for (uint32_t i = get_count(in, kMostPaths, 28, sound); i > 0; --i) {
    PathReport& path = report.paths.emplace_back();
    path.index = in.get<uint32_t>();
    path.rtt = in.get<Nanos>();
    path.shortest_rtt = in.get<Nanos>();
    path.retransmits = in.get<uint64_t>();
    sound = sound && sane(path.rtt) && sane(path.shortest_rtt);
  }
  for (uint32_t i = get_count(in, kMostRanks, 52, sound); i > 0; --i) {
    auto& [rank, late] = report.lateness.emplace_back();
    rank = in.get<uint32_t>();
    late.calls = in.get<uint64_t>();
    late.last_calls = in.get<uint64_t>();
    late.calls_waited = in.get<Nanos>();
    late.segments = in.get<uint64_t>();
    late.last_segments = in.get<uint64_t>();
    late.segments_waited = in.get<Nanos>();
    sound = sound && sane(late.calls_waited) && sane(late.segments_waited);
  }
  report.sums = in.get<uint64_t>();
  report.sum_time = in.get<Nanos>();
  for (uint32_t i = get_count(in, kMostMissing, 20, sound); i > 0; --i) {
    Missing& one = report.missing.emplace_back();
    one.what = get_text(in);
    if (const auto by = in.get<uint32_t>(); by != kNoRank) one.by = by;
    one.age = in.get<Nanos>();
    sound = sound && sane(one.age);
    for (uint32_t n = get_count(in, kMostMissingRanks, 4, sound); n > 0; --n) {
      one.ranks.push_back(in.get<uint32_t>());
    }
  }
  auto groups = get_groups(in);
  sound = sound && groups;
  if (sound) report.groups = std::move(*groups);
  for (uint32_t i = get_count(in, kCollectives.size() * kMessageSizes.size(), 26, sound); i > 0;
       --i) {
    OperationCount& one = report.operations.emplace_back();
    one.collective = in.get<uint8_t>();
    one.size = in.get<uint8_t>();
    one.ended = in.get<uint64_t>();
    one.bytes = in.get<uint64_t>();
    one.time = in.get<Nanos>();
    sound = sound && one.time >= 0 && sane(one.time);
  }
  for (const Nanos time : {report.sent, report.offset, report.offset_error, report.age,
                           report.sum_time, r.cpu, r.run_delay}) {
    sound = sound && sane(time);
  }
  if (!sound || !in.done() || report.stride == 0) return malformed("report");
  return report;
}

std::map<uint32_t, std::string> states_of(const RankTexts& texts) {
  std::map<uint32_t, std::string> states;
  for (const RankText& one : texts) {
    if (!one.text.empty()) states.emplace(one.rank, one.text);
  }
  return states;
}

std::string encode(const RankTexts& texts) {
  ByteWriter out;
  const size_t count = std::min(texts.size(), kMostRankTexts);
  out.put(static_cast<uint32_t>(count));
  for (size_t i = 0; i < count; ++i) {
    out.put(texts[i].rank);
    put_text(out, texts[i].text);
    out.put(texts[i].usual).put(texts[i].late);
  }
  return out.take();
}

Result<RankTexts> decode_rank_texts(std::string_view payload) {
  ByteReader in(payload);
  bool sound = true;
  RankTexts texts;
  for (uint32_t i = get_count(in, kMostRankTexts, 24, sound); i > 0; --i) {
    RankText& one = texts.emplace_back();
    one.rank = in.get<uint32_t>();
    one.text = get_text(in);
    one.usual = in.get<Nanos>();
    one.late = in.get<Nanos>();
    sound = sound && sane(one.usual) && sane(one.late);
  }
  if (!sound || !in.done()) return malformed("states of ranks");
  return texts;
}

}  // namespace herring::observe
