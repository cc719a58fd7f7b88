#include "observe/picture.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace herring::observe {
namespace {

// How a line says why a rank is late.
std::string reason(const Picture::Rank& rank) {
  static const std::pair<const char*, const char*> kReasons[] = {
      {"compute", "it computes longer"},
      {"input", "it waits for its input"},
      {"checkpoint", "it writes a checkpoint"},
      {"compile", "it compiles"},
      {"swapping", "its memory is read back from a disk (swapping)"},
      {"starved", "it lacks processor time"},
      {"link", "its link is slow"},
      {"stopped", "its process stood still"},
  };
  std::string text;
  for (const auto& [cause, words] : kReasons) {
    if (rank.cause == cause) text = words;
  }
  if (text.empty() && !rank.cause.empty()) text = "its " + rank.cause;
  const bool own = rank.cause != "link" && rank.cause != "stopped";
  if (own && !rank.report.stack.empty()) text += concat(" (", rank.report.stack, ")");
  return text;
}

// Below so many steps a line counts them, because a share would seem surer than it is.
constexpr uint32_t kFewSteps = 30;

int percent(double share) { return static_cast<int>(std::lround(100 * share)); }

std::string late_line(const Picture& picture, uint32_t index) {
  const Roster& roster = *picture.roster;
  const Picture::Rank& rank = picture.ranks[index];
  const std::string who = roster.name({false, index});
  const std::string why = reason(rank);
  const std::string colon = why.empty() ? "" : ": " + why;
  if (rank.rtt > 0) {
    return concat(who, " has a slow link: a round trip takes ", in_seconds(rank.rtt),
                  ", and one of the others ", in_seconds(picture.typical_rtt));
  }
  if (rank.cause == "link" && rank.chronic && rank.late.share() < 0.5) {
    return concat(who, " is the last to deliver ", percent(rank.late_share),
                  " % of its segments, and each step waits for it", colon);
  }
  if (rank.chronic) {
    const bool few = rank.in_steps && rank.late.rounds < kFewSteps;
    const std::string share =
        few ? concat(rank.late.late, " of ", rank.late.rounds, " steps")
            : concat(percent(rank.late_share), " % of the ", rank.in_steps ? "steps" : "calls");
    return concat(who, " is late by ", in_seconds(rank.late_by), " in ", share, colon);
  }
  return concat(who, " was late by ", in_seconds(rank.late_by), " in round ", rank.late.most_round,
                rank.late.late > 1 ? concat(", and in ", rank.late.late - 1, " more of the last ",
                                            rank.late.rounds)
                                   : std::string(),
                colon);
}

// Returns "rank 2 (host1) never sent the message for which rank 3 (host2) has waited 12 s: receive
// from rank 2 (tag 7)".
std::string message_line(const Roster& roster, const Missing& one) {
  const bool sends = one.what.starts_with("send");
  return concat(one.ranks.empty() ? "no rank" : name_ranks(roster, one.ranks),
                one.ranks.empty() ? " has " : " never ", sends ? "received" : "sent",
                " the message for which ", roster.name({false, *one.by}), " has waited ",
                in_seconds(one.age), ": ", one.what);
}

}  // namespace

uint32_t Picture::servers_to_spare() const {
  if (!roster->failover) return 0;
  uint32_t dedicated = 0, colocated = 0;
  for (uint32_t index = 0; index < servers.size(); ++index) {
    const State state = servers[index].state;
    if (state == State::kLost || state == State::kLeft) continue;
    (roster->servers[index].dedicated ? dedicated : colocated) += 1;
  }
  return colocated > 0 || dedicated == 0 ? dedicated : dedicated - 1;
}

const char* name_of(State state) {
  switch (state) {
    case State::kStarting: return "starting";
    case State::kComputing: return "computing";
    case State::kWaiting: return "waiting";
    case State::kServing: return "serving";
    case State::kSilent: return "silent";
    case State::kStopped: return "stopped";
    case State::kUnreachable: return "unreachable";
    case State::kLeft: return "left";
    case State::kLost: return "lost";
  }
  return "unknown";
}

const char* name_of(Picture::Binds binds) {
  switch (binds) {
    case Picture::Binds::kNothing: return "";
    case Picture::Binds::kCompute: return "compute";
    case Picture::Binds::kRank: return "rank";
    case Picture::Binds::kNodeStage: return "node stage";
    case Picture::Binds::kNetwork: return "network";
  }
  return "";
}

bool Roster::is_in_rank(uint32_t server) const {
  const Server& one = servers[server];
  return !one.dedicated && std::any_of(ranks.begin(), ranks.end(), [&one](const Rank& rank) {
    return rank.pid == one.pid && rank.node == one.node;
  });
}

std::string Roster::name(const Process& process) const {
  const std::string number = concat(process.is_server ? "server " : "rank ", process.index);
  const std::string& host = process.is_server ? servers[process.index].host
                                              : ranks[process.index].host;
  return host.empty() ? number : concat(number, " (", host, ")");
}

std::string name_ranks(const Roster& roster, const std::vector<uint32_t>& ranks) {
  constexpr size_t kMost = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const size_t shown = ranks.size() > kMost ? kMost : ranks.size();
  for (size_t i = 0; i < shown; ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
    if (ranks[i] < roster.ranks.size() && !roster.ranks[ranks[i]].host.empty()) {
      text += concat(" (", roster.ranks[ranks[i]].host, ")");
    }
  }
  if (ranks.size() > shown) text += concat(" and ", ranks.size() - shown, " others");
  return text;
}

