#include "observe/monitor.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace herring::observe {
namespace {

// A rank that waits or computes for this long is worth telling of.
constexpr Nanos kStalled = kSecond;
// Steps in which a rank must be late to be late chronically, and how many there must be.
constexpr double kChronic = 0.5;
constexpr uint32_t kFewestRounds = 10;
// Parts of the time that are worth a line.
constexpr double kWorthPart = 0.05, kBinds = 0.1;
// Rates, per second, from which the system explains why a rank is late.
constexpr double kSwapping = 20, kStarved = 0.15;
constexpr Nanos kOnceLate = 50 * kMillisecond;

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Returns the median of sorted values without one of them.
double median_without(const std::vector<double>& sorted, double one) {
  if (sorted.size() < 2) return 0;
  const size_t middle = (sorted.size() - 2) / 2;
  return sorted[one <= sorted[middle] ? middle + 1 : middle];
}

}  // namespace

Monitor::Monitor(Roster roster, Options options, Nanos now)
    : roster_(std::move(roster)), options_(options), began_(now), ranks_(roster_.ranks.size()),
      servers_(roster_.servers.size()), rounds_(static_cast<uint32_t>(roster_.ranks.size())),
      line_due_(now + std::min(options.report_every, 60 * kSecond)) {
  for (auto* all : {&ranks_, &servers_}) {
    for (Known& one : *all) one.process_heard = one.system_heard = now;
  }
}

const Monitor::Known& Monitor::known(const Process& who) const {
  return (who.is_server ? servers_ : ranks_)[who.index];
}
Monitor::Known& Monitor::known(const Process& who) {
  return (who.is_server ? servers_ : ranks_)[who.index];
}

void Monitor::report(const Process& from, Report report, Nanos now) {
  Known& one = known(from);
  if (!from.is_server) {
    const Nanos error = std::max<Nanos>(report.offset_error, 0);
    for (RoundSample sample : report.samples) {
      for (Nanos* time : {&sample.before, &sample.called, &sample.ready, &sample.reduced,
                          &sample.pushed, &sample.done}) {
        if (*time != 0) *time += report.offset;
      }
      rounds_.add(from.index, sample, error, now);
    }
    report.samples.clear();
    if (!report.cause.empty()) {
      // Old observations fade.
      for (auto it = one.causes.begin(); it != one.causes.end();) {
        it->second -= it->second > 20 ? 1 : 0;
        it = it->second == 0 ? one.causes.erase(it) : std::next(it);
      }
      if (one.causes.size() < 8 || one.causes.count(report.cause) != 0) {
        one.causes[report.cause] += 2;
      }
    }
  }
  const size_t kept = one.earlier.size();
  if (kept >= 2 && one.earlier[kept - 1].at - one.earlier[kept - 2].at < kSpacing) {
    one.earlier.pop_back();
  }
  one.earlier.push_back({now, report.resources, report.retransmits, report.rounds,
                         report.lateness});
  while (one.earlier.size() > 2 && now - one.earlier[1].at >= kMemory) one.earlier.pop_front();
  one.report = std::move(report);
  one.reported = true;
  one.at = now;
}

void Monitor::heard(const Process& who, Nanos process, Nanos system) {
  Known& one = known(who);
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
  Known& one = known(who);
  (left ? one.left : one.lost) = true;
  ++epoch_;
  one.earlier.clear();
  one.causes.clear();
  one.report.paths = {};
  one.report.lateness = {};
  one.report.missing = {};
}

uint32_t Monitor::living() const {
  return static_cast<uint32_t>(std::count_if(ranks_.begin(), ranks_.end(), [](const Known& one) {
    return !one.left && !one.lost;
  }));
}

void Monitor::tick(Nanos now) { rounds_.compare(living(), now); }

State Monitor::state_of(const Process& who, Nanos now) const {
  const Known& one = known(who);
  if (one.left) return State::kLeft;
  if (one.lost) return State::kLost;
  if (now - one.system_heard > options_.silent_after) return State::kUnreachable;
  if (now - one.process_heard > options_.silent_after) return State::kStopped;
  if (!one.reported) return State::kStarting;
  if (now - one.at > 4 * options_.silent_after) return State::kSilent;
  if (who.is_server) return State::kServing;
  return one.report.where.empty() ? State::kComputing : State::kWaiting;
}

