#include "control/messages.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "base/bytes.h"

namespace herring::control {
namespace {

Status malformed(const char* what) { return breach("malformed ", what); }

void put_settings(ByteWriter& out, const Settings& settings) {
  out.put(static_cast<uint32_t>(settings.size()));
  for (const auto& [name, value] : settings) out.text(name).text(value);
}

// Fails softly like the reader itself: the caller must check reader.ok() in the end.
Settings get_settings(ByteReader& in, bool& sound) {
  Settings settings;
  const auto count = in.get<uint32_t>();
  if (count > kMaxSettings) sound = false;
  for (uint32_t i = 0; sound && in.ok() && i < count; ++i) {
    std::string name = in.text(kMaxSettingBytes);
    std::string value = in.text(kMaxSettingBytes);
    if (in.ok()) settings.emplace(std::move(name), std::move(value));
  }
  return settings;
}

void put_serving(ByteWriter& out, const std::vector<bool>& serving) {
  out.put(static_cast<uint32_t>(serving.size()));
  for (const bool serves : serving) out.put(static_cast<uint8_t>(serves));
}

std::vector<bool> get_serving(ByteReader& in, bool& sound) {
  const auto count = in.get<uint32_t>();
  if (count > kMaxRanks || count > in.remaining()) sound = false;
  std::vector<bool> serving(sound ? count : 0);
  for (size_t i = 0; i < serving.size(); ++i) serving[i] = in.get<uint8_t>() != 0;
  return serving;
}

// Returns the name of a peer's host, or nothing if it is not one that tells hosts apart, or if it
// could mean something to a terminal, a web page or a metrics system.
std::string host_name_of(std::string text) {
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           c == '.' || c == '_' || c == '-';
  });
  return plain && text != "localhost" && !text.starts_with("localhost.") ? text : std::string();
}

bool is_time(Nanos t) { return t >= 0 && t < kEndless; }

// Makes text from a peer safe for messages for people.
std::string printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') c = '?';
  }
  return text;
}

}  // namespace

Status check_limits(const WorkerRegistration& registration) {
  const auto too_large = [](const std::string& what, size_t is, size_t limit) {
    return Status(Code::kConfiguration, concat(what, " has ", is, " bytes; at most ", limit,
                                               " can be registered"));
  };
  if (registration.settings.size() > kMaxSettings) {
    return {Code::kConfiguration, concat(registration.settings.size(), " shared settings; at most ",
                                         kMaxSettings, " can be registered")};
  }
  for (const auto& [name, value] : registration.settings) {
    if (name.size() > kMaxSettingBytes) {
      return too_large("the name of a setting", name.size(), kMaxSettingBytes);
    }
    if (value.size() > kMaxSettingBytes) {
      return too_large(concat("setting '", name, "'"), value.size(), kMaxSettingBytes);
    }
  }
  if (registration.host_id.size() > kMaxIdentityBytes) {
    return too_large("the host identity (HERRING_HOST_ID)", registration.host_id.size(),
                     kMaxIdentityBytes);
  }
  if (registration.bus.size() > kMaxIdentityBytes) {
    return too_large("the local address", registration.bus.size(), kMaxIdentityBytes);
  }
  return {};
}

std::string encode(const Registration& registration) {
  ByteWriter out;
  out.put(registration.pid).put(registration.patience);
  out.text(std::string_view(registration.host_name).substr(0, kMaxHostNameBytes));
  if (const auto* worker = std::get_if<WorkerRegistration>(&registration.what)) {
    out.put(uint8_t{1}).put(worker->rank).put(worker->size);
    out.put(static_cast<int32_t>(worker->local_rank)).put(static_cast<int32_t>(worker->local_size));
    out.put(worker->dedicated_servers).text(worker->host_id).text(worker->bus);
    put_settings(out, worker->settings);
  } else {
    const auto& server = std::get<ServerRegistration>(registration.what);
    out.put(uint8_t{2}).put(static_cast<uint8_t>(server.dedicated));
    out.put(server.dedicated ? server.wanted : server.node);
    out.put(server.port).text(server.host);
  }
  return out.take();
}

