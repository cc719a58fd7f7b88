// Fuzzes payloads of control frames: what decodes must be sound, and encode to the same bytes.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "control/assembly.h"
#include "control/messages.h"
#include "observe/monitor.h"
#include "observe/record.h"
#include "observe/report.h"
#include "observe/timeline.h"

using namespace herring;           // NOLINT: a fuzz target
using namespace herring::control;  // NOLINT

namespace {

void expect(bool sound) {
  if (!sound) std::abort();
}

void check_registration(std::string_view payload) {
  auto decoded = decode_registration(payload);
  if (!decoded.ok()) return;
  if (const auto* worker = std::get_if<WorkerRegistration>(&decoded->what)) {
    expect(check_limits(*worker).ok());
    // Assembles a job of one rank with this registration. Any outcome but a crash is allowed.
    const std::vector<RegisteredWorker> all = {{*worker, "host", decoded->pid}};
    if (find_contradiction(all, 1, worker->dedicated_servers).ok()) {
      auto cluster = assemble(all);
      if (cluster.ok()) expect(decode_cluster(encode(ClusterMessage{false, 0, *cluster})).ok());
      (void)choose_weights(worker->settings, 1, std::min(worker->dedicated_servers, 8u));
    }
  }
  auto again = decode_registration(encode(*decoded));
  expect(again.ok() && encode(*again) == encode(*decoded));
}

void check_cluster(std::string_view payload) {
  auto decoded = decode_cluster(payload);
  if (!decoded.ok()) return;
  const Cluster& cluster = decoded->cluster;
  size_t all = 0;
  for (uint32_t node = 0; node < cluster.nodes; ++node) {
    for (uint32_t rank : cluster.ranks_of(node)) expect(cluster.workers[rank].node == node);
    all += cluster.local_size(node);
  }
  expect(all == cluster.size);
  auto again = decode_cluster(encode(*decoded));
  expect(again.ok() && encode(*again) == encode(*decoded));
}

// What processes tell about themselves, and what is made of it for people.
void check_observed(std::string_view payload) {
  if (auto report = observe::decode_report(payload); report.ok()) {
    auto again = observe::decode_report(observe::encode(*report));
    expect(again.ok() && observe::encode(*again) == observe::encode(*report));
    observe::Roster roster;
    roster.ranks.resize(2);
    roster.servers.resize(1);
    observe::Monitor monitor(roster, {}, 0);
    for (int i = 1; i <= 3; ++i) {
      for (const observe::Process& who : {observe::Process{false, 0}, {false, 1}, {true, 0}}) {
        monitor.report(who, *report, i * kSecond);
      }
      monitor.tick(i * kSecond);
    }
    const observe::Picture picture = monitor.picture(4 * kSecond);
    expect(!observe::as_json(picture).empty() && !observe::as_metrics(picture).empty());
    expect(!observe::as_text(picture, true).empty());
    (void)monitor.rank_texts(4 * kSecond);
  }
  if (auto texts = observe::decode_rank_texts(payload); texts.ok()) {
    auto again = observe::decode_rank_texts(observe::encode(*texts));
    expect(again.ok() && *again == *texts);
  }
  if (auto record = observe::decode_process_record(payload); record.ok()) {
    auto again = observe::decode_process_record(observe::encode(*record));
    expect(again.ok() && observe::encode(*again) == observe::encode(*record));
    observe::Roster roster;
    roster.ranks.resize(1);
    observe::Picture picture;
    picture.roster = &roster;
    picture.ranks.resize(1);
    observe::Timeline timeline(roster, 0);
    (void)timeline.add({false, 0}, *record, kSecond);
    expect(!observe::record_as_json(picture, "", {{{false, 0}, *record}}, 0).empty());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view payload(reinterpret_cast<const char*>(data), size);
  check_registration(payload);
  check_cluster(payload);
  (void)decode_rhythm(payload);
  (void)decode_beat(payload);
  check_observed(payload);
  if (auto notice = decode_losses(payload); notice.ok()) {
    const uint32_t before = notice->losses.front().epoch - 1;
    expect(before >= kFirstEpoch && check_next(*notice, before).ok());
    auto again = decode_losses(encode(*notice));
    expect(again.ok() && encode(*again) == encode(*notice));
  }
  if (auto news = decode_replacement(payload); news.ok()) {
    expect(decode_replacement(encode(*news)).ok());
  }
  if (auto report = decode_server_report(payload); report.ok()) {
    expect(decode_server_report(encode(*report)).ok());
  }
  Status why;
  if (decode_abort(payload, why).ok()) expect(!why.ok() && decode_abort(encode(why), why).ok());
  return 0;
}

std::vector<std::string> seeds() {
  WorkerRegistration worker;
  worker.host_id = "host";
  worker.bus = "bus";
  worker.settings = {{"server_weights", "1,2"}, {"a", "b"}};
  ServerRegistration server;
  server.port = 7000;
  server.host = "10.0.0.1";
  ClusterMessage message;
  message.cluster.size = 3;
  message.cluster.nodes = 2;
  message.cluster.workers = {{0, 0, 0, "a", 1, "x"}, {1, 1, 1, "b", 2, "y"}, {2, 1, 0, "b", 3, ""}};
  message.cluster.servers = {{0, true, ~0u, "c:1", 0.5}, {1, false, 1, "b:2", 0.5}};
  message.cluster.settings = worker.settings;
  observe::Report report;
  report.where = "allreduce 'x'";
  report.samples = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, {0, 1, 3, 3, 4, 5, 6, 7, 8, 9, 10}};
  report.paths = {{0, 1, 1, 0}};
  report.lateness = {{0, {1, 1, 1, 1, 1, 1}}, {1, {2, 0, 0, 9, 0, 0}}};
  report.missing = {{"'x'", kSecond, {1}}, {"send to rank 1 (tag 0)", kSecond, {1}, 0}};
  report.groups = {{0, false, 1, 1, 1, 5, "world", {}}, {3, false, 0, 2, 1, 5, "tp", {0, 1}}};
  report.operations = {{0, 1, 2, 3, 4}};
  observe::ProcessRecord record;
  record.failure = "too late";
  record.groups = {{3, false, 0, 2, 1, 5, "tp", {0, 1}}};
  record.entries.resize(2);
  record.entries[0].at = {1, 2, 3, 4, 5, 6};
  record.entries[0].set_name("net");
  return {observe::encode(report),
          observe::encode(observe::RankTexts{{0, "computes", 1}, {1, "", 5}}),
          observe::encode(record),
          encode(Beat{kSecond}),
          encode(Registration{worker, 1, kSecond}),
          encode(Registration{server, 1, kSecond}),
          encode(message),
          encode(Rhythm{kSecond, 3 * kSecond}),
          encode(LossNotice{3, {{true, false, 1, "server 1 is lost"}, {false, true, 2, {}}}}),
          encode(LossNotice{2, {{true, false, 0, "server 0 is lost", 2, {false, true}}}}),
          encode(Replacement{Replacement::Stage::kServes, 1, 1, "c:1", 3, {true, true}}),
          encode(ServerReport{1, 1, false, "no route"}),
          encode(Status(Code::kTimeout, "too late"))};
}