std::optional<MoreServers> more_servers(uint32_t nodes, uint32_t dedicated, Nanos step,
                                        Nanos tail) {
  if (nodes < 2 || dedicated >= nodes || step <= 0 || tail <= 0) return std::nullopt;
  const auto time = [n = static_cast<double>(nodes)](double k) {
    return 2 * n * (n - 1) / (n * n + k * n - 2 * k);
  };
  const double faster = time(nodes) / time(dedicated);
  const double left = static_cast<double>(step) - static_cast<double>(tail) * (1 - faster);
  const double times = static_cast<double>(step) / left;
  if (times < 1.1) return std::nullopt;
  return MoreServers{nodes - dedicated, times};
}

std::vector<std::string> find(const Picture& picture) {
  const Roster& roster = *picture.roster;
  std::vector<std::string> lines;
  const auto each = [&](const auto& processes, bool is_server, const auto& say) {
    for (uint32_t i = 0; i < processes.size(); ++i) say(Process{is_server, i}, processes[i]);
  };
  const auto mute = [&](const Process& who, const Picture::Common& one) {
    if (who.is_server && roster.is_in_rank(who.index)) return;
    switch (one.state) {
      case State::kUnreachable:
        lines.push_back(concat(roster.name(who), " is unreachable: its host does not answer"));
        break;
      case State::kStopped:
        lines.push_back(concat(roster.name(who), " is stopped or starved: its process was not "
                               "heard for ", in_seconds(one.heard), ", though its host answers"));
        break;
      case State::kSilent:
        lines.push_back(concat(roster.name(who), " does not report, though its process is heard"));
        break;
      default: break;
    }
  };
  each(picture.ranks, false, mute);
  each(picture.servers, true, mute);
  each(picture.servers, true, [&](const Process& who, const Picture::Server& server) {
    if (server.lost < 0) return;
    lines.push_back(concat("server ", who.index, " (", server.lost_host, ") was lost ",
                           in_seconds(server.lost), " ago; ",
                           server.replaced < 0
                               ? std::string("others stand in for it")
                               : concat(roster.name(who), " replaced it ",
                                        in_seconds(server.replaced), " ago")));
  });
  for (size_t i = 0; i < std::min<size_t>(picture.missing.size(), 3); ++i) {
    const Missing& one = picture.missing[i];
    if (one.age < kSecond) continue;
    std::string line = one.by ? message_line(roster, one)
                              : concat(one.what, " has waited ", in_seconds(one.age), " for ",
                                       name_ranks(roster, one.ranks));
    for (const uint32_t rank : one.ranks) {
      if (rank >= picture.ranks.size()) continue;
      const Picture::Rank& late = picture.ranks[rank];
      if (late.state == State::kComputing) {
        const std::string& cause = late.report.cause;
        line += concat("; rank ", rank, " has been computing for ", in_seconds(late.report.age),
                       cause.empty() || cause == "compute" ? "" : ", in its " + cause,
                       late.report.stack.empty() ? "" : concat(" (", late.report.stack, ")"));
      } else if (late.state == State::kWaiting) {
        line += concat("; rank ", rank, " ", late.report.where);
      } else if (late.state == State::kStopped) {
        line += concat("; rank ", rank, " is stopped or starved");
      } else if (late.state == State::kUnreachable) {
        line += concat("; rank ", rank, " is unreachable");
      }
    }
    lines.push_back(line);
  }
  // The three latest ranks, chronic ones first.
  std::vector<uint32_t> late;
  for (uint32_t rank = 0; rank < picture.ranks.size(); ++rank) {
    if (picture.ranks[rank].chronic || picture.ranks[rank].once) late.push_back(rank);
  }
  std::sort(late.begin(), late.end(), [&picture](uint32_t a, uint32_t b) {
    const Picture::Rank &x = picture.ranks[a], &y = picture.ranks[b];
    return std::make_tuple(!x.chronic, -x.late_by, a) < std::make_tuple(!y.chronic, -y.late_by, b);
  });
  for (size_t i = 0; i < std::min<size_t>(late.size(), 3); ++i) {
    lines.push_back(late_line(picture, late[i]));
  }
  if (late.size() > 3) lines.push_back(concat(late.size() - 3, " more ranks are late"));
  for (uint32_t i = 0; i < picture.servers.size(); ++i) {
    const Picture::Server& server = picture.servers[i];
    if (server.state != State::kServing || server.cause.empty()) continue;
    if (server.rtt > 0) {
      lines.push_back(concat(roster.name({true, i}), " has a slow link: a round trip takes ",
                             in_seconds(server.rtt), ", and one of the others ",
                             in_seconds(picture.typical_rtt)));
      continue;
    }
    lines.push_back(concat(roster.name({true, i}), " is slow: ",
                           server.cause == "starved"    ? "it lacks processor time"
                           : server.cause == "swapping" ? "its memory is read back from a disk"
                           : server.cause == "stopped"  ? "its process stood still"
                                                        : server.cause));
  }
  const bool network = picture.binds == Picture::Binds::kNetwork && picture.binds_share >= 0.3;
  const bool node = picture.binds == Picture::Binds::kNodeStage && picture.binds_share >= 0.3;
  if (network || node) {
    lines.push_back(concat("the ", name_of(picture.binds), " binds ", percent(picture.binds_share),
                           " % of the step (", in_seconds(picture.split.step), ")",
                           picture.advice.empty() ? "" : "; " + picture.advice));
  }
  return lines;
}

}  // namespace herring::observe