Result<Registration> decode_registration(std::string_view payload) {
  ByteReader in(payload);
  Registration registration;
  bool sound = true;
  registration.pid = in.get<int64_t>();
  registration.patience = in.get<Nanos>();
  if (registration.patience < 0) sound = false;
  registration.host_name = host_name_of(in.text(kMaxHostNameBytes));
  const auto kind = in.get<uint8_t>();
  if (kind == 1) {
    WorkerRegistration worker;
    worker.rank = in.get<uint32_t>();
    worker.size = in.get<uint32_t>();
    worker.local_rank = in.get<int32_t>();
    worker.local_size = in.get<int32_t>();
    worker.dedicated_servers = in.get<uint32_t>();
    worker.host_id = in.text(kMaxIdentityBytes);
    worker.bus = in.text(kMaxIdentityBytes);
    worker.settings = get_settings(in, sound);
    registration.what = std::move(worker);
  } else if (kind == 2) {
    ServerRegistration server;
    server.dedicated = in.get<uint8_t>() != 0;
    (server.dedicated ? server.wanted : server.node) = in.get<uint32_t>();
    server.port = in.get<uint16_t>();
    server.host = printable(in.text(kMaxIdentityBytes));
    registration.what = std::move(server);
    sound = sound && std::get<ServerRegistration>(registration.what).port != 0;
  } else {
    sound = false;
  }
  if (!sound || !in.done()) return malformed("registration");
  return registration;
}

std::string encode_own(bool start_server, uint32_t index, const Cluster& cluster,
                       const std::vector<uint32_t>& ranks, const std::vector<Loss>& gone) {
  ByteWriter out;
  out.put(static_cast<uint8_t>(start_server)).put(index);
  out.put(static_cast<uint32_t>(ranks.size()));
  for (const uint32_t rank : ranks) out.put(rank).text(cluster.workers[rank].bus);
  out.put(static_cast<uint32_t>(gone.size()));
  for (const Loss& loss : gone) {
    out.put(static_cast<uint8_t>(loss.is_server)).put(static_cast<uint8_t>(loss.left));
    out.put(loss.index);
  }
  return out.take();
}

std::string encode_common(const Cluster& cluster) {
  ByteWriter out;
  out.put(cluster.incarnation).put(cluster.epoch).put(cluster.nodes);
  // Workers share hosts, so each host name is sent only once.
  std::unordered_map<std::string_view, uint32_t> number;
  std::vector<std::string_view> hosts;
  for (const WorkerInfo& worker : cluster.workers) {
    const auto count = static_cast<uint32_t>(hosts.size());
    if (number.emplace(worker.host, count).second) hosts.push_back(worker.host);
  }
  out.put(static_cast<uint32_t>(hosts.size()));
  for (const std::string_view host : hosts) out.text(host);
  out.put(static_cast<uint32_t>(cluster.workers.size()));
  for (const WorkerInfo& worker : cluster.workers) {
    out.put(worker.node).put(worker.local_rank).put(worker.pid).put(number[worker.host]);
  }
  out.put(static_cast<uint32_t>(cluster.servers.size()));
  for (const ServerInfo& server : cluster.servers) {
    out.put(static_cast<uint8_t>(server.dedicated)).put(server.node).put(server.weight);
    out.text(server.address);
  }
  put_settings(out, cluster.settings);
  return out.take();
}

std::string encode(const ClusterMessage& message) {
  std::vector<uint32_t> ranks;
  for (const WorkerInfo& worker : message.cluster.workers) {
    if (!worker.bus.empty()) ranks.push_back(worker.rank);
  }
  return encode_own(message.start_server, message.index, message.cluster, ranks, message.gone) +
         encode_common(message.cluster);
}

