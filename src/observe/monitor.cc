#include "observe/monitor.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace herring::observe {
namespace {

// A rank that waits or computes for this long is worth telling of.
constexpr Nanos kStalled = kSecond;
// Steps in which a rank must be late to be late chronically, and how many there must be.
constexpr double kChronic = 0.4;
constexpr uint32_t kFewestRounds = 10;
// The latest rounds, in which it is seen early that a rank has become late.
constexpr size_t kLatestRounds = 16;
// What an observation of code weighs when the next one comes.
constexpr double kFading = 0.7;
// Parts of the time that are worth a line.
constexpr double kWorthPart = 0.05, kBinds = 0.1;
// Rates, per second, from which the system explains why a rank is late.
constexpr double kSwapping = 20, kStarved = 0.15;
constexpr Nanos kOnceLate = 250 * kMillisecond;
constexpr Nanos kOnceSteps = 3;
// The latest reports whose round trips count.
constexpr size_t kReportsOfLinks = 3;

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
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
      note_long_round(from.index, sample, now);
      rounds_.add(from.index, sample, error, now);
    }
    report.samples.clear();
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
  one.earlier.emplace_back(now, report);
  while (one.earlier.size() > 2 && now - one.earlier[1].first >= kMemory) one.earlier.pop_front();
  one.report = std::move(report);
  one.reported = true;
  one.at = now;
}

// Why a rank is late by far is known best just afterwards.
void Monitor::note_long_round(uint32_t rank, const RoundSample& sample, Nanos now) {
  const Nanos work = sample.before == 0 ? 0 : sample.ready - sample.before;
  if (work < kOnceLate || work < kOnceSteps * rounds_.usual_work(rank)) return;
  Known& one = ranks_[rank];
  one.once = {now, sample.round, own_cause({false, rank}, now), {}};
  const bool silent = now - one.process_heard > options_.silent_after;
  if (silent) one.once.cause = "stopped";
  if (one.once.cause != "stopped" && now - one.stall.at < work + 2 * kSecond) {
    one.once.cause = one.stall.cause;
    one.once.stack = one.stall.stack;
  }
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
      return concat("waits in ", one.report.where, " since ",
                    in_seconds(one.report.age + now - one.at));
    case State::kComputing: {
      std::string text = concat("computes since ", in_seconds(one.report.age + now - one.at));
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

Monitor::Links Monitor::links() const {
  std::vector<std::vector<Nanos>> of_ranks(ranks_.size()), of_servers(servers_.size());
  std::vector<Nanos> all;
  const auto elsewhere = [this](uint32_t rank, uint32_t server) {
    const Roster::Server& one = roster_.servers[server];
    return one.dedicated ? one.host != roster_.ranks[rank].host
                         : one.node != roster_.ranks[rank].node;
  };
  const auto add = [&](const Known& known, const auto& ends) {
    std::map<uint32_t, std::vector<Nanos>> lately;
    const size_t count = std::min(known.earlier.size(), kReportsOfLinks);
    if (count < kReportsOfLinks || known.left || known.lost) return;
    for (size_t i = known.earlier.size() - count; i < known.earlier.size(); ++i) {
      for (const PathReport& path : known.earlier[i].second.paths) {
        if (path.rtt > 0) lately[path.index].push_back(path.rtt);
      }
    }
    for (auto& [index, rtts] : lately) {
      const auto [rank, server] = ends(index);
      if (rank >= ranks_.size() || server >= servers_.size() || !elsewhere(rank, server)) continue;
      const Nanos rtt = median(std::move(rtts));
      all.push_back(rtt);
      of_ranks[rank].push_back(rtt);
      of_servers[server].push_back(rtt);
    }
  };
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    add(ranks_[rank], [rank](uint32_t index) { return std::pair(rank, index); });
  }
  for (uint32_t server = 0; server < servers_.size(); ++server) {
    add(servers_[server], [server](uint32_t index) { return std::pair(index, server); });
  }
  Links links;
  links.told = std::any_of(ranks_.begin(), ranks_.end(), [](const Known& one) {
    return std::any_of(one.report.paths.begin(), one.report.paths.end(),
                       [](const PathReport& path) { return path.rtt > 0; });
  });
  links.typical = median(std::move(all));
  for (auto& one : of_ranks) links.ranks.push_back(median(std::move(one)));
  for (auto& one : of_servers) links.servers.push_back(median(std::move(one)));
  return links;
}

Monitor::Compared Monitor::compare() const {
  Compared compared;
  std::vector<double> means, latest;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    means.push_back(compared.late.emplace_back(rounds_.late(rank)).mean);
    latest.push_back(compared.latest.emplace_back(rounds_.late(rank, kLatestRounds)).mean);
  }
  compared.mean = median_of(std::move(means));
  compared.latest_mean = median_of(std::move(latest));
  compared.links = links();
  return compared;
}

