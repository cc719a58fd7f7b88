// The fields of the status, for its JSON and for its metrics. `Out` is a Json, or what has its
// functions.
#pragma once

#include <utility>
#include <vector>

#include "observe/picture.h"

namespace herring::observe {

template <typename Out, typename T>
void text_or_null(Out& json, const char* name, const T& text) {
  json.key(name);
  text.empty() ? json.null() : json.value(text);
}

template <typename Out>
void put_common(Out& json, const Picture::Common& one) {
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

template <typename Out>
void put_rank(Out& json, const Roster& roster, uint32_t index, const Picture::Rank& rank) {
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

template <typename Out>
void put_server(Out& json, const Roster& roster, uint32_t index, const Picture::Server& server) {
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

template <typename Out>
void put_group(Out& json, const Groups::View& group) {
  json.begin_object().field("group", group.group).field("name", group.name);
  json.field("size", group.ranks->size()).field("ranks", *group.ranks);
  json.field("rounds", group.rounds).field("calls", group.calls);
  json.field("in_flight", group.in_flight).field("for", to_seconds(group.age));
  json.field("absent", group.absent).field("outlier", group.outlier).end_object();
}

template <typename Out>
void put_operation(Out& json, const Picture::Operation& one) {
  json.begin_object().field("collective", one.collective).field("message_size", one.size);
  json.field("ended", one.ended).field("bytes", one.bytes).field("seconds", one.seconds);
  json.end_object();
}

// What the status says about the job as a whole, apart from findings.
template <typename Out>
void put_job(Out& json, const Picture& picture) {
  const Roster& roster = *picture.roster;
  const Rounds::Split& split = picture.split;
  text_or_null(json, "herring", roster.version);
  text_or_null(json, "slurm_job_id", roster.slurm_job_id);
  json.field("job", roster.job).field("id", roster.id).key("time").exact(picture.time);
  json.field("uptime", to_seconds(picture.uptime)).field("size", roster.ranks.size());
  json.field("nodes", roster.nodes).field("epoch", picture.epoch);
  json.key("servers_to_spare");
  roster.failover ? json.value(picture.servers_to_spare()) : json.null();
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
}

}  // namespace herring::observe
