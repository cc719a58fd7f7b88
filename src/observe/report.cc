#include "observe/report.h"

#include <dirent.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "base/fields.h"
#include "observe/group_fields.h"

namespace herring::observe {
namespace {

// A report must fit into a message to the rendezvous, which has at most 1 MiB.
constexpr size_t kMostRanks = 1 << 13, kMostMissingRanks = 1024;
constexpr uint32_t kNoRank = ~0u;

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

template <typename Io>
void fields(Io& io, Of<Io, RoundSample>& s) {
  io(s.group, s.stream, s.round);
  io.signed_times(s.before, s.called, s.ready, s.reduced, s.pushed, s.done, s.waited);
  io(s.bytes);
}

template <typename Io>
void fields(Io& io, Of<Io, Resources>& r) {
  io(r.memory, r.major_faults);
  io.signed_times(r.cpu, r.run_delay);
}

template <typename Io>
void fields(Io& io, Of<Io, PathReport>& path) {
  io(path.index);
  io.signed_times(path.rtt, path.shortest_rtt);
  io(path.retransmits);
}

template <typename Io>
void fields(Io& io, Of<Io, Lateness>& late) {
  io(late.calls, late.last_calls);
  io.signed_times(late.calls_waited);
  io(late.segments, late.last_segments);
  io.signed_times(late.segments_waited);
}

template <typename Io>
void fields(Io& io, Of<Io, Missing>& one) {
  io.people(one.what, kMostTextBytes);
  uint32_t by = one.by.value_or(kNoRank);
  io(by);
  if constexpr (Io::kReads) {
    if (by != kNoRank) one.by = by;
  }
  io.signed_times(one.age);
  io.first(one.ranks, kMostMissingRanks, [](auto& io, auto& rank) { io(rank); });
}

template <typename Io>
void fields(Io& io, Of<Io, OperationCount>& one) {
  io(one.collective, one.size, one.ended, one.bytes);
  io.times(one.time);
}

template <typename Io>
void fields(Io& io, Of<Io, Report>& report) {
  constexpr auto whole = [](auto& io, auto& one) { io(one); };
  io.signed_times(report.sent, report.offset, report.offset_error);
  io.signed_times(report.still.since, report.still.until);
  io.people(report.where, kMostTextBytes);
  io.signed_times(report.age);
  io.people(report.stack, kMostTextBytes);
  io.people(report.cause, kMostTextBytes);
  io(report.rounds, report.calls, report.in_flight, report.credit, report.kept, report.stride);
  io.check(report.stride > 0);
  io.last(report.samples, kMostSamples, whole);  // the latest samples matter most
  io(report.resources, report.bytes_sent, report.bytes_received, report.retransmits);
  io.first(report.paths, kMostPaths, whole);
  io.first(report.lateness, kMostRanks, [](auto& io, auto& one) { io(one.first, one.second); });
  io(report.sums);
  io.signed_times(report.sum_time);
  io.first(report.missing, kMostMissing, whole);
  group_fields(io, report.groups);
  io.list(report.operations, kCollectives.size() * kMessageSizes.size());
}

std::string encode(const Report& report) { return write_fields(report); }

Result<Report> decode_report(std::string_view payload) {
  return read_fields<Report>(payload, "report");
}

std::map<uint32_t, std::string> states_of(const RankTexts& texts) {
  std::map<uint32_t, std::string> states;
  for (const RankText& one : texts) {
    if (!one.text.empty()) states.emplace(one.rank, one.text);
  }
  return states;
}

template <typename Io>
void fields(Io& io, Of<Io, RankText>& one) {
  io(one.rank);
  io.people(one.text, kMostTextBytes);
  io.signed_times(one.usual, one.late);
}

std::string encode(const RankTexts& texts) {
  FieldWriter out;
  out.first(texts, kMostRankTexts, [](auto& io, auto& one) { io(one); });
  return out.take();
}

Result<RankTexts> decode_rank_texts(std::string_view payload) {
  FieldReader in(payload);
  RankTexts texts;
  in.list(texts, kMostRankTexts);
  if (!in.done()) return breach("malformed states of ranks");
  return texts;
}

}  // namespace herring::observe
