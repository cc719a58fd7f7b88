// A picture in Prometheus' text format. python/herring/observe/metrics.py specifies the metrics;
// tests/python/test_status_metrics.py compares both.
#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>

#include "observe/json.h"
#include "observe/picture.h"

namespace herring::observe {
namespace {

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : valid_utf8(text)) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return out;
}

std::string label(const char* name, std::string_view value) {
  return value.empty() ? std::string() : concat(",", name, "=\"", escaped(value), "\"");
}

using Value = std::optional<double>;

class Metrics {
 public:
  explicit Metrics(const Picture& picture) : picture_(picture), roster_(*picture.roster) {
    job_ = concat("job=\"", escaped(roster_.job), "\"",
                  label("slurm_job_id", roster_.slurm_job_id));
  }

  std::string take() { return std::move(out_); }

  void job(const char* name, const char* help, Value value, const std::string& labels = {},
           const char* kind = "gauge") {
    if (!value) return;
    head(name, help, kind);
    sample(name, job_ + labels, *value);
  }
  void job(const char* name, const char* help, const char* by,
           std::initializer_list<std::pair<const char*, Nanos>> values) {
    head(name, help, "gauge");
    for (const auto& [of, value] : values) sample(name, job_ + label(by, of), to_seconds(value));
  }
  // `get` returns the value of a rank, or nothing.
  template <typename Get>
  void ranks(const char* name, const char* help, const Get& get, const char* kind = "gauge") {
    each(name, help, kind, picture_.ranks, [this](uint32_t i) { return rank(i); }, get);
  }
  template <typename Get>
  void servers(const char* name, const char* help, const Get& get, const char* kind = "gauge") {
    each(name, help, kind, picture_.servers, [this](uint32_t i) { return server(i); }, get);
  }
  // The value is always 1, and a label has the text that `get` returns, unless it is empty.
  template <typename Get>
  void rank_text(const char* name, const char* help, const char* by, const Get& get) {
    texts(name, help, by, picture_.ranks, [this](uint32_t i) { return rank(i); }, get);
  }
  template <typename Get>
  void server_text(const char* name, const char* help, const char* by, const Get& get) {
    texts(name, help, by, picture_.servers, [this](uint32_t i) { return server(i); }, get);
  }
  template <typename Get>
  void rank_times(const char* name, const char* help, const char* by, const char* first,
                  const char* second, const Get& get) {
    head(name, help, "gauge");
    for (uint32_t i = 0; i < picture_.ranks.size(); ++i) {
      const auto [a, b] = get(picture_.ranks[i]);
      sample(name, rank(i) + label(by, first), to_seconds(a));
      sample(name, rank(i) + label(by, second), to_seconds(b));
    }
  }

  template <typename Get>
  void groups(const char* name, const char* help, const Get& get, const char* kind = "gauge") {
    head(name, help, kind);
    for (size_t i = 0; i < std::min(picture_.groups.size(), kMostGroups); ++i) {
      const Groups::View& group = picture_.groups[i];
      sample(name, concat(job_, label("group", std::to_string(group.group)),
                          label("comm_name", group.name),
                          label("nranks", std::to_string(group.ranks->size()))),
             static_cast<double>(get(group)));
    }
  }
  template <typename Get>
  void operations(const char* name, const char* help, const Get& get) {
    if (picture_.operations.empty()) return;
    head(name, help, "counter");
    for (const Picture::Operation& one : picture_.operations) {
      sample(name, concat(job_, label("collective", one.collective),
                          label("message_size", one.size)),
             static_cast<double>(get(one)));
    }
  }

 private:
  // Series of more groups would be too many.
  static constexpr size_t kMostGroups = 256;