Result<ClusterMessage> decode_cluster(std::string_view payload) {
  ByteReader in(payload);
  ClusterMessage message;
  Cluster& cluster = message.cluster;
  bool sound = true;
  message.start_server = in.get<uint8_t>() != 0;
  message.index = in.get<uint32_t>();
  const auto buses = in.get<uint32_t>();
  std::vector<std::pair<uint32_t, std::string>> bus_of;
  for (uint32_t i = 0; in.ok() && i < buses; ++i) {
    const auto rank = in.get<uint32_t>();
    bus_of.emplace_back(rank, in.text(kMaxIdentityBytes));
  }
  const auto gone = in.get<uint32_t>();
  for (uint32_t i = 0; in.ok() && i < gone; ++i) {
    Loss loss;
    loss.is_server = in.get<uint8_t>() != 0;
    loss.left = in.get<uint8_t>() != 0;
    loss.index = in.get<uint32_t>();
    message.gone.push_back(std::move(loss));
  }
  cluster.incarnation = in.get<uint32_t>();
  cluster.epoch = in.get<uint32_t>();
  cluster.nodes = in.get<uint32_t>();
  const auto host_count = in.get<uint32_t>();
  std::vector<std::string> hosts;
  for (uint32_t i = 0; in.ok() && i < host_count; ++i) {
    hosts.push_back(in.text(kMaxIdentityBytes));
  }
  cluster.size = in.get<uint32_t>();
  // Memory is reserved only for bytes that are there: a worker takes at least 20.
  if (cluster.size == 0 || cluster.size > std::min<size_t>(kMaxRanks, in.remaining() / 20) ||
      cluster.nodes > cluster.size) {
    sound = false;
  }
  std::vector<uint32_t> local_sizes(sound && in.ok() ? cluster.nodes : 0);
  for (uint32_t rank = 0; sound && in.ok() && rank < cluster.size; ++rank) {
    WorkerInfo worker;
    worker.rank = rank;
    worker.node = in.get<uint32_t>();
    worker.local_rank = in.get<uint32_t>();
    worker.pid = in.get<int64_t>();
    const auto host = in.get<uint32_t>();
    if (worker.node >= cluster.nodes || worker.local_rank >= cluster.size ||
        host >= hosts.size()) {
      sound = false;
    } else {
      worker.host = hosts[host];
      ++local_sizes[worker.node];
    }
    cluster.workers.push_back(std::move(worker));
  }
  for (auto& [rank, bus] : bus_of) {
    if (rank < cluster.workers.size()) {
      cluster.workers[rank].bus = std::move(bus);
    } else {
      sound = false;
    }
  }
  // Checks that local ranks are a permutation within each node.
  std::vector<std::vector<bool>> taken(local_sizes.size());
  for (size_t node = 0; sound && node < taken.size(); ++node) {
    taken[node].resize(local_sizes[node]);
    sound = local_sizes[node] > 0;
  }
  for (const WorkerInfo& worker : cluster.workers) {
    if (!sound || !in.ok()) break;
    std::vector<bool>& node = taken[worker.node];
    sound = worker.local_rank < node.size() && !node[worker.local_rank];
    if (sound) node[worker.local_rank] = true;
  }
  const auto servers = in.get<uint32_t>();
  if (servers > kMaxRanks) sound = false;
  for (uint32_t index = 0; sound && in.ok() && index < servers; ++index) {
    ServerInfo server;
    server.index = index;
    server.dedicated = in.get<uint8_t>() != 0;
    server.node = in.get<uint32_t>();
    server.weight = in.get<double>();
    server.address = in.text(kMaxIdentityBytes + 16);
    sound = std::isfinite(server.weight) && server.weight >= 0 &&
            (server.dedicated || server.node < cluster.nodes);
    cluster.servers.push_back(std::move(server));
  }
  cluster.settings = get_settings(in, sound);
  for (const Loss& loss : message.gone) {
    const size_t limit = loss.is_server ? cluster.servers.size() : cluster.workers.size();
    sound = sound && loss.index < limit;
  }
  if (!sound || !in.done()) return malformed("description of the cluster");
  return message;
}

Status check_rhythm(const Rhythm& rhythm) {
  if (rhythm.interval < kMillisecond || rhythm.timeout > 7 * 86400 * kSecond ||
      rhythm.interval > rhythm.timeout / 2) {
    return {Code::kConfiguration,
            concat("HERRING_HEARTBEAT_INTERVAL is ", to_seconds(rhythm.interval),
                   " s and HERRING_HEARTBEAT_TIMEOUT ", to_seconds(rhythm.timeout),
                   " s: the interval must be at least 0.001 s, the timeout at least twice the "
                   "interval and at most a week")};
  }
  return {};
}

std::string encode(const Rhythm& rhythm) {
  return ByteWriter().put(rhythm.interval).put(rhythm.timeout).put(rhythm.echo)
      .put(rhythm.received).put(rhythm.sent).take();
}

Result<Rhythm> decode_rhythm(std::string_view payload) {
  ByteReader in(payload);
  Rhythm rhythm;
  rhythm.interval = in.get<Nanos>();
  rhythm.timeout = in.get<Nanos>();
  rhythm.echo = in.get<Nanos>();
  rhythm.received = in.get<Nanos>();
  rhythm.sent = in.get<Nanos>();
  // Times are subtracted from each other.
  const bool sane = is_time(rhythm.echo) && is_time(rhythm.received) && is_time(rhythm.sent);
  if (!in.done() || !sane || !check_rhythm(rhythm).ok()) return malformed("heartbeat");
  return rhythm;
}

