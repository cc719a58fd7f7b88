#include "observe/monitor.h"

#include <algorithm>
#include <utility>

#include "observe/deadlock.h"

namespace herring::observe {
namespace {

// What an observation of code weighs when the next one comes.
constexpr double kFading = 0.7;
// How long others must have waited for a rank before a young job is told of it.
constexpr Nanos kWorthALine = kSecond;

}  // namespace

Monitor::Monitor(Roster roster, Options options, Nanos now)
    : roster_(std::move(roster)), options_(options), began_(now), ranks_(roster_.ranks.size()),
      servers_(roster_.servers.size()), rounds_(static_cast<uint32_t>(roster_.ranks.size())),
      groups_(static_cast<uint32_t>(roster_.ranks.size())), last_(roster_.ranks.size()),
      line_due_(now + std::min(options.report_every, 60 * kSecond)) {
  for (auto* all : {&ranks_, &servers_}) {
    for (ProcessState& one : *all) one.process_heard = one.system_heard = now;
  }
}

const Monitor::ProcessState& Monitor::known(const Process& who) const {
  return (who.is_server ? servers_ : ranks_)[who.index];
}
Monitor::ProcessState& Monitor::known(const Process& who) {
  return (who.is_server ? servers_ : ranks_)[who.index];
}

void Monitor::report(const Process& from, Report report, Nanos now) {
  ProcessState& one = known(from);
  if (!from.is_server) {
    const Nanos error = std::max<Nanos>(report.offset_error, 0);
    for (RoundSample sample : report.samples) {
      for (Nanos* time : {&sample.before, &sample.called, &sample.ready, &sample.reduced,
                          &sample.pushed, &sample.done}) {
        if (*time != 0) *time += report.offset;
      }
      note_long_round(from.index, sample, now);
      rounds_.add(from.index, sample, error, now);
      if (sample.done == 0) continue;
      const bool known = report.offset_error >= 0;
      step_ended_ = std::max(step_ended_, known ? std::min(sample.done, now) : now);
    }
    report.samples.clear();
    groups(from, std::exchange(report.groups, {}), now);
    if (report.where.empty() && report.age > kStalled / 4 && !report.cause.empty()) {
      one.stall = {now, 0, report.cause, report.stack};
    }
    if (!report.cause.empty()) {
      // Old observations fade.
      for (auto& [cause, weight] : one.causes) weight *= kFading;
      if (one.causes.size() < 8 || one.causes.count(report.cause) != 0) {
        one.causes[report.cause] += 1;
      }
    }
  }
  const size_t kept = one.earlier.size();
  if (kept >= 2 && one.earlier[kept - 1].at - one.earlier[kept - 2].at < kSpacing) {
    one.earlier.pop_back();
  }
  one.earlier.push_back({now, report.resources, report.retransmits, report.rounds,
                         report.lateness, report.paths});
  while (one.earlier.size() > 2 && now - one.earlier[1].at >= kMemory) one.earlier.pop_front();
  one.report = std::move(report);
  one.reported = true;
  one.at = now;
}

void Monitor::groups(const Process& from, const std::vector<GroupNews>& news, Nanos now) {
  if (from.is_server) return;
  for (const GroupNews& one : news) groups_.add(from.index, one, now);
}

// Why a rank is late by far is known best just afterwards.
void Monitor::note_long_round(uint32_t rank, const RoundSample& sample, Nanos now) {
  const Nanos work = sample.before == 0 ? 0 : sample.ready - sample.before;
  if (work < kOnceLate || work < kOnceSteps * rounds_.usual_work(rank)) return;
  ProcessState& one = ranks_[rank];
  one.once = {now, sample.round, own_cause({false, rank}, usual_, now), {}};
  const bool silent = now - one.process_heard > options_.silent_after;
  if (silent) one.once.cause = "stopped";
  if (one.once.cause != "stopped" && now - one.stall.at < work + 2 * kSecond) {
    one.once.cause = one.stall.cause;
    one.once.stack = one.stall.stack;
  }
}

void Monitor::heard(const Process& who, Nanos process, Nanos system) {
  ProcessState& one = known(who);
  if (process > one.process_heard) {
    const Nanos silence = process - one.process_heard;
    // A pause of the process explains why it was late for a while.
    if (silence > one.longest_silence || process - one.silence_at > kMemory) {
      one.longest_silence = silence;
      one.silence_at = process;
    }
  }
  one.process_heard = std::max(one.process_heard, process);
  one.system_heard = std::max({one.system_heard, system, process});
}

void Monitor::gone(const Process& who, bool left) {
  ProcessState& one = known(who);
  (left ? one.left : one.lost) = true;
  ++epoch_;
  if (!who.is_server) groups_.gone(who.index);
  one.earlier.clear();
  one.causes.clear();
  one.report.paths = {};
  one.report.lateness = {};
  one.report.missing = {};
}

void Monitor::server_lost(uint32_t server, Nanos now) {
  gone({true, server}, false);
  servers_[server].lost_at = now;
  servers_[server].lost_host = roster_.servers[server].host;
}

void Monitor::server_replaced(uint32_t server, const std::string& host, const std::string& address,
                              int64_t pid, Nanos now) {
  ProcessState& one = servers_[server];
  ProcessState fresh;
  fresh.lost_at = one.lost_at;
  fresh.lost_host = std::move(one.lost_host);
  fresh.replaced_at = fresh.process_heard = fresh.system_heard = now;
  one = std::move(fresh);
  roster_.servers[server].host = host;
  roster_.servers[server].address = address;
  roster_.servers[server].pid = pid;
  ++epoch_;
}

uint32_t Monitor::living() const {
  return static_cast<uint32_t>(std::ranges::count_if(
      ranks_, [](const ProcessState& one) { return !one.left && !one.lost; }));
}

void Monitor::tick(Nanos now) {
  rounds_.compare(living(), now);
  usual_ = usual();
}

State Monitor::state_of(const Process& who, Nanos now) const {
  const ProcessState& one = known(who);
  if (one.left) return State::kLeft;
  if (one.lost) return State::kLost;
  if (now - one.system_heard > options_.silent_after) return State::kUnreachable;
  // The process is only known to be silent if its system was heard after it for a while.
  if (now - one.process_heard > options_.silent_after &&
      one.system_heard - one.process_heard > options_.silent_after / 2) {
    return State::kStopped;
  }
  if (!one.reported) return State::kStarting;
  if (now - one.at > 4 * options_.silent_after) return State::kSilent;
  if (who.is_server) return State::kServing;
  return one.report.where.empty() ? State::kComputing : State::kWaiting;
}

std::string Monitor::describe(const Process& who, Nanos now) const {
  const ProcessState& one = known(who);
  const auto ago = [now](Nanos then) { return in_seconds(std::max<Nanos>(now - then, 0)); };
  switch (state_of(who, now)) {
    case State::kLeft: return "has left the job";
    case State::kLost: return "is lost";
    case State::kUnreachable:
      return concat("is unreachable: its host has not answered for ", ago(one.system_heard));
    case State::kStopped:
      return concat("is stopped or starved: its process was not heard for ",
                    ago(one.process_heard), ", though its host answers");
    case State::kStarting: return "has not reported yet";
    case State::kSilent: return concat("has not reported for ", ago(one.at));
    case State::kServing: return "serves";
    case State::kWaiting:
      return concat("has waited in ", one.report.where, " for ",
                    in_seconds(one.report.age + now - one.at));
    case State::kComputing: {
      std::string text =
          concat("has been computing for ", in_seconds(one.report.age + now - one.at));
      const std::string& cause = one.report.cause;
      if (!cause.empty() && cause != "compute") text += concat(", in its ", cause);
      if (!one.report.stack.empty()) text += concat(" (", one.report.stack, ")");
      return text;
    }
  }
  return {};
}

RankTexts Monitor::rank_texts(Nanos now) const {
  RankTexts texts;
  const bool somebody_waits = std::ranges::any_of(ranks_, [&](const ProcessState& one) {
    return one.reported && !one.left && !one.lost && !one.report.where.empty() &&
           one.report.age + now - one.at > kStalled / 2;
  });
  for (uint32_t rank = 0; rank < ranks_.size() && texts.size() < kMostRankTexts; ++rank) {
    const Process who{false, rank};
    const State state = state_of(who, now);
    const ProcessState& one = ranks_[rank];
    const bool stalls = state == State::kComputing && somebody_waits &&
                        one.report.age + now - one.at > kStalled / 2;
    if (stalls || mute(who, now)) texts.push_back({rank, describe(who, now), 0});
  }
  // A rank that is late in most steps learns of it, so that it looks where its code is.
  for (uint32_t rank = 0; rank < ranks_.size() && texts.size() < kMostRankTexts; ++rank) {
    const Rounds::Late late = rounds_.late(rank);
    if (late.late < 3 || late.share() < 0.1 || state_of({false, rank}, now) > State::kWaiting) {
      continue;
    }
    auto told = std::find_if(texts.begin(), texts.end(), [rank](const auto& text) {
      return text.rank == rank;
    });
    if (told == texts.end()) told = texts.insert(texts.end(), RankText{rank, {}, 0, 0});
    told->usual = rounds_.usual_work(rank);
    told->late = static_cast<Nanos>(std::max(late.mean, 0.0));
  }
  // Those who wait for a server say so.
  for (uint32_t index = 0; index < servers_.size(); ++index) {
    const Process server{true, index};
    if (!mute(server, now) || roster_.is_in_rank(index)) continue;
    for (uint32_t rank = 0; rank < ranks_.size() && texts.size() < kMostRankTexts; ++rank) {
      const bool told = std::any_of(texts.begin(), texts.end(), [rank](const auto& text) {
        return text.rank == rank && !text.text.empty();
      });
      if (told || state_of({false, rank}, now) != State::kWaiting) continue;
      texts.push_back({rank, concat("waits for ", roster_.name(server), ", which ",
                                    describe(server, now)), 0});
    }
  }
  return texts;
}

bool Monitor::mute(const Process& who, Nanos now) const {
  const State state = state_of(who, now);
  return state == State::kStopped || state == State::kUnreachable || state == State::kSilent;
}

std::optional<std::string> Monitor::deadlock(Nanos now) const {
  std::vector<Stillness> all;
  for (const auto* processes : {&ranks_, &servers_}) {
    for (const ProcessState& one : *processes) {
      const Report& report = one.report;
      Still still = report.still;
      if (still.until != 0) {
        still.since += report.offset;
        still.until += report.offset;
      }
      all.push_back({!one.left && !one.lost, still, report.offset_error});
    }
  }
  if (!is_deadlocked(all, now)) return std::nullopt;
  std::vector<Waiting> waits;
  for (const ProcessState& one : ranks_) {
    waits.push_back({one.report.where, one.report.age + now - one.at});
  }
  return describe_deadlock(waits);
}

Picture Monitor::picture(Nanos now, bool whole) const {
  Picture picture;
  picture.roster = &roster_;
  picture.time = options_.unix_zero + to_seconds(now);
  picture.uptime = now - began_;
  picture.epoch = epoch_ + 1;
  picture.split = rounds_.split();
  picture.compared = rounds_.compared();
  if (step_ended_ != 0) picture.step_ended = now - step_ended_;
  // Steps that are usually long, or each tenth one of which is, do not stand still.
  const Nanos usual_step = std::max(kOnceSteps * picture.split.step, 3 * picture.split.most / 2);
  picture.stands = picture.split.step > 0 && picture.step_ended > kStalled + usual_step;
  const auto fill = [&](Picture::Common& common, const Process& who) {
    const ProcessState& one = known(who);
    common.state = state_of(who, now);
    common.heard = now - one.process_heard;
    common.reported = one.reported;
    common.report = one.report;
    common.report.age += one.reported ? now - one.at : 0;
  };
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    const ProcessState& one = ranks_[rank];
    fill(picture.ranks.emplace_back(), {false, rank});
    picture.rounds = std::max(picture.rounds, one.report.rounds);
    if (one.earlier.size() >= 2) {
      const Past& before = one.earlier.front();
      const Past& latest = one.earlier.back();
      if (latest.at > before.at && latest.rounds >= before.rounds) {
        picture.rounds_per_second =
            std::max(picture.rounds_per_second, static_cast<double>(latest.rounds - before.rounds) /
                                                    to_seconds(latest.at - before.at));
      }
    }
  }
  if (picture.stands) picture.rounds_per_second = 0;
  const Usual usual = this->usual();
  const Compared compared = compare();
  picture.typical_rtt = compared.links.typical;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    const State state = picture.ranks[rank].state;
    if (state != State::kLeft && state != State::kLost) {
      judge_rank(picture, rank, usual, compared, now);
    }
  }
  for (uint32_t index = 0; index < servers_.size(); ++index) {
    Picture::Server& server = picture.servers.emplace_back();
    fill(server, {true, index});
    const ProcessState& one = servers_[index];
    if (one.lost_at != 0) server.lost = now - one.lost_at;
    if (one.replaced_at >= one.lost_at && one.lost_at != 0) server.replaced = now - one.replaced_at;
    server.lost_host = one.lost_host;
    judge_server(picture, index, usual, compared.links, now);
  }
  find_missing(picture, now);
  blame_missing(picture, now);
  for (Picture::Rank& judged : picture.ranks) {
    judged.outlier = judged.outlier || judged.chronic || judged.once ||
                     judged.state == State::kStopped || judged.state == State::kUnreachable ||
                     judged.state == State::kSilent || judged.state == State::kLost;
    if (judged.state == State::kStopped) judged.cause = "stopped";
  }
  picture.groups = groups_.views(now, [&picture](uint32_t rank) {
    const Picture::Rank& one = picture.ranks[rank];
    return one.state == State::kWaiting && one.report.age >= kStalled;
  });
  add_operations(picture);
  if (whole || !picture.stands) judge_binding(picture);
  picture.findings = find(picture);
  return picture;
}

