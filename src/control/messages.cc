#include "control/messages.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/fields.h"

namespace herring::control {
namespace {

constexpr size_t kMaxAddressBytes = kMaxIdentityBytes + 16;  // a host and a port

// Returns the name of a peer's host, or nothing if it is not one that tells hosts apart, or if it
// could mean something to a terminal, a web page or a metrics system.
std::string host_name_of(std::string text) {
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           c == '.' || c == '_' || c == '-';
  });
  return plain && text != "localhost" && !text.starts_with("localhost.") ? text : std::string();
}

// What differs between the receivers of a ClusterMessage.
struct Own {
  bool start_server = false;
  uint32_t index = 0;
  std::vector<std::pair<uint32_t, std::string>> buses;  // local addresses, with their ranks
  std::vector<Loss> gone;
};

template <typename Io>
void fields(Io& io, Of<Io, Own>& own) {
  io(own.start_server, own.index);
  io.list(own.buses, kMaxRanks, [](auto& io, auto& one) {
    io(one.first);
    io.text(one.second, kMaxIdentityBytes);
  });
  io.list(own.gone, 2 * size_t{kMaxRanks}, [](auto& io, auto& loss) {
    io(loss.is_server, loss.left, loss.index);
  });
}

// Adds what the decoded lists imply; returns false if there is no such cluster.
bool complete(Cluster& cluster) {
  cluster.size = static_cast<uint32_t>(cluster.workers.size());
  if (cluster.size == 0 || cluster.nodes > cluster.size) return false;
  // Local ranks are a permutation within each node, and each node has workers.
  std::vector<uint32_t> local_sizes(cluster.nodes);
  for (uint32_t rank = 0; rank < cluster.size; ++rank) {
    WorkerInfo& worker = cluster.workers[rank];
    worker.rank = rank;
    if (worker.node >= cluster.nodes) return false;
    ++local_sizes[worker.node];
  }
  std::vector<std::vector<bool>> taken;
  for (const uint32_t size : local_sizes) {
    if (size == 0) return false;
    taken.emplace_back(size);
  }
  for (const WorkerInfo& worker : cluster.workers) {
    std::vector<bool>& node = taken[worker.node];
    if (worker.local_rank >= node.size() || node[worker.local_rank]) return false;
    node[worker.local_rank] = true;
  }
  for (uint32_t index = 0; index < cluster.servers.size(); ++index) {
    ServerInfo& server = cluster.servers[index];
    server.index = index;
    if (!std::isfinite(server.weight) || server.weight < 0) return false;
    if (!server.dedicated && server.node >= cluster.nodes) return false;
  }
  return true;
}

