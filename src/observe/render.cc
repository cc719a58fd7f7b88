// A picture as JSON and as text. Its metrics: metrics.cc.
#include <algorithm>
#include <cstdio>
#include <tuple>

#include "base/lists.h"
#include "observe/json.h"
#include "observe/picture.h"
#include "observe/status_fields.h"

namespace herring::observe {
namespace {

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
  Json json;
  json.begin_object().field("schema", "herring-status-1");
  put_job(json, picture);
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
  for (const Picture::Operation& one : picture.operations) put_operation(json, one);
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
