// How the monitor judges: who is late and why, what binds, and for whom others wait.
#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <utility>

#include "observe/monitor.h"

namespace herring::observe {
namespace {

// Steps in which a rank must be late to be late chronically, and how many there must be.
constexpr double kChronic = 0.4;
constexpr uint32_t kFewestRounds = 10;
// How improbable it must be that one of all ranks was the last one so often in the first
// kFewestRounds by chance. Later this is asked again and again, so it must be more improbable.
constexpr double kByChance = 0.002;
// The latest rounds, in which it is seen early that a rank has become late.
constexpr size_t kLatestRounds = 16;
// Parts of the time that are worth a line.
constexpr double kWorthPart = 0.05, kBinds = 0.1;
// The part of a step for which ranks wait for each other, from which that is told although none of
// them is late again and again.
constexpr double kUneven = 0.25;
// What was judged before holds below a limit by this factor, and what bound before wins against
// what binds now by this part of a step.
constexpr double kHolds = 0.7, kHeldPart = 0.05;
// Rates, per second, from which the system explains why a rank is late.
constexpr double kSwapping = 20, kStarved = 0.15;
// The latest reports whose round trips count.
constexpr size_t kReportsOfLinks = 3;
// The longest that is waited for a rank before it is missing, while it is not known what is usual.
constexpr Nanos kLongEnough = 5 * kSecond;

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

const std::string kIn = "waits in ";

// Returns whether a rank says that it waits in a message: "waits in receive 'x' (rank 2)".
bool waits_in_message(const std::string& where) {
  return where.starts_with(kIn + "send '") || where.starts_with(kIn + "receive '");
}

// Returns whether that can be this message, which a server knows.
bool is_message(const std::string& where, const Missing& message) {
  const std::string kind = message.what.substr(0, message.what.find(' '));
  if (!where.starts_with(concat(kIn, kind, " '"))) return false;
  // A receive from any rank names none.
  const std::string other =
      message.ranks.empty() ? "(rank " : concat("' (rank ", message.ranks.front(), ")");
  return (where.find(other) != std::string::npos) == !message.ranks.empty();
}

}  // namespace

Monitor::Links Monitor::links() const {
  constexpr double kFast = 0.25;
  std::vector<std::vector<Nanos>> of_ranks(ranks_.size()), of_servers(servers_.size());
  const auto elsewhere = [this](uint32_t rank, uint32_t server) {
    const Roster::Server& one = roster_.servers[server];
    return one.dedicated ? one.address != roster_.ranks[rank].address
                         : one.node != roster_.ranks[rank].node;
  };
  const auto add = [&](const ProcessState& known, const auto& ends) {
    std::map<uint32_t, std::vector<Nanos>> lately;
    const size_t count = std::min(known.earlier.size(), kReportsOfLinks);
    if (count < kReportsOfLinks || known.left || known.lost) return;
    for (size_t i = known.earlier.size() - count; i < known.earlier.size(); ++i) {
      for (const PathReport& path : known.earlier[i].paths) {
        if (path.rtt > 0) lately[path.index].push_back(path.rtt);
      }
    }
    // Where nothing moves, round trips are not measured, and the last one is told again.
    const auto moves = [](const auto& path) {
      return std::adjacent_find(path.second.begin(), path.second.end(), std::not_equal_to<>()) !=
             path.second.end();
    };
    const bool some_move = std::any_of(lately.begin(), lately.end(), moves);
    for (auto& [index, rtts] : lately) {
      if (some_move && !moves(std::pair(index, rtts))) continue;
      const auto [rank, server] = ends(index);
      if (rank >= ranks_.size() || server >= servers_.size() || !elsewhere(rank, server)) continue;
      const Nanos rtt = median(std::move(rtts));
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
  links.told = std::any_of(ranks_.begin(), ranks_.end(), [](const ProcessState& one) {
    return std::any_of(one.report.paths.begin(), one.report.paths.end(),
                       [](const PathReport& path) { return path.rtt > 0; });
  });
  for (auto& one : of_ranks) links.ranks.push_back(quantile(std::move(one), kFast));
  for (auto& one : of_servers) links.servers.push_back(quantile(std::move(one), kFast));
  std::vector<Nanos> told;
  std::copy_if(links.ranks.begin(), links.ranks.end(), std::back_inserter(told),
               [](Nanos rtt) { return rtt > 0; });
  links.typical = median(std::move(told));
  return links;
}

Nanos Monitor::ProcessState::made_at() const {
  if (report.sent == 0 || report.offset_error < 0) return at;
  return std::min(at, report.sent + report.offset);
}

Monitor::Compared Monitor::compare() const {
  Compared compared;
  const auto typical = [](const std::vector<Rounds::Late>& all, double Rounds::Late::* field) {
    std::vector<double> values;
    for (const Rounds::Late& late : all) values.push_back(late.*field);
    return median_of(std::move(values));
  };
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    compared.late.push_back(rounds_.late(rank));
    compared.latest.push_back(rounds_.late(rank, kLatestRounds));
  }
  compared.mean = typical(compared.late, &Rounds::Late::mean);
  compared.error = typical(compared.late, &Rounds::Late::mean_error);
  compared.latest_mean = typical(compared.latest, &Rounds::Late::mean);
  compared.latest_error = typical(compared.latest, &Rounds::Late::mean_error);
  compared.links = links();
  return compared;
}

// Returns whether chance does not explain how often a rank was the last one. If all are alike, each
// is the last one in a round with the same probability, however much rounds vary.
bool LastVerdict::last_too_often(const Rounds::Late& late, Nanos step) const {
  const double ranks = static_cast<double>(late_.size());
  if (ranks < 2 || late.rounds < kFewestRounds || late.share() < kChronic ||
      static_cast<double>(late.median) <= kWorthPart * static_cast<double>(step)) {
    return false;
  }
  const double n = late.rounds, odds = std::log(1 / ranks), others = std::log1p(-1 / ranks);
  double tail = 0;
  for (uint32_t k = late.last; k <= late.rounds; ++k) {
    const double ways = std::lgamma(n + 1) - std::lgamma(k + 1.0) - std::lgamma(n - k + 1);
    tail += std::exp(ways + k * odds + (n - k) * others);
  }
  const double again = n / kFewestRounds;
  return tail * ranks * again * again < kByChance;
}

// Ranks whose steps vary are all late at times. A rank stands out if it is later than is typical by
// more than chance explains. The more ranks there are, the later one of them is by chance.
bool LastVerdict::standing_out(uint32_t rank, const Rounds::Late& late, double mean, double error,
                               Nanos step) const {
  const double part = late_[rank] ? kHolds : 1;
  if (late.rounds < kFewestRounds || late.share() < part * kChronic) return false;
  const double worth = part * kWorthPart * static_cast<double>(step);
  const double chance = part * (2 + std::sqrt(2 * std::log(static_cast<double>(late_.size()))));
  return static_cast<double>(late.median) > worth &&
         late.mean - mean > std::max(worth / 2, chance * std::hypot(late.mean_error, error));
}

Monitor::Change Monitor::ProcessState::change() const {
  Change change;
  if (earlier.size() < 2) return change;
  const Past& before = earlier.front();
  const Past& latest = earlier.back();
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
  for (const ProcessState& server : servers_) {
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
  const auto rates = [](const std::vector<ProcessState>& all, std::vector<double>& faults,
                        std::vector<double>& delays) {
    for (const ProcessState& one : all) {
      if (!one.reported) continue;
      const Change found = one.change();
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
std::string Monitor::own_cause(const Process& who, const Usual& usual, Nanos now,
                               double late) const {
  const ProcessState& one = known(who);
  if (now - one.silence_at < kMemory && one.longest_silence > options_.silent_after) {
    return "stopped";
  }
  const Change own = one.change();
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
  if (own.run_delay > std::max(kStarved, late / 2) &&
      own.run_delay > 3 * median_without(delays, own.run_delay)) {
    return "starved";
  }
  return "compute";
}

void Monitor::judge_rank(Picture& picture, uint32_t rank, const Usual& usual,
                         const Compared& compared, Nanos now) const {
  Picture::Rank& judged = picture.ranks[rank];
  // Who was late for long, and is so no more, is not late.
  const bool always = compared.latest[rank].share() >= kChronic / 2 &&
                      (last_.standing_out(rank, compared.late[rank], compared.mean, compared.error,
                                          picture.split.step) ||
                       last_.last_too_often(compared.late[rank], picture.split.step));
  const bool lately = last_.standing_out(rank, compared.latest[rank], compared.latest_mean,
                                         compared.latest_error, picture.split.step);
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
  const LateAtServers& own = usual.at_servers[rank];
  const double seconds = ranks_[rank].change().seconds;
  // Others wait for what a slow link brings: in rounds, or in calls.
  const bool waited_for = picture.compared > 0
                              ? late.received > late.computed || tail > kBinds
                              : own.calls_waited + own.segments_waited > kWorthPart * seconds;
  if (compared.links.slow(rtt) && waited_for) {
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
    judged.cause = received && !compared.links.told
                       ? "link"
                       : own_cause({false, rank}, usual, now, late_part);
    // Results that come late over a link that is not slow are no fault of this rank.
    if (received && compared.links.told && judged.cause == "compute") {
      judged.chronic = judged.once = false;
      judged.cause.clear();
    }
    if (judged.once) {
      judged.late_by = late.most;
      const ProcessState::Reason& once = ranks_[rank].once;
      judged.report.stack.clear();
      if (once.at != 0 && once.round == late.most_round) {
        judged.cause = once.cause;
        judged.report.stack = once.stack;
      }
    }
    return;
  }
  // A rank whose segments come last at servers although its data was ready in time.
  const uint32_t pushing = usual.pushing;
  const double share = ratio(own.last_segments, own.segments);
  if (!compared.links.told && pushing >= 2 && own.segments >= 20 && share > 1.4 / pushing &&
      share >= 0.35 && share > 3 * usual.last_segments - (pushing == 2 ? share : 0) &&
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

void LastVerdict::take(const Picture& picture) {
  binds_ = picture.binds;
  rank_ = picture.binds_rank.value_or(~0u);
  for (size_t rank = 0; rank < late_.size(); ++rank) late_[rank] = picture.ranks[rank].chronic;
}

// Returns the rank that is late chronically and costs the others most; none if there is none.
std::optional<uint32_t> LastVerdict::slowest(const Picture& picture) const {
  std::optional<uint32_t> slowest;
  double most = 0;
  for (uint32_t rank = 0; rank < picture.ranks.size(); ++rank) {
    const Picture::Rank& one = picture.ranks[rank];
    if (!one.chronic) continue;
    const double costs = one.late.share() * static_cast<double>(one.late.median) /
                         (rank_ == rank ? kHolds : 1);
    if (!slowest || costs > most) {
      slowest = rank;
      most = costs;
    }
  }
  return slowest;
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
  // What bound before binds on, until something else is clearly larger.
  const auto held = [this](Picture::Binds what) { return last_.binds(what) ? kHeldPart : 0; };
  const auto late = last_.slowest(picture);
  // If all ranks are late at times, none of them binds, and what a step takes is their compute.
  const double least = late ? kBinds * (last_.binds_rank(*late) ? kHolds : 1)
                            : kUneven - held(Picture::Binds::kRank);
  const double compute = picture.binds_share - held(Picture::Binds::kNetwork) -
                         held(Picture::Binds::kNodeStage) + held(Picture::Binds::kCompute);
  const double others = std::max(node + held(Picture::Binds::kNodeStage),
                                 network + held(Picture::Binds::kNetwork));
  if (ranks > least && ranks + held(Picture::Binds::kRank) >= others) {
    binds(Picture::Binds::kRank, ranks);
    picture.binds_rank = late;
    if (late) picture.binds_who = roster_.name({false, *late});
    return;
  }
  if (std::max(node, network) < kBinds) return;
  if (network + held(Picture::Binds::kNetwork) >= node + held(Picture::Binds::kNodeStage)) {
    if (network > compute) binds(Picture::Binds::kNetwork, network);
    const auto tail = static_cast<Nanos>(network * static_cast<double>(split.step));
    if (const auto more = more_servers(roster_.nodes, roster_.dedicated(), split.step, tail);
        more && network > 0.2) {
      picture.advice = concat(more->more, more->more == 1 ? " more server" : " more servers",
                              " would make a step ", std::round(more->times * 10) / 10,
                              " times as fast");
    }
  } else if (node > compute) {
    binds(Picture::Binds::kNodeStage, node);
  }
}

void Monitor::judge_server(Picture& picture, uint32_t index, const Usual& usual,
                           const Links& links, Nanos now) const {
  Picture::Server& server = picture.servers[index];
  const Process who{true, index};
  if (roster_.is_in_rank(index)) return;  // the rank in the same process is judged
  if (server.state == State::kStopped) server.cause = "stopped";
  // What a server lacks matters only if ranks wait for results.
  const double tail = ratio(static_cast<double>(picture.split.tail),
                            static_cast<double>(picture.split.step));
  const bool waited_for = picture.compared == 0 || tail > kBinds;
  if (server.cause.empty() && server.reported) {
    const std::string cause = own_cause(who, usual, now);
    if (cause == "stopped" || (cause != "compute" && waited_for)) server.cause = cause;
  }
  if (server.cause.empty() && server.state == State::kServing &&
      links.slow(links.servers[index])) {
    server.cause = "link";
    server.rtt = links.servers[index];
  }
  server.outlier = !server.cause.empty() || server.state == State::kUnreachable ||
                   server.state == State::kLost || server.state == State::kSilent;
}

// Returns until when a rank is known not to have come to an operation, of which a server told this
// at `told`; nothing if that is not so. The reports of a server and a rank are of different times.
std::optional<Nanos> Monitor::absent_until(uint32_t rank, const std::string& what, Nanos told,
                                           Nanos now) const {
  if (rank >= ranks_.size()) return told;
  const ProcessState& one = ranks_[rank];
  if (mute({false, rank}, now)) return now;
  if (!one.reported || one.left || one.lost) return told;
  // A rank that waits in an operation itself waits for others there: for those of its node that do
  // not. Inside a node, and among workers, servers see nothing.
  if (one.report.where.find(what) != std::string::npos) return std::nullopt;
  // What it does now began after the server has told: it may have come in the meantime.
  if (one.made_at() - one.report.age > told) return std::nullopt;
  return one.made_at();
}

// For whom others wait, as servers and ranks tell. Only time for which a rank is known to have been
// absent counts, so that nobody is called missing who has just come or gone.
void Monitor::find_missing(Picture& picture, Nanos now) const {
  std::map<std::string, std::map<uint32_t, Nanos>> absent;  // for how long
  const auto add = [&absent](const std::string& what, uint32_t rank, Nanos time) {
    Nanos& known = absent[what][rank];
    known = std::max(known, time);
  };
  for (const ProcessState& server : servers_) {
    if (!server.reported || server.left || server.lost) continue;
    const Nanos told = server.made_at();
    for (const Missing& one : server.report.missing) {
      if (one.by) continue;  // find_messages()
      for (const uint32_t rank : one.ranks) {
        const auto until = absent_until(rank, one.what, told, now);
        if (until) add(one.what, rank, *until - (told - one.age));
      }
    }
  }
  for (uint32_t rank = 0; rank < picture.ranks.size(); ++rank) {
    const Picture::Rank& waits = picture.ranks[rank];
    if (waits.state != State::kWaiting || waits.report.age < kStalled ||
        waits.report.where.rfind(kIn, 0) != 0) {
      continue;
    }
    const std::string what = waits.report.where.substr(kIn.size());
    // Groups and messages concern only some ranks.
    if (waits_in_message(waits.report.where) || what.find(" of rank") != std::string::npos ||
        what.find("(rank") != std::string::npos) {
      continue;
    }
    const Nanos since = ranks_[rank].made_at() - ranks_[rank].report.age;
    for (uint32_t other = 0; other < picture.ranks.size(); ++other) {
      const ProcessState& one = ranks_[other];
      if (mute({false, other}, now)) {
        add(what, other, now - since);
        continue;
      }
      // Who computes for less time than this one waits has been elsewhere meanwhile.
      const Nanos until = one.made_at();
      if (picture.ranks[other].state == State::kComputing &&
          until - one.report.age < since + kStalled / 5 && until - since >= kStalled) {
        add(what, other, until - since);
      }
    }
  }
  const auto usual = [&](uint32_t rank, Nanos time) {
    return usual_wait(picture, rank, time, now);
  };
  for (const auto& [what, ranks] : absent) {
    Missing one{what, 0, {}};
    for (const auto& [rank, time] : ranks) {
      if (time >= usual(rank, time)) one.age = std::max(one.age, time);
    }
    if (one.age == 0) continue;
    for (const auto& [rank, time] : ranks) {
      if (time < usual(rank, time)) continue;
      if (time >= std::min(one.age, kStalled) || one.age < kStalled) one.ranks.push_back(rank);
    }
    picture.missing.push_back(std::move(one));
  }
  find_messages(picture, now);
  // Ranks that wait themselves are not the cause, unless they wait for each other.
  const auto order = [&picture](const Missing& one) {
    const bool cause = std::any_of(one.ranks.begin(), one.ranks.end(), [&](uint32_t rank) {
      return rank >= picture.ranks.size() || picture.ranks[rank].state != State::kWaiting;
    });
    return std::pair(!cause, -one.age);
  };
  std::stable_sort(picture.missing.begin(), picture.missing.end(),
                   [&order](const Missing& a, const Missing& b) { return order(a) < order(b); });
}

// Returns how long others may wait for a rank without a reason to tell of it. `time`: for how long
// they have waited. Ranks of which each takes another time wait for each other in every step.
Nanos Monitor::usual_wait(const Picture& picture, uint32_t rank, Nanos time, Nanos now) const {
  if (rank >= ranks_.size() || mute({false, rank}, now)) return 0;
  if (picture.split.step > 0) return kOnceSteps * picture.split.spread;
  // As long as no round tells, half of the time for which others have computed is not long.
  return std::min((ranks_[rank].report.age - time) / 2, kLongEnough);
}

// Messages in which ranks wait. Servers know which messages lack the other rank, but a program may
// have asked for one long before it waits. Only the rank itself tells in which message it waits.
void Monitor::find_messages(Picture& picture, Nanos now) const {
  struct Found {
    const Missing* message = nullptr;
    Nanos told = 0, apart = 0;
  };
  std::map<uint32_t, Found> found;  // by the rank that waits
  for (const ProcessState& server : servers_) {
    if (!server.reported || server.left || server.lost) continue;
    const Nanos told = server.made_at();
    for (const Missing& one : server.report.missing) {
      if (!one.by || *one.by >= ranks_.size()) continue;
      const ProcessState& waits = ranks_[*one.by];
      if (picture.ranks[*one.by].state != State::kWaiting) continue;
      if (!is_message(waits.report.where, one)) continue;
      // Of several messages alike, the program waits in that which it gave when the wait began.
      const Nanos since = told - one.age, began = waits.made_at() - waits.report.age;
      const Found here{&one, told, std::abs(since - began)};
      const auto [place, added] = found.try_emplace(*one.by, here);
      if (!added && here.apart < place->second.apart) place->second = here;
    }
  }
  for (const auto& [rank, one] : found) {
    const ProcessState& waits = ranks_[rank];
    const Nanos began = std::max(one.told - one.message->age,
                                 waits.made_at() - waits.report.age);
    Missing message = *one.message;
    message.age = std::max(one.told, waits.made_at()) - began;
    if (message.age < kStalled / 2) continue;
    const bool usual = std::any_of(message.ranks.begin(), message.ranks.end(), [&](uint32_t other) {
      return message.age < usual_wait(picture, other, message.age, now);
    });
    if (!usual) picture.missing.push_back(std::move(message));
  }
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
      awaited.cause = awaited.report.cause.empty() ? own_cause({false, rank}, usual_, now)
                                                   : awaited.report.cause;
    }
  }
}

}  // namespace herring::observe