// Adds up what all ranks have counted.
void Monitor::add_operations(Picture& picture) const {
  std::map<std::pair<uint8_t, uint8_t>, Picture::Operation> sums;
  for (const ProcessState& one : ranks_) {
    for (const OperationCount& counted : one.report.operations) {
      if (counted.collective >= kCollectives.size() || counted.size >= kMessageSizes.size()) {
        continue;
      }
      Picture::Operation& sum = sums[{counted.collective, counted.size}];
      sum.collective = kCollectives[counted.collective];
      sum.size = kMessageSizes[counted.size];
      sum.ended += counted.ended;
      sum.bytes += counted.bytes;
      sum.seconds += to_seconds(counted.time);
    }
  }
  for (const auto& [of, sum] : sums) picture.operations.push_back(sum);
}

std::vector<std::string> Monitor::due_lines(Nanos now) {
  if (now < std::min(line_due_, judgement_due_)) return {};
  const Picture picture = this->picture(now);
  last_.take(picture);
  judgement_due_ = now + kSecond;
  std::vector<std::string> lines = picture.findings;
  if (now < line_due_) {
    // While a job is young, only a rank for which each step waits is worth a line, once the others
    // have waited for it for a while.
    if (!young_ || !picture.binds_rank) return {};
    const Rounds::Late& late = picture.ranks[*picture.binds_rank].late;
    if (late.late * late.median < kWorthALine) return {};
    std::erase_if(lines, [&picture](const std::string& line) {
      return !line.starts_with(picture.binds_who + " ");
    });
    if (lines.empty()) return {};
  }
  young_ = false;
  // If nothing is worth a line now, something may be soon.
  line_due_ = now + (lines.empty() ? std::min(options_.report_every, kSecond)
                                   : options_.report_every);
  return lines;
}

std::vector<std::string> Monitor::last_lines(Nanos now) const {
  return rounds_.compared() == 0 ? std::vector<std::string>() : picture(now, true).findings;
}

}  // namespace herring::observe