std::string Monitor::describe(const Process& who, Nanos now) const {
  const Known& one = known(who);
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
  const bool somebody_waits = std::any_of(ranks_.begin(), ranks_.end(), [&](const Known& one) {
    return one.reported && !one.left && !one.lost && !one.report.where.empty() &&
           one.report.age + now - one.at > kStalled / 2;
  });
  for (uint32_t rank = 0; rank < ranks_.size() && texts.size() < kMostRankTexts; ++rank) {
    const Process who{false, rank};
    const State state = state_of(who, now);
    const Known& one = ranks_[rank];
    const bool stalls = state == State::kComputing && somebody_waits &&
                        one.report.age + now - one.at > kStalled / 2;
    const bool mute = state == State::kStopped || state == State::kUnreachable ||
                      state == State::kSilent;
    if (stalls || mute) texts.push_back({rank, describe(who, now), 0});
  }
  // A rank that is late in most steps learns of it, so that it looks where its code is.
  for (uint32_t rank = 0; rank < ranks_.size() && texts.size() < kMostRankTexts; ++rank) {
    const Rounds::Late late = rounds_.late(rank);
    if (late.late < 3 || late.share() < 0.1 || state_of({false, rank}, now) > State::kWaiting) {
      continue;
    }
    const bool told = std::any_of(texts.begin(), texts.end(), [rank](const auto& text) {
      return text.rank == rank;
    });
    if (!told) texts.push_back({rank, {}, rounds_.usual_work(rank)});
  }
  return texts;
}

Monitor::Change Monitor::change(const Known& known) {
  Change change;
  if (known.earlier.size() < 2) return change;
  const Past& before = known.earlier.front();
  const Past& latest = known.earlier.back();
  change.seconds = to_seconds(latest.at - before.at);
  if (change.seconds <= 0) return {};
  const auto rate = [&](auto from, auto to) {
    return to > from ? static_cast<double>(to - from) / change.seconds : 0;
  };
  change.major_faults = rate(before.resources.major_faults, latest.resources.major_faults);
  change.run_delay = rate(before.resources.run_delay, latest.resources.run_delay) * 1e-9;
  change.retransmits = rate(before.retransmits, latest.retransmits);
  return change;
}

std::vector<Monitor::LateAtServers> Monitor::late_at_servers() const {
  std::vector<LateAtServers> all(ranks_.size());
  for (const Known& server : servers_) {
    if (server.earlier.size() < 2) continue;
    const auto add = [&all](const Past& report, double sign) {
      for (const auto& [rank, late] : report.lateness) {
        if (rank >= all.size()) continue;
        LateAtServers& sum = all[rank];
        sum.calls += sign * static_cast<double>(late.calls);
        sum.last_calls += sign * static_cast<double>(late.last_calls);
        sum.calls_waited += sign * to_seconds(late.calls_waited);
        sum.segments += sign * static_cast<double>(late.segments);
        sum.last_segments += sign * static_cast<double>(late.last_segments);
        sum.segments_waited += sign * to_seconds(late.segments_waited);
      }
    };
    add(server.earlier.back(), 1);
    add(server.earlier.front(), -1);
  }
  return all;
}

Monitor::Usual Monitor::usual() const {
  Usual usual;
  const auto rates = [](const std::vector<Known>& all, std::vector<double>& faults,
                        std::vector<double>& delays) {
    for (const Known& one : all) {
      if (!one.reported) continue;
      const Change found = change(one);
      faults.push_back(found.major_faults);
      delays.push_back(found.run_delay);
    }
    std::sort(faults.begin(), faults.end());
    std::sort(delays.begin(), delays.end());
  };
  rates(ranks_, usual.rank_faults, usual.rank_delays);
  rates(servers_, usual.server_faults, usual.server_delays);
  usual.at_servers = late_at_servers();
  std::vector<double> shares;
  for (const LateAtServers& one : usual.at_servers) {
    if (one.segments > 0) ++usual.pushing;
    shares.push_back(ratio(one.last_segments, one.segments));
  }
  usual.last_segments = median_of(std::move(shares));
  return usual;
}

