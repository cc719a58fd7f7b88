// A report and a record with something in every field.
#pragma once

#include "observe/record.h"
#include "observe/report.h"

namespace herring::observe {

inline Report full_report() {
  Report report;
  report.sent = 5;
  report.offset = -7;
  report.offset_error = 9;
  report.still = {14, 15};
  report.where = "allreduce 'x'";
  report.age = kSecond;
  report.stack = "train.py:40 in load";
  report.cause = "input";
  report.rounds = 11;
  report.calls = 12;
  report.in_flight = 2;
  report.credit = 4096;
  report.kept = 13;
  report.samples.push_back({1, 2, 3, 10, 20, 30, 40, 50, 60, 70, 80});
  report.stride = 4;
  report.resources = {1, 2, 3, 4};
  report.bytes_sent = 100;
  report.bytes_received = 200;
  report.retransmits = 3;
  report.paths.push_back({1, 2, 3, 4});
  report.lateness.emplace_back(7, Lateness{1, 2, 3, 4, 5, 6});
  report.sums = 8;
  report.sum_time = 9;
  report.missing.push_back({"'m' (round 3)", kSecond, {1, 4}});
  report.missing.push_back({"receive from rank 2 (tag 7)", kSecond, {2}, 3});
  report.groups.push_back({3, true, 1, 2, 3, 4, "tp", {0, 7}});
  report.operations.push_back({1, 2, 3, 4, 5});
  return report;
}

inline Entry entry_of(uint64_t id, bool ended = true) {
  Entry entry;
  entry.id = id;
  entry.kind = Kind::kBuffer;
  entry.outcome = Code::kTimeout;
  entry.ended = ended;
  entry.group = 1;
  entry.stream = 2;
  entry.round = 3;
  entry.buffer = 4;
  entry.number = 14;
  entry.bytes = 5;
  entry.at = {6, 7, 8, 9, 10, 11};
  entry.waited = 12;
  entry.set_name("net");
  return entry;
}

inline ProcessRecord full_record() {
  ProcessRecord record;
  record.offset = -5;
  record.offset_error = 3;
  record.age = kSecond;
  record.failure = "it\nfailed";
  record.where = "allreduce 'x'";
  record.stack = "train.py:40 in load";
  record.groups = full_report().groups;
  record.entries = {entry_of(1), entry_of(2, false)};
  record.lost = 2;
  return record;
}

}  // namespace herring::observe
