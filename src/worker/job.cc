#include "worker/job.h"

#include <condition_variable>
#include <thread>

#include "base/bytes.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "reduce/reduce.h"
#include "transport/tcp/connector.h"
#include "transport/tcp/transport.h"
#include "worker/options.h"

namespace herring::worker {
namespace {

using transport::Address;


ServingHost serving_host_of(const control::ServerInfo& server) {
  const auto address = transport::parse_address(server.address, "a server's address");
  return serving_host(address.ok() ? address->host : "");
}

std::string encode_bus(const LocalAddress& address) {
  ByteWriter out;
  out.text(address.name).raw(address.token.data(), address.token.size());
  return out.take();
}

Result<LocalAddress> decode_bus(const std::string& text) {
  ByteReader in(text);
  LocalAddress address;
  address.name = in.text(128);
  in.raw(address.token.data(), address.token.size());
  if (!in.done()) return breach("malformed local address");
  return address;
}

Result<std::string> source_address(const Settings& settings) {
  const std::string& name = settings.get_string("interface");
  return name.empty() ? Result<std::string>(std::string())
                      : transport::tcp::interface_address(name);
}

Result<control::Member::Options> member_options(const std::string& rendezvous,
                                                const std::string& secret,
                                                const Settings& settings) {
  auto address = transport::parse_address(rendezvous, "HERRING_RENDEZVOUS");
  if (!address.ok()) return address.status();
  auto source = source_address(settings);
  if (!source.ok()) return source.status();
  control::Member::Options options;
  options.rendezvous = *address;
  options.source = *source;
  options.credentials = {secret, wire::job_id(settings.get_string("job"))};
  options.connect_timeout = from_seconds(settings.get_seconds("connect_timeout"));
  options.warn_after = from_seconds(settings.get_seconds("warn_after"));
  options.heartbeat_interval = from_seconds(settings.get_seconds("heartbeat_interval"));
  options.heartbeat_timeout = from_seconds(settings.get_seconds("heartbeat_timeout"));
  return options;
}

// Where a server of this host listens: where it meets the rendezvous from, no wider.
Result<std::string> host_of(const control::Member::Options& member) {
  if (!member.source.empty()) return member.source;
  return control::Member::find_own_address(member);
}

void apply_process_settings(const Settings& settings) {
  set_log_level(settings.get_string("log_level"));
  if (const std::string& simd = settings.get_string("simd"); simd != "auto") {
    reduce::set_simd_level(simd.c_str());
  }
  transport::tcp::set_listening_ports(*parse_ports(settings.get_string("ports")));
}

// Waits until the server has handed out everything, or all workers have left; bounded, the more so
// where nothing moves any more.
void drain(server::Server& server, const std::atomic<bool>& ended) {
  constexpr Nanos kMost = 10 * kSecond, kStandstill = 500 * kMillisecond;
  const Nanos start = monotonic_now();
  Nanos moved_at = start;
  uint64_t traffic = server.traffic();
  while (!ended.load() && !server.idle()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const Nanos now = monotonic_now();
    if (const uint64_t bytes = server.traffic(); bytes != traffic) {
      traffic = bytes;
      moved_at = now;
    }
    if (now - start > kMost || now - moved_at > kStandstill) return;
  }
}

}  // namespace

// Others may only be on their way when this process finds that it cannot take part.
constexpr Nanos kTelling = 10 * kSecond;

Result<std::unique_ptr<Job>> Job::start(JobOptions options) {
  apply_process_settings(options.settings);
  set_log_identity(concat("rank ", options.rank));
  std::unique_ptr<Job> job(new Job(std::move(options)));
  const Status status = without_exceptions([&job]() -> Status {
    HERRING_RETURN_IF_ERROR(job->host_rendezvous());
    HERRING_RETURN_IF_ERROR(job->join());
    return job->connect();
  });
  if (status.ok()) return job;
  static_cast<void>(without_exceptions([&]() -> Status {
    job->tell_others(status);
    return {};
  }));
  return status;
}

void Job::decline(JobOptions options, const Status& why) {
  set_log_identity(concat("rank ", options.rank));
  Job job(std::move(options));
  if (job.host_rendezvous().ok()) job.tell_others(why);
}

void Job::tell_others(const Status& why) {
  if (interrupted()) return;  // leaving is no error of the job's
  if (member_) return member_->abort(why);
  auto member = member_options(options_.rendezvous, options_.secret, options_.settings);
  if (!member.ok()) return;
  if (!asked_) {
    log(LogLevel::kError, "cannot take part, and tells the others: ", why.message());
    control::Member::decline(*member, wire::Role::kWorker, options_.rank,
                             {why.code(), concat("rank ", options_.rank, ": ", why.message())});
  }
  // Who has not come in time is not waited for once more.
  if (rendezvous_ && why.code() != Code::kTimeout) {
    rendezvous_->tell_all(std::min(kTelling, member->connect_timeout));
  }
}

Status Job::host_rendezvous() {
  const Settings& settings = options_.settings;
  std::string& rendezvous = options_.rendezvous;
  if (options_.rank != 0 || !options_.hosts_rendezvous) return {};
  auto listener = [&]() -> Result<GuardedFd> {
    if (options_.rendezvous_fd >= 0) {
      return transport::tcp::adopt_listener(options_.rendezvous_fd);
    }
    auto address = transport::parse_address(rendezvous, "HERRING_RENDEZVOUS");
    if (!address.ok()) return address.status();
    return transport::tcp::listen_on(*address, 1024);
  }();
  if (!listener.ok()) return listener.status();
  control::RendezvousOptions hosting;
  hosting.credentials = {options_.secret, wire::job_id(settings.get_string("job"))};
  hosting.size = options_.size;
  hosting.dedicated_servers = options_.dedicated_servers;
  hosting.connect_timeout = from_seconds(settings.get_seconds("connect_timeout"));
  hosting.heartbeat_interval = from_seconds(settings.get_seconds("heartbeat_interval"));
  hosting.heartbeat_timeout = from_seconds(settings.get_seconds("heartbeat_timeout"));
  hosting.warn_after = from_seconds(settings.get_seconds("warn_after"));
  auto started = control::Rendezvous::start(std::move(*listener), hosting);
  if (!started.ok()) return started.status();
  rendezvous_ = std::move(*started);
  if (rendezvous.empty()) rendezvous = rendezvous_->address().to_string();
  return {};
}

Status Job::join() {
  const Settings& settings = options_.settings;
  auto member = member_options(options_.rendezvous, options_.secret, settings);
  if (!member.ok()) return member.status();

  auto bus = LocalBus::listen();
  if (!bus.ok()) return bus.status();
  bus_ = std::move(*bus);
  control::WorkerRegistration registration;
  registration.rank = options_.rank;
  registration.size = options_.size;
  registration.local_rank = options_.local_rank;
  registration.local_size = options_.local_size;
  registration.dedicated_servers = options_.dedicated_servers;
  registration.host_id = options_.host_id;
  if (!settings.get_bool("shm")) {
    // Without shared memory every worker is a node of its own.
    registration.host_id += concat("#", options_.rank);
    registration.local_rank = registration.local_size = -1;
  }
  registration.bus = encode_bus(bus_->address());
  registration.settings = shared_settings(settings);
  asked_ = true;
  auto joined = control::Member::join(*member, registration,
                                      [&](const control::Cluster& cluster, uint32_t node) {
                                        return start_colocated_server(cluster, node, *member);
                                      });
  if (server_joining_.joinable()) server_joining_.join();
  if (!joined.ok()) return joined.status();
  member_ = std::move(*joined);
  return server_status_;
}

Status Job::connect() {
  const Settings& settings = options_.settings;
  auto member = member_options(options_.rendezvous, options_.secret, settings);
  if (!member.ok()) return member.status();
  const control::Cluster& cluster = member_->cluster();
  auto shared = adopt(cluster.settings);
  if (!shared.ok()) return shared.status();
  ServingHost host;
  if (server_) host = serving_host_of(cluster.servers[server_member_->server_index()]);
  const server::DataPlaneOptions plane = data_plane(*shared, cluster, host);
  if (server_) {
    const size_t connections = (size_t{cluster.size} + cluster.servers.size()) * plane.flows;
    HERRING_RETURN_IF_ERROR(transport::tcp::want_descriptors(connections));
    server_->attach(server_member_->cluster(), server_member_->server_index(), plane);
  }

  const control::WorkerInfo& me = cluster.workers[options_.rank];
  const Nanos deadline = monotonic_now() + member->connect_timeout;
  std::vector<LocalAddress> neighbours;
  for (uint32_t rank : cluster.ranks_of(me.node)) {
    auto address = decode_bus(cluster.workers[rank].bus);
    if (!address.ok()) return address.status();
    neighbours.push_back(std::move(*address));
  }
  // From here on a death, or the end of the job, ends every wait below.
  member_->watch([this](const control::Loss& loss) { on_loss(loss); },
                 [this](const std::string& reason) { on_abort(reason); }, [] {});
  const auto given_up = [this] { return cannot_connect(); };
  HERRING_RETURN_IF_ERROR(bus_->connect(me.local_rank, neighbours, deadline, given_up));

  const auto flows_per_server = static_cast<uint32_t>(shared->get_int("flows"));
  std::vector<Engine::ServerFlow> flows;
  std::string own_host = member->source;  // else the address from which servers are reached
  std::vector<transport::tcp::Wanted> wanted;
  for (const control::ServerInfo& server : cluster.servers) {
    auto address = transport::parse_address(server.address, "a server's address");
    if (!address.ok()) return address.status();
    for (uint32_t k = 0; k < flows_per_server; ++k) {
      wanted.push_back({*address, {wire::Role::kWorker, options_.rank, k, cluster.incarnation}});
    }
  }
  auto connected = transport::tcp::connect_all(wanted, member->source, member->credentials,
                                               deadline, size_t{options_.rank} * flows_per_server,
                                               given_up);
  if (!connected.ok()) return connected.status();
  for (size_t i = 0; i < connected->size(); ++i) {
    if (own_host.empty()) {
      auto local = transport::tcp::local_address((*connected)[i].get());
      if (!local.ok()) return local.status();
      own_host = local->host;
    }
    const control::ServerInfo& server = cluster.servers[i / flows_per_server];
    auto connection = transport::tcp::make_connection(std::move((*connected)[i]), server.address);
    flows.push_back({server.index, std::move(connection)});
  }

  EngineOptions engine = engine_options(cluster, options_.rank, plane, *shared);
  engine.mesh.host = own_host;
  engine.mesh.source = member->source;
  engine.mesh.credentials = member->credentials;
  engine.timeout = settings.get_seconds("timeout");
  engine.warn_after = settings.get_seconds("warn_after");
  engine.abort = [member = member_.get()](const std::string& reason) { member->abort(reason); };
  engine_ = std::make_unique<Engine>(cluster, engine, transport::tcp::transport(), std::move(bus_),
                                     std::move(flows));

  std::lock_guard lock(news_);
  hears_ = true;
  for (const control::Loss& loss : std::exchange(early_losses_, {})) tell_engine(loss);
  if (!early_abort_.empty()) fail_engine(early_abort_);
  return {};
}

// What happens before the engine is there waits for it; what makes it impossible ends the start.
void Job::on_loss(const control::Loss& loss) {
  std::lock_guard lock(news_);
  hears_ ? tell_engine(loss) : early_losses_.push_back(loss);
}

void Job::on_abort(const std::string& reason) {
  std::lock_guard lock(news_);
  if (hears_) return fail_engine(reason);
  early_abort_ = reason;
}

void Job::tell_engine(const control::Loss& loss) {
  if (!loss.left) {
    if (server_ && !loss.is_server) server_->rank_lost(loss.index);
    return engine_->peer_lost(loss);
  }
  if (loss.is_server) return;
  engine_->rank_left(loss.index);
  if (server_) server_->rank_left(loss.index);
}

void Job::fail_engine(const std::string& reason) {
  engine_->fail({Code::kPeerLost, concat("the job was aborted: ", reason)});
}

// Somebody has died, or a server has left, before all connections were made.
Status Job::cannot_connect() {
  std::lock_guard lock(news_);
  if (!early_abort_.empty()) {
    return {Code::kPeerLost, concat("the job was aborted: ", early_abort_)};
  }
  for (const control::Loss& loss : early_losses_) {
    if (!loss.left || loss.is_server) return {Code::kPeerLost, loss.text};
  }
  return {};
}

Status Job::start_colocated_server(const control::Cluster&, uint32_t node,
                                   const control::Member::Options& member_options) {
  auto host = host_of(member_options);
  if (!host.ok()) return host.status();
  server::ServerOptions options;
  options.host = *host;
  options.credentials = member_options.credentials;
  auto started = server::Server::start(std::move(options), transport::tcp::transport());
  if (!started.ok()) return started.status();
  server_ = std::move(*started);
  control::ServerRegistration registration;
  registration.dedicated = false;
  registration.node = node;
  registration.host = server_->address().host;
  registration.port = server_->address().port;
  // It joins as a process of its own would; the join ends when the whole cluster is there.
  server_joining_ = std::thread([this, registration, member_options] {
    server_status_ = without_exceptions([&]() -> Status {
      auto joined = control::Member::join(member_options, registration);
      if (!joined.ok()) return joined.status();
      server_member_ = std::move(*joined);
      server_member_->watch([](const control::Loss&) {}, [](const std::string&) {},
                            [this] { ended_.store(true); });
      return {};
    });
  });
  return {};
}

Job::~Job() { shutdown(); }

void Job::abort(const std::string& reason) {
  member_->abort(reason);
  engine_->fail({Code::kPeerLost, concat("the job was aborted: ", reason)});
}

void Job::shutdown() {
  if (std::exchange(down_, true)) return;
  // A step that needs memory, where there is none, is left out: the end comes all the same.
  const auto step = [](const auto& call) {
    static_cast<void>(without_exceptions([&]() -> Status {
      call();
      return {};
    }));
  };
  if (server_joining_.joinable()) server_joining_.join();
  const bool healthy = engine_ && engine_->failure().ok();
  if (engine_) engine_->stop();
  if (member_) step([&] { member_->goodbye(); });
  if (server_) {
    // The rendezvous tells all others that this rank has left.
    step([&] { server_->rank_left(options_.rank); });
    if (healthy) step([&] { drain(*server_, ended_); });
    if (server_member_) step([&] { server_member_->goodbye(); });
    server_->stop();
  }
  if (rendezvous_) rendezvous_->stop();
}

void Job::vanish() {
  if (std::exchange(down_, true)) return;
  engine_->fail({Code::kShutdown, "this worker is taken for dead"});
  engine_->stop();
  server_member_.reset();
  member_.reset();
  if (server_) server_->stop();
}

namespace {

// `joined`: this server's place in the job, while it has one.
Status serve(const std::string& rendezvous, const std::string& secret, const Settings& settings,
             Nanos waits_since, std::unique_ptr<control::Member>& joined) {
  apply_process_settings(settings);
  set_log_identity("server");
  auto member = member_options(rendezvous, secret, settings);
  if (!member.ok()) return member.status();
  const Nanos deadline = monotonic_now() + member->connect_timeout;
  member->waits_since = waits_since == 0 ? monotonic_now() : waits_since;
  auto host = host_of(*member);
  if (!host.ok()) return host.status();
  member->connect_timeout = std::max(deadline - monotonic_now(), kMillisecond);
  auto started =
      server::Server::start({*host, 0, member->credentials}, transport::tcp::transport());
  if (!started.ok()) return started.status();
  server::Server& server = **started;
  control::ServerRegistration registration;
  registration.host = server.address().host;
  registration.port = server.address().port;
  auto place = control::Member::join(*member, registration);
  if (!place.ok()) return place.status();
  joined = std::move(*place);
  control::Member& membership = *joined;
  set_log_identity(concat("server ", membership.server_index()));
  auto shared = adopt(membership.cluster().settings);
  if (!shared.ok()) return shared.status();
  const control::Cluster& cluster = membership.cluster();
  const ServingHost here = serving_host_of(cluster.servers[membership.server_index()]);
  const server::DataPlaneOptions plane = data_plane(*shared, cluster, here);
  HERRING_RETURN_IF_ERROR(transport::tcp::want_descriptors(size_t{cluster.size} * plane.flows));
  server.attach(cluster, membership.server_index(), plane);

  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;
  Status why;
  const auto end = [&](Status status) {
    {
      std::lock_guard lock(mutex);
      if (ended) return;
      ended = true;
      why = std::move(status);
    }
    changed.notify_all();
  };
  membership.watch(
      [&](const control::Loss& loss) {
        if (!loss.left) {
          // A colocated server dies with its worker; a dedicated one is everybody's. Rank 0 hosts
          // the rendezvous: without it there is no job.
          const bool colocated = loss.is_server && !cluster.servers[loss.index].dedicated;
          const uint32_t rank =
              colocated ? cluster.ranks_of(cluster.servers[loss.index].node).front() : loss.index;
          if ((loss.is_server && !colocated) || rank == 0 || !server.outlives(rank)) {
            return end({Code::kPeerLost, loss.text});
          }
          if (!loss.is_server) server.rank_lost(loss.index);
          return;
        }
        if (!loss.is_server) server.rank_left(loss.index);
      },
      [&](const std::string& reason) {
        end({Code::kPeerLost, concat("the job was aborted: ", reason)});
      },
      [&] { end({}); });
  {
    std::unique_lock lock(mutex);
    while (!changed.wait_for(lock, std::chrono::milliseconds(100), [&] { return ended; })) {
      if (interrupted()) {
        ended = true;
        break;
      }
    }
  }
  membership.goodbye();
  server.stop();
  return why;
}

}  // namespace

Status run_dedicated_server(const std::string& rendezvous, const std::string& secret,
                            const Settings& settings, Nanos waits_since) {
  std::unique_ptr<control::Member> joined;
  const Status status = without_exceptions(
      [&] { return serve(rendezvous, secret, settings, waits_since, joined); });
  // Unless it has said goodbye: the others would only see this process leave.
  if (!status.ok() && joined) joined->abort(status);
  return status;
}

}  // namespace herring::worker