// Why a process is slow by itself, as far as its system and its code tell. "compute" if nothing
// else is known.
std::string Monitor::own_cause(const Process& who, const Usual& usual, Nanos now) const {
  const Known& one = known(who);
  if (now - one.silence_at < kMemory && one.longest_silence > options_.silent_after) {
    return "stopped";
  }
  const Change own = change(one);
  const auto& faults = who.is_server ? usual.server_faults : usual.rank_faults;
  const auto& delays = who.is_server ? usual.server_delays : usual.rank_delays;
  if (own.major_faults > kSwapping &&
      own.major_faults > 4 * median_without(faults, own.major_faults)) {
    return "swapping";
  }
  const auto most = std::max_element(one.causes.begin(), one.causes.end(),
                                     [](const auto& a, const auto& b) {
                                       return a.second < b.second;
                                     });
  if (most != one.causes.end() && most->first != "compute") return most->first;
  if (own.run_delay > kStarved && own.run_delay > 3 * median_without(delays, own.run_delay)) {
    return "starved";
  }
  return "compute";
}

void Monitor::judge_rank(Picture& picture, uint32_t rank, const Usual& usual, Nanos now) const {
  Picture::Rank& judged = picture.ranks[rank];
  const double step = to_seconds(picture.split.step);
  const Rounds::Late late = judged.late = rounds_.late(rank);
  judged.score = rounds_.score(rank);
  judged.late_share = late.share();
  judged.late_by = late.median;
  const bool worth = to_seconds(late.median) > kWorthPart * step;
  judged.chronic = late.rounds >= kFewestRounds && late.share() >= kChronic && worth;
  judged.once = !judged.chronic && late.late > 0 && late.most >= kOnceLate &&
                late.most > 2 * picture.split.step;
  if (judged.chronic || judged.once) {
    judged.cause = late.received > late.computed ? "link" : own_cause({false, rank}, usual, now);
    if (judged.once) judged.late_by = late.most;
    return;
  }
  // A rank whose segments come last at servers although its data was ready in time.
  const LateAtServers& own = usual.at_servers[rank];
  const uint32_t pushing = usual.pushing;
  const double share = ratio(own.last_segments, own.segments);
  const double tail = ratio(static_cast<double>(picture.split.tail),
                            static_cast<double>(picture.split.step));
  const double seconds = change(ranks_[rank]).seconds;
  if (pushing >= 2 && own.segments >= 20 && share > 1.4 / pushing && share >= 0.35 &&
      share > 3 * usual.last_segments - (pushing == 2 ? share : 0) &&
      (picture.compared == 0 || tail > kBinds) && own.segments_waited > kWorthPart * seconds) {
    judged.chronic = true;
    judged.cause = "link";
    judged.late_share = share;
    judged.late_by = static_cast<Nanos>(
        1e9 * ratio(own.segments_waited, std::max(1.0, picture.rounds_per_second * seconds)));
    return;
  }
  // Jobs without planned rounds: who makes each call last?
  if (picture.compared > 0 || own.calls < kFewestRounds) return;
  const double last = ratio(own.last_calls, own.calls);
  const double by = ratio(own.calls_waited, own.last_calls);
  if (last >= kChronic && by > to_seconds(kMillisecond) &&
      own.calls_waited > kWorthPart * seconds) {
    judged.chronic = true;
    judged.in_steps = false;
    judged.late_share = last;
    judged.late_by = static_cast<Nanos>(by * 1e9);
    judged.cause = own_cause({false, rank}, usual, now);
  }
}

void Monitor::judge_binding(Picture& picture) const {
  const Rounds::Split& split = picture.split;
  const auto part = [&split](Nanos time) {
    return ratio(static_cast<double>(time), static_cast<double>(split.step));
  };
  if (picture.compared < 3 || split.step <= 0) return;
  const double ranks = part(split.ranks), node = part(std::min(split.node_stage, split.tail));
  const double network = std::max(part(split.tail) - node, 0.0);
  const auto binds = [&picture](Picture::Binds what, double share) {
    picture.binds = what;
    picture.binds_share = std::min(share, 1.0);
  };
  binds(Picture::Binds::kCompute, std::max(1 - ranks - node - network, 0.0));
  if (std::max({ranks, node, network}) < kBinds) return;
  if (ranks >= std::max(node, network) && ranks > kBinds) {
    const auto late = std::max_element(
        picture.ranks.begin(), picture.ranks.end(), [](const auto& a, const auto& b) {
          return a.late.share() * static_cast<double>(a.late.median) <
                 b.late.share() * static_cast<double>(b.late.median);
        });
    if (late != picture.ranks.end() && late->late.late > 0) {
      binds(Picture::Binds::kRank, ranks);
      picture.binds_who =
          roster_.name({false, static_cast<uint32_t>(late - picture.ranks.begin())});
    }
  } else if (network >= node) {
    if (network > picture.binds_share) binds(Picture::Binds::kNetwork, network);
    const auto tail = static_cast<Nanos>(network * static_cast<double>(split.step));
    if (const auto more = more_servers(roster_.nodes, roster_.dedicated(), split.step, tail);
        more && network > 0.2) {
      picture.advice = concat(more->more, more->more == 1 ? " more server" : " more servers",
                              " would make a step ", std::round(more->times * 10) / 10,
                              " times as fast");
    }
  } else if (node > picture.binds_share) {
    binds(Picture::Binds::kNodeStage, node);
  }
}