std::string encode(const Beat& beat) { return ByteWriter().put(beat.sent).take(); }

Result<Beat> decode_beat(std::string_view payload) {
  ByteReader in(payload);
  const Beat beat{in.get<Nanos>()};
  if (!in.done() || !is_time(beat.sent)) return malformed("heartbeat");
  return beat;
}

std::string encode(const LossNotice& notice) {
  ByteWriter out;
  out.put(notice.epoch).put(static_cast<uint32_t>(notice.losses.size()));
  for (const Loss& loss : notice.losses) {
    out.put(static_cast<uint8_t>(loss.is_server)).put(static_cast<uint8_t>(loss.left));
    out.put(loss.index).text(std::string_view(loss.text).substr(0, kMaxTextBytes));
    put_serving(out, loss.serving);
  }
  return out.take();
}

Result<LossNotice> decode_losses(std::string_view payload) {
  ByteReader in(payload);
  LossNotice notice;
  notice.epoch = in.get<uint32_t>();
  const auto count = in.get<uint32_t>();
  bool sound = true;
  for (uint32_t i = 0; sound && in.ok() && i < count; ++i) {
    Loss loss;
    loss.is_server = in.get<uint8_t>() != 0;
    loss.left = in.get<uint8_t>() != 0;
    loss.index = in.get<uint32_t>();
    loss.text = printable(in.text(kMaxTextBytes));
    loss.serving = get_serving(in, sound);
    loss.epoch = notice.epoch - count + 1 + i;
    notice.losses.push_back(std::move(loss));
  }
  sound = sound && in.done() && count > 0;
  if (!sound || notice.epoch < count || notice.epoch - count < kFirstEpoch) {
    return malformed("notice of losses");
  }
  return notice;
}

Status check_next(const LossNotice& notice, uint32_t epoch) {
  if (notice.epoch == uint64_t{epoch} + notice.losses.size()) return {};
  return breach("malformed notice of losses: epoch ", notice.epoch, " with ", notice.losses.size(),
                " of them, after epoch ", epoch);
}

std::string encode(const Replacement& replacement) {
  ByteWriter out;
  out.put(static_cast<uint8_t>(replacement.stage)).put(replacement.server);
  out.put(replacement.number).text(replacement.address).put(replacement.epoch);
  put_serving(out, replacement.serving);
  return out.take();
}

Result<Replacement> decode_replacement(std::string_view payload) {
  ByteReader in(payload);
  Replacement replacement;
  bool sound = true;
  replacement.stage = static_cast<Replacement::Stage>(in.get<uint8_t>());
  replacement.server = in.get<uint32_t>();
  replacement.number = in.get<uint32_t>();
  replacement.address = printable(in.text(kMaxIdentityBytes + 16));
  replacement.epoch = in.get<uint32_t>();
  replacement.serving = get_serving(in, sound);
  sound = sound && replacement.stage >= Replacement::Stage::kSpare &&
          replacement.stage <= Replacement::Stage::kServes;
  if (!sound || !in.done()) return malformed("news of a server");
  return replacement;
}

std::string encode(const ServerReport& report) {
  ByteWriter out;
  out.put(report.server).put(report.number).put(static_cast<uint8_t>(report.reachable));
  out.text(std::string_view(report.text).substr(0, kMaxTextBytes));
  return out.take();
}

Result<ServerReport> decode_server_report(std::string_view payload) {
  ByteReader in(payload);
  ServerReport report;
  report.server = in.get<uint32_t>();
  report.number = in.get<uint32_t>();
  report.reachable = in.get<uint8_t>() != 0;
  report.text = printable(in.text(kMaxTextBytes));
  if (!in.done()) return malformed("report about a server");
  return report;
}

std::string encode(const Status& why) {
  ByteWriter out;
  out.put(static_cast<uint32_t>(why.code()));
  out.text(std::string_view(why.message()).substr(0, kMaxTextBytes));
  return out.take();
}

Status decode_abort(std::string_view payload, Status& why) {
  ByteReader in(payload);
  const auto code = in.get<uint32_t>();
  std::string text = printable(in.text(kMaxTextBytes));
  if (!in.done()) return malformed("abort");
  const bool known = code > static_cast<uint32_t>(Code::kOk) &&
                     code <= static_cast<uint32_t>(kLastCode);
  why = Status(known ? static_cast<Code>(code) : Code::kProtocol, std::move(text));
  return {};
}

}  // namespace herring::control