template <typename Io>
void settings_of(Io& io, Of<Io, Settings>& settings) {
  std::vector<std::pair<std::string, std::string>> all(settings.begin(), settings.end());
  io.list(all, kMaxSettings, [](auto& io, auto& one) {
    io.text(one.first, kMaxSettingBytes);
    io.text(one.second, kMaxSettingBytes);
  });
  if constexpr (Io::kReads) settings = Settings(all.begin(), all.end());
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

template <typename Io>
void fields(Io& io, Of<Io, WorkerRegistration>& worker) {
  io(worker.rank, worker.size, worker.local_rank, worker.local_size, worker.dedicated_servers);
  io.text(worker.host_id, kMaxIdentityBytes);
  io.text(worker.bus, kMaxIdentityBytes);
  settings_of(io, worker.settings);
}

template <typename Io>
void fields(Io& io, Of<Io, ServerRegistration>& server) {
  io(server.dedicated);
  io(server.dedicated ? server.wanted : server.node);
  io(server.port);
  io.people(server.host, kMaxIdentityBytes);
  io.check(server.port != 0);
}

template <typename Io>
void fields(Io& io, Of<Io, Registration>& registration) {
  io(registration.pid);
  io.times(registration.patience);
  io.people(registration.host_name, kMaxHostNameBytes);
  auto kind = static_cast<uint8_t>(registration.what.index() + 1);
  io(kind);
  if constexpr (Io::kReads) {
    registration.host_name = host_name_of(registration.host_name);
    io.check(kind == 1 || kind == 2);
    if (kind == 2) registration.what = ServerRegistration();
  }
  std::visit(io, registration.what);
}

template <typename Io>
void fields(Io& io, Of<Io, Cluster>& cluster) {
  io(cluster.incarnation, cluster.epoch, cluster.nodes);
  // Workers share hosts, so each host's name is sent only once.
  std::vector<std::string> hosts;
  std::map<std::string_view, uint32_t> numbers;
  if constexpr (!Io::kReads) {
    for (const WorkerInfo& worker : cluster.workers) {
      const auto next = static_cast<uint32_t>(hosts.size());
      if (numbers.emplace(worker.host, next).second) hosts.push_back(worker.host);
    }
  }
  io.list(hosts, kMaxRanks, [](auto& io, auto& host) { io.text(host, kMaxIdentityBytes); });
  io.list(cluster.workers, kMaxRanks, [&](auto& io, auto& worker) {
    io(worker.node, worker.local_rank, worker.pid);
    uint32_t host = 0;
    if constexpr (!Io::kReads) host = numbers.at(worker.host);
    io(host);
    io.check(host < hosts.size());
    if constexpr (Io::kReads) worker.host = io.ok() ? hosts[host] : std::string();
  });
  io.list(cluster.servers, kMaxRanks, [](auto& io, auto& server) {
    io(server.dedicated, server.node, server.weight);
    io.text(server.address, kMaxAddressBytes);
  });
  settings_of(io, cluster.settings);
  if constexpr (Io::kReads) io.check(io.ok() && complete(cluster));
}

template <typename Io>
void fields(Io& io, Of<Io, Rhythm>& rhythm) {
  io.times(rhythm.interval, rhythm.timeout, rhythm.echo, rhythm.received, rhythm.sent);
  if constexpr (Io::kReads) io.check(check_rhythm(rhythm).ok());
}

template <typename Io>
void fields(Io& io, Of<Io, Beat>& beat) {
  io.times(beat.sent);
}

template <typename Io>
void fields(Io& io, Of<Io, LossNotice>& notice) {
  io(notice.epoch);
  io.list(notice.losses, kMaxRanks, [](auto& io, auto& loss) {
    io(loss.is_server, loss.left, loss.index);
    io.people(loss.text, kMaxTextBytes, Lines::kMany);
    io(loss.serving);
  });
  if constexpr (Io::kReads) {
    const size_t count = notice.losses.size();
    io.check(count > 0 && notice.epoch >= count + kFirstEpoch);
    for (size_t i = 0; i < count; ++i) {
      notice.losses[i].epoch = static_cast<uint32_t>(notice.epoch - count + 1 + i);
    }
  }
}

template <typename Io>
void fields(Io& io, Of<Io, Replacement>& replacement) {
  io.choice(replacement.stage, static_cast<size_t>(Replacement::Stage::kServes) + 1);
  io.check(replacement.stage >= Replacement::Stage::kSpare);
  io(replacement.server, replacement.number);
  io.people(replacement.address, kMaxAddressBytes);
  io(replacement.epoch, replacement.serving);
}

template <typename Io>
void fields(Io& io, Of<Io, ServerReport>& report) {
  io(report.server, report.number, report.reachable);
  io.people(report.text, kMaxTextBytes, Lines::kMany);
}

std::string encode(const Registration& registration) { return write_fields(registration); }

Result<Registration> decode_registration(std::string_view payload) {
  return read_fields<Registration>(payload, "registration");
}

std::string encode_own(bool start_server, uint32_t index, const Cluster& cluster,
                       const std::vector<uint32_t>& ranks, const std::vector<Loss>& gone) {
  Own own{start_server, index, {}, gone};
  for (const uint32_t rank : ranks) own.buses.emplace_back(rank, cluster.workers[rank].bus);
  return write_fields(own);
}

std::string encode_common(const Cluster& cluster) { return write_fields(cluster); }

std::string encode(const ClusterMessage& message) {
  std::vector<uint32_t> ranks;
  for (const WorkerInfo& worker : message.cluster.workers) {
    if (!worker.bus.empty()) ranks.push_back(worker.rank);
  }
  return encode_own(message.start_server, message.index, message.cluster, ranks, message.gone) +
         encode_common(message.cluster);
}

Result<ClusterMessage> decode_cluster(std::string_view payload) {
  FieldReader reader(payload);
  Own own;
  Cluster cluster;
  reader(own, cluster);
  for (auto& [rank, bus] : own.buses) {
    reader.check(rank < cluster.workers.size());
    if (reader.ok()) cluster.workers[rank].bus = std::move(bus);
  }
  for (const Loss& loss : own.gone) {
    reader.check(loss.index < (loss.is_server ? cluster.servers.size() : cluster.workers.size()));
  }
  if (!reader.done()) return breach("malformed description of the cluster");
  return ClusterMessage{own.start_server, own.index, std::move(cluster), std::move(own.gone)};
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

std::string encode(const Rhythm& rhythm) { return write_fields(rhythm); }

Result<Rhythm> decode_rhythm(std::string_view payload) {
  return read_fields<Rhythm>(payload, "heartbeat");
}

std::string encode(const Beat& beat) { return write_fields(beat); }

Result<Beat> decode_beat(std::string_view payload) {
  return read_fields<Beat>(payload, "heartbeat");
}

std::string encode(const LossNotice& notice) { return write_fields(notice); }

Result<LossNotice> decode_losses(std::string_view payload) {
  return read_fields<LossNotice>(payload, "notice of losses");
}

Status check_next(const LossNotice& notice, uint32_t epoch) {
  if (notice.epoch == uint64_t{epoch} + notice.losses.size()) return {};
  return breach("malformed notice of losses: epoch ", notice.epoch, " with ", notice.losses.size(),
                " of them, after epoch ", epoch);
}

std::string encode(const Replacement& replacement) { return write_fields(replacement); }

Result<Replacement> decode_replacement(std::string_view payload) {
  return read_fields<Replacement>(payload, "news of a server");
}

std::string encode(const ServerReport& report) { return write_fields(report); }

Result<ServerReport> decode_server_report(std::string_view payload) {
  return read_fields<ServerReport>(payload, "report about a server");
}

std::string encode(const Status& why) {
  FieldWriter out;
  out(static_cast<uint32_t>(why.code()));
  out.people(why.message(), kMaxTextBytes, Lines::kMany);
  return out.take();
}

Status decode_abort(std::string_view payload, Status& why) {
  FieldReader in(payload);
  uint32_t code = 0;
  std::string text;
  in(code);
  in.people(text, kMaxTextBytes, Lines::kMany);
  if (!in.done()) return breach("malformed abort");
  const bool known = code > static_cast<uint32_t>(Code::kOk) &&
                     code <= static_cast<uint32_t>(kLastCode);
  why = Status(known ? static_cast<Code>(code) : Code::kProtocol, std::move(text));
  return {};
}

Status told_to_end(const Status& why) {
  if (why.message().starts_with(kDeadlock)) return {Code::kTimeout, why.message()};
  return {Code::kPeerLost, concat("the job was aborted: ", why.message())};
}

}  // namespace herring::control