Picture Monitor::picture(Nanos now) const {
  Picture picture;
  picture.roster = &roster_;
  picture.time = options_.unix_zero + to_seconds(now);
  picture.uptime = now - began_;
  picture.epoch = epoch_ + 1;
  picture.split = rounds_.split();
  picture.compared = rounds_.compared();
  const auto fill = [&](Picture::Common& common, const Process& who) {
    const Known& one = known(who);
    common.state = state_of(who, now);
    common.heard = now - one.process_heard;
    common.reported = one.reported;
    common.report = one.report;
    common.report.age += one.reported ? now - one.at : 0;
  };
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    const Known& one = ranks_[rank];
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
  const Usual usual = this->usual();
  const bool somebody_waits = std::any_of(ranks_.begin(), ranks_.end(), [](const Known& one) {
    return !one.left && !one.lost && !one.report.where.empty() && one.report.age > kStalled;
  });
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    Picture::Rank& judged = picture.ranks[rank];
    if (judged.state != State::kLeft && judged.state != State::kLost) {
      judge_rank(picture, rank, usual, now);
    }
    judged.outlier = judged.chronic || judged.once || judged.state == State::kStopped ||
                     judged.state == State::kUnreachable || judged.state == State::kSilent ||
                     judged.state == State::kLost;
    // While others wait, a rank that computes for long is worth a line.
    if (judged.state == State::kComputing && judged.report.age > 3 * kStalled) {
      judged.outlier = judged.outlier || somebody_waits;
    }
  }
  for (uint32_t index = 0; index < servers_.size(); ++index) {
    Picture::Server& server = picture.servers.emplace_back();
    const Process who{true, index};
    fill(server, who);
    if (server.state == State::kStopped) server.cause = "stopped";
    if (server.cause.empty() && server.reported) {
      const std::string cause = own_cause(who, usual, now);
      if (cause != "compute") server.cause = cause;
    }
    server.outlier = !server.cause.empty() || server.state == State::kUnreachable ||
                     server.state == State::kLost || server.state == State::kSilent;
  }
  collect_missing(picture, now);
  judge_binding(picture);
  picture.findings = find(picture);
  return picture;
}

// What servers wait for. A server that was told of twice may know of one operation in two groups.
void Monitor::collect_missing(Picture& picture, Nanos now) const {
  for (const Known& server : servers_) {
    if (!server.reported || server.left || server.lost) continue;
    for (Missing one : server.report.missing) {
      one.age += now - server.at;
      const auto same = std::find_if(picture.missing.begin(), picture.missing.end(),
                                     [&one](const Missing& other) {
                                       return other.what == one.what;
                                     });
      if (same == picture.missing.end()) {
        picture.missing.push_back(std::move(one));
      } else {
        same->age = std::max(same->age, one.age);
        for (const uint32_t rank : one.ranks) {
          if (std::find(same->ranks.begin(), same->ranks.end(), rank) == same->ranks.end()) {
            same->ranks.push_back(rank);
          }
        }
      }
    }
  }
  std::sort(picture.missing.begin(), picture.missing.end(),
            [](const Missing& a, const Missing& b) { return a.age > b.age; });
  for (Missing& one : picture.missing) std::sort(one.ranks.begin(), one.ranks.end());
}

std::vector<std::string> Monitor::due_lines(Nanos now) {
  if (now < line_due_) return {};
  std::vector<std::string> lines = picture(now).findings;
  // If nothing is worth a line now, something may be soon.
  line_due_ = now + (lines.empty() ? std::min(options_.report_every, 10 * kSecond)
                                   : options_.report_every);
  return lines;
}

std::vector<std::string> Monitor::last_lines(Nanos now) const {
  return rounds_.compared() == 0 ? std::vector<std::string>() : picture(now).findings;
}

}  // namespace herring::observe