// Ranks whose steps vary are all late at times. A rank stands out if it is later than is typical by
// more than chance explains. The more ranks there are, the later one of them is by chance.
bool Monitor::chronic(const Rounds::Late& late, double typical_mean, Nanos step) const {
  if (late.rounds < kFewestRounds || late.share() < kChronic) return false;
  const double worth = kWorthPart * static_cast<double>(step);
  const double chance = 2 + std::sqrt(2 * std::log(static_cast<double>(ranks_.size())));
  return static_cast<double>(late.median) > worth &&
         late.mean - typical_mean > std::max(worth / 2, chance * late.mean_error);
}

Monitor::Change Monitor::change(const Known& known) {
  Change change;
  if (known.earlier.size() < 2) return change;
  const auto& [then, before] = known.earlier.front();
  const auto& [now, latest] = known.earlier.back();
  change.seconds = to_seconds(now - then);
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
    const auto add = [&all](const Report& report, double sign) {
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
    add(server.earlier.back().second, 1);
    add(server.earlier.front().second, -1);
  }
  return all;
}

// Why a process is slow by itself, as far as its system and its code tell. "compute" if nothing
// else is known.
std::string Monitor::own_cause(const Process& who, Nanos now, double late) const {
  const Known& one = known(who);
  if (now - one.silence_at < kMemory && one.longest_silence > options_.silent_after) {
    return "stopped";
  }
  const auto others = [&](double Change::* field) {
    std::vector<double> values;
    const auto& all = who.is_server ? servers_ : ranks_;
    for (const Known& other : all) {
      if (&other != &one && other.reported) values.push_back(change(other).*field);
    }
    return median_of(std::move(values));
  };
  const Change own = change(one);
  if (own.major_faults > kSwapping && own.major_faults > 4 * others(&Change::major_faults)) {
    return "swapping";
  }
  const auto most = std::max_element(one.causes.begin(), one.causes.end(),
                                     [](const auto& a, const auto& b) {
                                       return a.second < b.second;
                                     });
  if (most != one.causes.end() && most->first != "compute") return most->first;
  if (own.run_delay > std::max(kStarved, late / 2) &&
      own.run_delay > 3 * others(&Change::run_delay)) {
    return "starved";
  }
  return "compute";
}