  void head(const char* name, const char* help, const char* kind) {
    out_ += concat("# HELP ", name, " ", help, "\n# TYPE ", name, " ", kind, "\n");
  }
  void sample(const char* name, const std::string& labels, double value) {
    char number[40];
    std::snprintf(number, sizeof number, "%.15g", value);
    out_ += concat(name, "{", labels, "} ", number, "\n");
  }
  std::string rank(uint32_t i) const {
    const Roster::Rank& who = roster_.ranks[i];
    return concat(job_, ",rank=\"", i, "\",node=\"", who.node, "\"", label("host", who.host));
  }
  std::string server(uint32_t i) const {
    const Roster::Server& who = roster_.servers[i];
    return concat(job_, ",server=\"", i, "\",kind=\"", who.dedicated ? "dedicated" : "colocated",
                  "\"", who.dedicated ? "" : concat(",node=\"", who.node, "\""),
                  label("host", who.host));
  }
  template <typename Items, typename Labels, typename Get>
  void each(const char* name, const char* help, const char* kind, const Items& items,
            const Labels& labels, const Get& get) {
    bool begun = false;
    for (uint32_t i = 0; i < items.size(); ++i) {
      const Value value = get(items[i], i);
      if (!value) continue;
      if (!std::exchange(begun, true)) head(name, help, kind);
      sample(name, labels(i), *value);
    }
  }
  template <typename Items, typename Labels, typename Get>
  void texts(const char* name, const char* help, const char* by, const Items& items,
             const Labels& labels, const Get& get) {
    bool begun = false;
    for (uint32_t i = 0; i < items.size(); ++i) {
      const std::string text = get(items[i]);
      if (text.empty()) continue;
      if (!std::exchange(begun, true)) head(name, help, "gauge");
      sample(name, labels(i) + label(by, text), 1);
    }
  }

  const Picture& picture_;
  const Roster& roster_;
  std::string job_, out_;
};

Value round_trip(const Picture::Common& one) {
  std::vector<Nanos> trips;
  for (const PathReport& path : one.report.paths) {
    if (path.rtt > 0) trips.push_back(path.rtt);
  }
  if (trips.empty()) return std::nullopt;
  return to_seconds(median(std::move(trips)));
}

template <typename T>
Value number(T value) {
  return static_cast<double>(value);
}

}  // namespace

