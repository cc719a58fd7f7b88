// Fuzzes payloads of control frames: what decodes must be sound, and encode to the same bytes.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "control/assembly.h"
#include "control/messages.h"

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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view payload(reinterpret_cast<const char*>(data), size);
  check_registration(payload);
  check_cluster(payload);
  (void)decode_rhythm(payload);
  if (auto notice = decode_losses(payload); notice.ok()) {
    const uint32_t before = notice->losses.front().epoch - 1;
    expect(before >= kFirstEpoch && check_next(*notice, before).ok());
    auto again = decode_losses(encode(*notice));
    expect(again.ok() && encode(*again) == encode(*notice));
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
  return {encode(Registration{worker, 1, kSecond}),
          encode(Registration{server, 1, kSecond}),
          encode(message),
          encode(Rhythm{kSecond, 3 * kSecond}),
          encode(LossNotice{3, {{true, false, 1, "server 1 is lost"}, {false, true, 2, {}}}}),
          encode(Status(Code::kTimeout, "too late"))};
}
