// A picture as JSON and as text. Its metrics: metrics.cc.
#include <algorithm>
#include <cstdio>
#include <tuple>

#include "base/ranks.h"
#include "observe/json.h"
#include "observe/picture.h"

namespace herring::observe {
namespace {

template <typename T>
void text_or_null(Json& json, const char* name, const T& text) {
  json.key(name);
  text.empty() ? json.null() : json.value(text);
}

void put_common(Json& json, const Picture::Common& one) {
  const Report& report = one.report;
  json.field("state", name_of(one.state)).field("heard", to_seconds(one.heard));
  json.field("bytes_sent", report.bytes_sent).field("bytes_received", report.bytes_received);
  json.field("retransmits", report.retransmits);
  std::vector<Nanos> trips;
  for (const PathReport& path : report.paths) {
    if (path.rtt > 0) trips.push_back(path.rtt);
  }
  json.key("rtt");
  trips.empty() ? json.null() : json.value(to_seconds(median(trips)));
  json.field("in_flight", report.in_flight).field("memory", report.resources.memory);
  json.field("major_faults", report.resources.major_faults);
  json.key("clock_offset");
  const bool known = report.offset_error >= 0;
  known ? json.value(to_seconds(report.offset)) : json.null();
  json.key("clock_error");
  known ? json.value(to_seconds(report.offset_error)) : json.null();
  text_or_null(json, "cause", one.cause);
  json.field("outlier", one.outlier);
}

void put_rank(Json& json, const Roster& roster, uint32_t index, const Picture::Rank& rank) {
  const Roster::Rank& who = roster.ranks[index];
  json.begin_object().field("rank", index).field("host", who.host);
  json.field("address", who.address).field("node", who.node).field("pid", who.pid);
  put_common(json, rank);
  const Report& report = rank.report;
  text_or_null(json, "where", report.where);
  json.field("for", to_seconds(rank.age()));
  text_or_null(json, "stack", report.stack);
  json.key("late").begin_object().field("median", to_seconds(rank.late_by));
  json.field("max", to_seconds(rank.late.most)).field("share", rank.late_share);
  json.field("steps", rank.late.rounds).end_object();
  json.key("compute");
  rank.late.rounds == 0 ? json.null() : json.value(to_seconds(rank.late.work));
  json.key("wait");
  rank.late.rounds == 0 ? json.null() : json.value(to_seconds(rank.late.waited));
  json.field("score", rank.score).field("chronic", rank.chronic).field("once", rank.once);
  json.field("rounds", report.rounds).field("calls", report.calls);
  json.field("credit", report.credit);
  json.field("kept", report.kept);
  json.field("cpu", to_seconds(report.resources.cpu)).end_object();
}

void put_server(Json& json, const Roster& roster, uint32_t index, const Picture::Server& server) {
  const Roster::Server& who = roster.servers[index];
  json.begin_object().field("server", index).field("host", who.host);
  json.field("address", who.address);
  json.field("kind", who.dedicated ? "dedicated" : "colocated").key("node");
  who.dedicated ? json.null() : json.value(who.node);
  json.field("pid", who.pid).field("weight", who.weight);
  put_common(json, server);
  const auto ago = [&json](const char* name, Nanos time) {
    json.key(name);
    time < 0 ? json.null() : json.value(to_seconds(time));
  };
  ago("lost", server.lost);
  ago("replaced", server.replaced);
  json.field("sums", server.report.sums).field("sum_time", to_seconds(server.report.sum_time));
  json.end_object();
}

void put_group(Json& json, const Groups::View& group) {
  json.begin_object().field("group", group.group).field("name", group.name);
  json.field("size", group.ranks->size()).field("ranks", *group.ranks);
  json.field("rounds", group.rounds).field("calls", group.calls);
  json.field("in_flight", group.in_flight).field("for", to_seconds(group.age));
  json.field("absent", group.absent).field("outlier", group.outlier).end_object();
}

std::string bytes_text(double bytes) {
  static const char* const kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  size_t unit = 0;
  while (bytes >= 1000 && unit + 1 < std::size(kUnits)) {
    bytes /= 1000;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, bytes < 10 && unit > 0 ? "%.1f %s" : "%.0f %s", bytes,
                kUnits[unit]);
  return text;
}

std::string state_text(const Picture::Common& one) {
  const Report& report = one.report;
  switch (one.state) {
    case State::kWaiting:
      return concat("has waited in ", report.where, " for ", in_seconds(report.age));
    case State::kComputing:
      return concat("has been computing for ", in_seconds(report.age),
                    report.stack.empty() ? "" : concat(" (", report.stack, ")"));
    case State::kStopped:
    case State::kUnreachable: return concat(name_of(one.state), " for ", in_seconds(one.age()));
    default: return name_of(one.state);
  }
}

}  // namespace

std::string as_json(const Picture& picture) {
  const Roster& roster = *picture.roster;
  const Rounds::Split& split = picture.split;
  Json json;
  json.begin_object().field("schema", "herring-status-1");
  text_or_null(json, "herring", roster.version);
  text_or_null(json, "slurm_job_id", roster.slurm_job_id);
  json.field("job", roster.job).field("id", roster.id).key("time").exact(picture.time);
  json.field("uptime", to_seconds(picture.uptime)).field("size", roster.ranks.size());
  json.field("nodes", roster.nodes).field("epoch", picture.epoch);
  json.key("steps").begin_object().field("count", picture.rounds);
  json.field("compared", picture.compared).field("per_second", picture.rounds_per_second);
  const auto time = [&](const char* name, Nanos value) {
    json.key(name);
    split.step == 0 ? json.null() : json.value(to_seconds(value));
  };
  json.key("last");
  picture.step_ended < 0 ? json.null() : json.value(to_seconds(picture.step_ended));
  json.field("stands", picture.stands);
  json.key("seconds").begin_object();
  time("min", split.shortest);
  time("median", split.step);
  time("max", split.longest);
  json.end_object();
  for (const auto& [name, value] : {std::pair{"compute", split.compute},
                                    {"wait_for_ranks", split.ranks},
                                    {"node_stage", split.node_stage},
                                    {"push", split.push},
                                    {"pull", split.pull},
                                    {"network", split.tail},
                                    {"exposed", split.exposed}}) {
    time(name, value);
  }
  json.field("bytes", split.bytes).end_object();
  json.key("binds").begin_object();
  text_or_null(json, "what", std::string_view(name_of(picture.binds)));
  json.field("share", picture.binds_share);
  text_or_null(json, "who", picture.binds_who);
  text_or_null(json, "advice", picture.advice);
  json.end_object();
  json.key("ranks").begin_array();
  for (uint32_t i = 0; i < picture.ranks.size(); ++i) put_rank(json, roster, i, picture.ranks[i]);
  json.end_array().key("servers").begin_array();
  for (uint32_t i = 0; i < picture.servers.size(); ++i) {
    put_server(json, roster, i, picture.servers[i]);
  }
  json.end_array().key("missing").begin_array();
  for (const Missing& one : picture.missing) {
    json.begin_object().field("what", one.what).field("for", to_seconds(one.age));
    json.field("ranks", one.ranks).key("by");
    one.by ? json.value(*one.by) : json.null();
    json.end_object();
  }
  json.end_array().key("groups").begin_array();
  for (const Groups::View& group : picture.groups) put_group(json, group);
  json.end_array().key("operations").begin_array();
  for (const Picture::Operation& one : picture.operations) {
    json.begin_object().field("collective", one.collective).field("message_size", one.size);
    json.field("ended", one.ended).field("bytes", one.bytes).field("seconds", one.seconds);
    json.end_object();
  }
  json.end_array().key("findings").begin_array();
  for (const std::string& finding : picture.findings) json.value(finding);
  json.end_array().end_object();
  return json.take() + "\n";
}

std::string as_text(const Picture& picture, bool all) {
  const Roster& roster = *picture.roster;
  const Rounds::Split& split = picture.split;
  const auto counted = [](uint64_t n, const char* one) {
    return concat(n, " ", one, n == 1 ? "" : "s");
  };
  std::string text = concat("job ", roster.job, ": ", counted(roster.ranks.size(), "rank"), " on ",
                            counted(roster.nodes, "node"), ", ",
                            counted(roster.servers.size(), "server"), "; up for ",
                            in_seconds(picture.uptime), "\n");
  if (split.step > 0) {
    text += concat("steps: ", picture.rounds, "; one takes ", in_seconds(split.step), " (",
                   in_seconds(split.shortest), " to ", in_seconds(split.longest), "): ",
                   in_seconds(split.compute), " until its data is ready, ", in_seconds(split.ranks),
                   " for the last rank, ", in_seconds(split.tail), " for the results of ",
                   bytes_text(static_cast<double>(split.bytes)), "\n");
  }
  if (picture.stands) {
    text += concat("no step has ended for ", in_seconds(picture.step_ended), "\n");
  }
  if (picture.binds != Picture::Binds::kNothing) {
    const bool in_turn = picture.binds == Picture::Binds::kRank && !picture.binds_rank;
    text += concat(in_turn ? "one rank or another" : name_of(picture.binds),
                   picture.binds_who.empty() ? "" : " ", picture.binds_who, " binds ",
                   static_cast<int>(100 * picture.binds_share + 0.5), " % of a step",
                   picture.advice.empty() ? "" : "; " + picture.advice, "\n");
  }
  for (const std::string& finding : picture.findings) text += concat("- ", finding, "\n");
  const auto list = [&](const auto& processes, bool is_server) {
    size_t quiet = 0;
    for (uint32_t i = 0; i < processes.size(); ++i) {
      const Picture::Common& one = processes[i];
      if (!all && !one.outlier) {
        ++quiet;
        continue;
      }
      text += concat(roster.name({is_server, i}), ": ", state_text(one), "; sent ",
                     bytes_text(static_cast<double>(one.report.bytes_sent)), ", received ",
                     bytes_text(static_cast<double>(one.report.bytes_received)), ", memory ",
                     bytes_text(static_cast<double>(one.report.resources.memory)));
      if (one.report.kept > 0) {
        text += concat(", of it kept for others ",
                       bytes_text(static_cast<double>(one.report.kept)));
      }
      text += "\n";
    }
    if (quiet > 0) {
      text += concat(counted(quiet, is_server ? "server" : "rank"), " without anything to tell\n");
    }
  };
  list(picture.ranks, false);
  list(picture.servers, true);
  for (const Groups::View& group : picture.groups) {
    if (!all && !group.outlier) continue;
    text += concat("group ", group.group, " '", group.name, "' (", list_ranks(*group.ranks), "): ",
                   counted(group.rounds, "round"), ", ", counted(group.calls, "call"));
    if (group.in_flight > 0) {
      text += concat(", ", group.in_flight, " in flight; none has ended for ",
                     in_seconds(group.age));
      if (!group.absent.empty()) {
        text += concat("; nothing in flight on ", name_ranks(roster, group.absent));
      }
    }
    text += "\n";
  }
  return text;
}

}  // namespace herring::observe