std::string as_metrics(const Picture& picture) {
  const Roster& roster = *picture.roster;
  const Rounds::Split& split = picture.split;
  Metrics m(picture);
  using Rank = Picture::Rank;
  using Server = Picture::Server;

  m.job("herring_job_info", "Always 1; the labels describe the job.", 1.0,
        concat(label("version", roster.version), ",nranks=\"", roster.ranks.size(),
               "\",n_nodes=\"", roster.nodes, "\"", label("id", roster.id)));
  m.job("herring_job_ranks", "Ranks of the job.", number(roster.ranks.size()));
  m.job("herring_job_nodes", "Nodes of the job.", number(roster.nodes));
  m.job("herring_job_epoch", "Generation of the job's membership.", number(picture.epoch));
  m.job("herring_job_uptime_seconds", "Time since the job began.", to_seconds(picture.uptime));
  m.job("herring_job_findings", "Findings that the status reports now.",
        number(picture.findings.size()));
  m.job("herring_steps_total", "Steps that have ended on all ranks.", number(picture.rounds), {},
        "counter");
  m.job("herring_steps_per_second", "Steps per second, lately.", picture.rounds_per_second);
  if (split.step > 0) {
    m.job("herring_step_seconds", "Time of a step, lately: shortest, median and longest.", "stat",
          {{"min", split.shortest}, {"median", split.step}, {"max", split.longest}});
    m.job("herring_step_part_seconds",
          "Time of a step that each part takes, median over ranks. Parts overlap.", "part",
          {{"compute", split.compute}, {"node_stage", split.node_stage}, {"push", split.push},
           {"pull", split.pull}, {"wait_for_ranks", split.ranks}});
    m.job("herring_step_exposed_seconds",
          "Time of a step in which programs waited for averages.", to_seconds(split.exposed));
  }
  if (picture.binds != Picture::Binds::kNothing) {
    m.job("herring_binds_ratio",
          "Share of a step that is due to what binds; the label says what that is.",
          picture.binds_share, label("what", name_of(picture.binds)));
  }

  std::map<uint32_t, Nanos> missing;
  for (const Missing& one : picture.missing) {
    for (const uint32_t rank : one.ranks) missing[rank] = std::max(missing[rank], one.age);
  }
  const auto count = [](auto field) {
    return [field](const auto& one, uint32_t) { return number(one.report.*field); };
  };
  m.rank_text("herring_rank_state", "1 for the state in which the rank is.", "state",
              [](const Rank& rank) { return std::string(name_of(rank.state)); });
  m.ranks("herring_rank_state_seconds", "For how long the rank has been in its state.",
          [](const Rank& rank, uint32_t) -> Value { return to_seconds(rank.age()); });
  m.ranks("herring_rank_heard_seconds", "Time since the rank's last report.",
          [](const Rank& rank, uint32_t) -> Value { return to_seconds(rank.heard); });
  m.ranks("herring_rank_missing_seconds",
          "For how long others have waited for this rank, 0 if nobody does.",
          [&missing](const Rank&, uint32_t i) -> Value { return to_seconds(missing[i]); });
  m.rank_times("herring_rank_late_seconds",
               "How much later than the median rank it gave its data: median and longest.", "stat",
               "median", "max", [](const Rank& rank) {
                 return std::pair{rank.late_by, rank.late.most};
               });
  m.ranks("herring_rank_late_ratio", "Share of steps in which the rank was late.",
          [](const Rank& rank, uint32_t) -> Value { return rank.late_share; });
  m.ranks("herring_rank_score_ratio",
          "Score of the rank, from 0 (last) to 1 (as fast as all).",
          [](const Rank& rank, uint32_t) -> Value { return rank.score; });
  m.rank_text("herring_rank_late_cause", "1 for the cause of its lateness.", "cause",
              [](const Rank& rank) { return rank.cause; });
  m.ranks("herring_rank_chronic", "1 if the rank is late again and again.",
          [](const Rank& rank, uint32_t) { return number(rank.chronic); });
  m.ranks("herring_rank_outlier", "1 if the rank stands out among all ranks.",
          [](const Rank& rank, uint32_t) { return number(rank.outlier); });
  m.ranks("herring_rank_rounds_total", "Rounds of plans that have ended on the rank.",
          count(&Report::rounds), "counter");
  m.ranks("herring_rank_calls_total", "Named operations that have ended on the rank.",
          count(&Report::calls), "counter");
  m.ranks("herring_rank_in_flight", "Operations that have not ended on the rank.",
          count(&Report::in_flight));
  const auto per_step = [](Nanos Rounds::Late::* field) {
    return [field](const Rank& rank, uint32_t) -> Value {
      if (rank.late.rounds == 0) return std::nullopt;
      return to_seconds(rank.late.*field);
    };
  };
  m.ranks("herring_rank_compute_seconds", "Time of a step in which the rank computes.",
          per_step(&Rounds::Late::work));
  m.ranks("herring_rank_wait_seconds", "Time of a step in which the rank's program waits.",
          per_step(&Rounds::Late::waited));
  m.ranks("herring_rank_sent_bytes_total", "Bytes that the rank has sent.",
          count(&Report::bytes_sent), "counter");
  m.ranks("herring_rank_received_bytes_total", "Bytes that the rank has received.",
          count(&Report::bytes_received), "counter");
  m.ranks("herring_rank_retransmits_total", "Segments that TCP has sent again.",
          count(&Report::retransmits), "counter");
  const auto trip = [](const auto& one, uint32_t) { return round_trip(one); };
  m.ranks("herring_rank_rtt_seconds", "Round-trip time of the rank's flows.", trip);
  m.ranks("herring_rank_credit_bytes", "Bytes that a flow of the rank may have outstanding.",
          count(&Report::credit));
  m.ranks("herring_rank_kept_bytes",
          "Bytes that the rank keeps for others, who may lack them when a server dies.",
          count(&Report::kept));
  const auto memory = [](const auto& one, uint32_t) { return number(one.report.resources.memory); };
  m.ranks("herring_rank_memory_bytes", "Resident memory of the rank's process.", memory);
  m.ranks("herring_rank_major_faults_total", "Pages that were read from disk.",
          [](const Rank& rank, uint32_t) { return number(rank.report.resources.major_faults); },
          "counter");
  const auto clock = [](Nanos Report::* field) {
    return [field](const Rank& rank, uint32_t) -> Value {
      if (!rank.reported || rank.report.offset_error < 0) return std::nullopt;
      return to_seconds(rank.report.*field);
    };
  };
  m.ranks("herring_rank_clock_offset_seconds", "Offset of its clock from that of rank 0.",
          clock(&Report::offset));
  m.ranks("herring_rank_clock_error_seconds", "Bound on the error of that offset.",
          clock(&Report::offset_error));

  m.server_text("herring_server_state", "1 for the state in which the server is.", "state",
                [](const Server& server) { return std::string(name_of(server.state)); });
  m.servers("herring_server_heard_seconds", "Time since the server's last report.",
            [](const Server& server, uint32_t) -> Value { return to_seconds(server.heard); });
  m.servers("herring_server_weight_ratio", "Share of all bytes that the server sums.",
            [&roster](const Server&, uint32_t i) -> Value { return roster.servers[i].weight; });
  m.servers("herring_server_outlier", "1 if the server stands out among all servers.",
            [](const Server& server, uint32_t) { return number(server.outlier); });
  m.server_text("herring_server_slow_cause", "1 for the cause of its slowness.", "cause",
                [](const Server& server) { return server.cause; });
  m.servers("herring_server_sent_bytes_total", "Bytes that the server has sent.",
            count(&Report::bytes_sent), "counter");
  m.servers("herring_server_received_bytes_total", "Bytes that it has received.",
            count(&Report::bytes_received), "counter");
  m.servers("herring_server_in_flight", "Sums that have not ended on the server.",
            count(&Report::in_flight));
  m.servers("herring_server_retransmits_total", "Segments that TCP has sent again.",
            count(&Report::retransmits), "counter");
  m.servers("herring_server_rtt_seconds", "Round-trip time of the server's flows.", trip);
  m.servers("herring_server_memory_bytes", "Resident memory of the server's process.", memory);

  using Group = Groups::View;
  if (!picture.groups.empty()) {
    m.groups("herring_group_ranks", "Ranks of a group.",
             [](const Group& group) { return group.ranks->size(); });
    m.groups("herring_group_rounds_total", "Rounds of plans that have begun in the group.",
             [](const Group& group) { return group.rounds; }, "counter");
    m.groups("herring_group_calls_total", "Named operations that have begun in the group.",
             [](const Group& group) { return group.calls; }, "counter");
    m.groups("herring_group_in_flight", "Operations that have not ended, of the rank with most.",
             [](const Group& group) { return group.in_flight; });
    m.groups("herring_group_standstill_seconds",
             "For how long something has been in flight and nothing has ended.",
             [](const Group& group) { return to_seconds(group.age); });
    m.groups("herring_group_absent_ranks",
             "Ranks with nothing in flight in the group, while others wait for long.",
             [](const Group& group) { return group.absent.size(); });
  }
  using Operation = Picture::Operation;
  m.operations("herring_operation_ended_total", "Operations that have ended, on all ranks.",
               [](const Operation& one) { return one.ended; });
  m.operations("herring_operation_bytes_total", "Data of these operations, on all ranks.",
               [](const Operation& one) { return one.bytes; });
  m.operations("herring_operation_seconds_total",
               "Time of these operations, from giving the data to the result, on all ranks.",
               [](const Operation& one) { return one.seconds; });
  return m.take();
}

}  // namespace herring::observe