void Monitor::judge_rank(Picture& picture, uint32_t rank, const Compared& compared,
                         const std::vector<LateAtServers>& at_servers, Nanos now) const {
  Picture::Rank& judged = picture.ranks[rank];
  const double step = to_seconds(picture.split.step);
  const bool always = chronic(compared.late[rank], compared.mean, picture.split.step);
  const bool lately = chronic(compared.latest[rank], compared.latest_mean, picture.split.step);
  const Rounds::Late late = judged.late =
      lately && !always ? compared.latest[rank] : compared.late[rank];
  judged.score = rounds_.score(rank);
  judged.late_share = late.share();
  judged.late_by = late.median;
  judged.chronic = always || lately;
  judged.once = !judged.chronic && late.late > 0 && late.most >= kOnceLate &&
                late.most > kOnceSteps * picture.split.step;
  const double tail = ratio(static_cast<double>(picture.split.tail),
                            static_cast<double>(picture.split.step));
  const Nanos rtt = compared.links.ranks[rank];
  const bool slow_link = compared.links.slow(rtt);
  if (slow_link && (late.received > late.computed || tail > kBinds)) {
    judged.chronic = true;
    judged.once = false;
    judged.cause = "link";
    judged.rtt = rtt;
    return;
  }
  if (judged.chronic || judged.once) {
    const bool received = late.received > late.computed;
    const double late_part =
        judged.chronic ? ratio(late.mean, static_cast<double>(picture.split.step)) : 0;
    judged.cause = received && !compared.links.told ? "link"
                                                    : own_cause({false, rank}, now, late_part);
    // Results that come late over a link that is not slow are no fault of this rank.
    if (received && compared.links.told && judged.cause == "compute") {
      judged.chronic = judged.once = false;
      judged.cause.clear();
    }
    if (judged.once) {
      judged.late_by = late.most;
      const Known::Reason& once = ranks_[rank].once;
      judged.report.stack.clear();
      if (once.at != 0 && once.round == late.most_round) {
        judged.cause = once.cause;
        judged.report.stack = once.stack;
      }
    }
    return;
  }
  // A rank whose segments come last at servers although its data was ready in time.
  const LateAtServers& own = at_servers[rank];
  std::vector<double> shares, calls;
  uint32_t pushing = 0;
  for (const LateAtServers& one : at_servers) {
    if (one.segments > 0) ++pushing;
    shares.push_back(ratio(one.last_segments, one.segments));
    calls.push_back(ratio(one.last_calls, one.calls));
  }
  const double share = ratio(own.last_segments, own.segments);
  const double seconds = change(ranks_[rank]).seconds;
  if (!compared.links.told && pushing >= 2 && own.segments >= 20 && share > 1.4 / pushing &&
      share >= 0.35 && share > 3 * median_of(shares) - (pushing == 2 ? share : 0) &&
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
    judged.cause = own_cause({false, rank}, now);
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
          return std::pair(a.chronic, a.late.share() * static_cast<double>(a.late.median)) <
                 std::pair(b.chronic, b.late.share() * static_cast<double>(b.late.median));
        });
    if (late != picture.ranks.end() && late->late.late > 0) {
      binds(Picture::Binds::kRank, ranks);
      // If all ranks are late at times, none of them binds.
      if (late->chronic) {
        picture.binds_who =
            roster_.name({false, static_cast<uint32_t>(late - picture.ranks.begin())});
      }
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

void Monitor::judge_server(Picture& picture, uint32_t index, const Links& links,
                           Nanos now) const {
  Picture::Server& server = picture.servers[index];
  const Process who{true, index};
  if (roster_.is_in_rank(index)) return;  // the rank in the same process is judged
  if (server.state == State::kStopped) server.cause = "stopped";
  if (server.cause.empty() && server.reported) {
    const std::string cause = own_cause(who, now);
    if (cause != "compute") server.cause = cause;
  }
  if (server.cause.empty() && server.state == State::kServing &&
      links.slow(links.servers[index])) {
    server.cause = "link";
    server.rtt = links.servers[index];
  }
  server.outlier = !server.cause.empty() || server.state == State::kUnreachable ||
                   server.state == State::kLost || server.state == State::kSilent;
}

// What servers wait for. A server that was told of twice may know of one operation in two groups.
void Monitor::find_missing(Picture& picture, Nanos now) const {
  const auto add = [&picture](Missing one) {
    const auto same = std::find_if(picture.missing.begin(), picture.missing.end(),
                                   [&one](const Missing& other) { return other.what == one.what; });
    if (same == picture.missing.end()) {
      picture.missing.push_back(std::move(one));
      return;
    }
    same->age = std::max(same->age, one.age);
    for (const uint32_t rank : one.ranks) {
      if (std::find(same->ranks.begin(), same->ranks.end(), rank) == same->ranks.end()) {
        same->ranks.push_back(rank);
      }
    }
  };
  for (const Known& server : servers_) {
    if (!server.reported || server.left || server.lost) continue;
    for (Missing one : server.report.missing) {
      one.age += now - server.at;
      add(std::move(one));
    }
  }
  // A rank that waits in an operation itself waits for others there: for those of its node that do
  // not. Inside a node, and among workers, servers see nothing.
  const auto is_in = [&picture](uint32_t rank, const std::string& what) {
    const Picture::Rank& one = picture.ranks[rank];
    return one.state == State::kWaiting && one.report.where.find(what) != std::string::npos;
  };
  for (Missing& one : picture.missing) {
    std::erase_if(one.ranks, [&](uint32_t rank) { return is_in(rank, one.what); });
  }
  std::erase_if(picture.missing, [](const Missing& one) { return one.ranks.empty(); });
  const std::string kIn = "waits in ";
  for (uint32_t rank = 0; rank < picture.ranks.size(); ++rank) {
    const Picture::Rank& waits = picture.ranks[rank];
    if (waits.state != State::kWaiting || waits.report.age < kStalled ||
        waits.report.where.rfind(kIn, 0) != 0) {
      continue;
    }
    const std::string what = waits.report.where.substr(kIn.size());
    // Groups and messages concern only some ranks.
    if (what.find(" of rank") != std::string::npos || what.find("(rank") != std::string::npos) {
      continue;
    }
    Missing inferred{what, waits.report.age, {}};
    for (uint32_t other = 0; other < picture.ranks.size(); ++other) {
      const Picture::Rank& one = picture.ranks[other];
      // Who computes for less time than this one waits has been elsewhere meanwhile.
      const bool absent = (one.state == State::kComputing &&
                           one.report.age > waits.report.age - kStalled / 5) ||
                          mute({false, other}, now);
      if (absent) inferred.ranks.push_back(other);
    }
    if (!inferred.ranks.empty()) add(std::move(inferred));
  }
  std::sort(picture.missing.begin(), picture.missing.end(),
            [](const Missing& a, const Missing& b) { return a.age > b.age; });
  for (Missing& one : picture.missing) std::sort(one.ranks.begin(), one.ranks.end());
}

// Ranks for which others wait are worth a line, with what their code does.
void Monitor::blame_missing(Picture& picture, Nanos now) const {
  for (const Missing& one : picture.missing) {
    if (one.age < kStalled) continue;
    for (const uint32_t rank : one.ranks) {
      if (rank >= picture.ranks.size()) continue;
      Picture::Rank& awaited = picture.ranks[rank];
      if (awaited.state != State::kComputing || awaited.report.age < kStalled) continue;
      awaited.outlier = true;
      awaited.cause = awaited.report.cause.empty() ? own_cause({false, rank}, now)
                                                   : awaited.report.cause;
    }
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
      const auto& [then, before] = one.earlier.front();
      const auto& [latest, report] = one.earlier.back();
      if (latest > then && report.rounds >= before.rounds) {
        picture.rounds_per_second =
            std::max(picture.rounds_per_second, static_cast<double>(report.rounds - before.rounds) /
                                                    to_seconds(latest - then));
      }
    }
  }
  const auto at_servers = late_at_servers();
  const Compared compared = compare();
  picture.typical_rtt = compared.links.typical;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    judge_rank(picture, rank, compared, at_servers, now);
  }
  for (uint32_t index = 0; index < servers_.size(); ++index) {
    fill(picture.servers.emplace_back(), {true, index});
    judge_server(picture, index, compared.links, now);
  }
  find_missing(picture, now);
  blame_missing(picture, now);
  for (Picture::Rank& judged : picture.ranks) {
    judged.outlier = judged.outlier || judged.chronic || judged.once ||
                     judged.state == State::kStopped || judged.state == State::kUnreachable ||
                     judged.state == State::kSilent || judged.state == State::kLost;
    if (judged.state == State::kStopped) judged.cause = "stopped";
  }
  judge_binding(picture);
  picture.findings = find(picture);
  return picture;
}

std::vector<std::string> Monitor::due_lines(Nanos now) {
  if (now < line_due_) return {};
  std::vector<std::string> lines = picture(now).findings;
  // If nothing is worth a line now, something may be soon.
  line_due_ = now + (lines.empty() ? std::min(options_.report_every, kSecond)
                                   : options_.report_every);
  return lines;
}

std::vector<std::string> Monitor::last_lines(Nanos now) const {
  return rounds_.compared() == 0 ? std::vector<std::string>() : picture(now).findings;
}

}  // namespace herring::observe
