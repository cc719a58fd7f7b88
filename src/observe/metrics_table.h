// The metrics of a job: the only place that says which there are. The job's own /metrics, `herring
// status --metrics`, OpenTelemetry, the dashboard and docs/how-to/metrics.md all follow this table.
// Values and labels are read from fields of the status, by their names in its JSON. Labels have the
// names of NCCL Inspector's exporter where they mean the same.
#pragma once

#include <cstdint>

namespace herring::observe {

// What there is one sample for.
enum class Scope : uint8_t { kJob, kRank, kServer, kGroup, kOperation };

// Labels are words such as nranks=size, a label with its field, or late.cause, where the label has
// the last name of the field.
struct ScopeSpec {
  const char* name;
  const char* items;   // the list of the status that has them; a job is one item
  const char* labels;  // of each sample, beside those of the job
};
inline constexpr ScopeSpec kScopes[] = {
    {"job", "", ""},
    {"rank", "ranks", "rank node host"},
    {"server", "servers", "server kind node host"},
    {"group", "groups", "group comm_name=name nranks=size"},
    {"operation", "operations", "collective message_size"},
};
inline constexpr const char* kJobLabels = "job slurm_job_id";

// A value that the status does not have makes no sample, nor does a metric of which it has not all
// labels. A list counts, true is 1.
struct MetricSpec {
  const char* name;  // without herring_; a counter if it ends with _total, else a gauge
  Scope scope;
  const char* help;
  const char* fields = "";  // each makes a sample; if there is none, the sample is 1
  const char* by = "";      // the label that tells several fields apart, by their last names
  const char* labels = "";  // more labels
};

namespace table {
using enum Scope;
inline constexpr MetricSpec kMetrics[] = {
    {"job_info", kJob,
     "Always 1; the labels describe the job.", "", "",
     "version=herring nranks=size n_nodes=nodes id"},
    {"job_ranks", kJob, "Ranks of the job.", "size"},
    {"job_nodes", kJob, "Nodes of the job.", "nodes"},
    {"job_epoch", kJob, "Generation of the job's membership.", "epoch"},
    {"job_uptime_seconds", kJob, "Time since the job began.", "uptime"},
    {"job_findings", kJob, "Findings that the status reports now.", "findings"},
    {"steps_total", kJob, "Steps that have ended on all ranks.", "steps.count"},
    {"steps_per_second", kJob, "Steps per second, lately.", "steps.per_second"},
    {"step_seconds", kJob,
     "Time of a step, lately: shortest, median and longest.",
     "steps.seconds.min steps.seconds.median steps.seconds.max", "stat"},
    {"step_part_seconds", kJob,
     "Time of a step that each part takes, median over ranks. Parts overlap.",
     "steps.compute steps.node_stage steps.push steps.pull steps.wait_for_ranks", "part"},
    {"step_exposed_seconds", kJob,
     "Time of a step in which programs waited for averages.", "steps.exposed"},
    {"binds_ratio", kJob,
     "Share of a step that is due to what limits its speed; the label names it.", "binds.share", "",
     "binds.what"},
    {"rank_state", kRank, "1 for the state in which the rank is.", "", "", "state"},
    {"rank_state_seconds", kRank, "For how long the rank has been in its state.", "for"},
    {"rank_heard_seconds", kRank, "Time since the rank's last report.", "heard"},
    {"rank_missing_seconds", kRank,
     "For how long others have waited for this rank, 0 if nobody does.", "missing"},
    {"rank_late_seconds", kRank,
     "How much later than the median rank it gave its data: median and longest.",
     "late.median late.max", "stat"},
    {"rank_late_ratio", kRank, "Share of steps in which the rank was late.", "late.share"},
    {"rank_score_ratio", kRank, "Score of the rank, from 0 (last) to 1 (as fast as all).", "score"},
    {"rank_late_cause", kRank, "1 for the cause of its lateness.", "", "", "cause"},
    {"rank_chronic", kRank, "1 if the rank is late again and again.", "chronic"},
    {"rank_outlier", kRank, "1 if the rank stands out among all ranks.", "outlier"},
    {"rank_rounds_total", kRank, "Rounds of plans that have ended on the rank.", "rounds"},
    {"rank_calls_total", kRank, "Named operations that have ended on the rank.", "calls"},
    {"rank_in_flight", kRank, "Operations that have not ended on the rank.", "in_flight"},
    {"rank_compute_seconds", kRank, "Time of a step in which the rank computes.", "compute"},
    {"rank_wait_seconds", kRank, "Time of a step in which the rank's program waits.", "wait"},
    {"rank_sent_bytes_total", kRank, "Bytes that the rank has sent.", "bytes_sent"},
    {"rank_received_bytes_total", kRank, "Bytes that the rank has received.", "bytes_received"},
    {"rank_retransmits_total", kRank, "Segments that TCP has sent again.", "retransmits"},
    {"rank_rtt_seconds", kRank, "Round-trip time of the rank's flows.", "rtt"},
    {"rank_credit_bytes", kRank, "Bytes that a flow of the rank may have outstanding.", "credit"},
    {"rank_kept_bytes", kRank,
     "Bytes that the rank keeps for others, who may lack them when a server dies.", "kept"},
    {"rank_memory_bytes", kRank, "Resident memory of the rank's process.", "memory"},
    {"rank_major_faults_total", kRank, "Pages that were read from disk.", "major_faults"},
    {"rank_clock_offset_seconds", kRank,
     "Offset of its clock from that of rank 0.", "clock_offset"},
    {"rank_clock_error_seconds", kRank, "Bound on the error of that offset.", "clock_error"},
    {"server_state", kServer, "1 for the state in which the server is.", "", "", "state"},
    {"server_heard_seconds", kServer, "Time since the server's last report.", "heard"},
    {"server_weight_ratio", kServer, "Share of all bytes that the server sums.", "weight"},
    {"server_outlier", kServer, "1 if the server stands out among all servers.", "outlier"},
    {"server_slow_cause", kServer, "1 for the cause of its slowness.", "", "", "cause"},
    {"server_sent_bytes_total", kServer, "Bytes that the server has sent.", "bytes_sent"},
    {"server_received_bytes_total", kServer, "Bytes that it has received.", "bytes_received"},
    {"server_in_flight", kServer, "Sums that have not ended on the server.", "in_flight"},
    {"server_retransmits_total", kServer, "Segments that TCP has sent again.", "retransmits"},
    {"server_rtt_seconds", kServer, "Round-trip time of the server's flows.", "rtt"},
    {"server_memory_bytes", kServer, "Resident memory of the server's process.", "memory"},
    {"group_ranks", kGroup, "Ranks of a group.", "size"},
    {"group_rounds_total", kGroup, "Rounds of plans that have begun in the group.", "rounds"},
    {"group_calls_total", kGroup, "Named operations that have begun in the group.", "calls"},
    {"group_in_flight", kGroup,
     "Operations that have not ended, of the rank with most.", "in_flight"},
    {"group_standstill_seconds", kGroup,
     "For how long something has been in flight and nothing has ended.", "for"},
    {"group_absent_ranks", kGroup,
     "Ranks with nothing in flight in the group, while others wait for long.", "absent"},
    {"operation_ended_total", kOperation, "Operations that have ended, on all ranks.", "ended"},
    {"operation_bytes_total", kOperation, "Data of these operations, on all ranks.", "bytes"},
    {"operation_seconds_total", kOperation,
     "Time of these operations, from giving the data to the result, on all ranks.", "seconds"},
};
}  // namespace table
using table::kMetrics;

}  // namespace herring::observe
