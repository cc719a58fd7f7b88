#include "job/job.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/process_texts.h"
#include "base/signal_handlers.h"
#include "job/options.h"
#include "job/process.h"
#include "node/shared_memory.h"
#include "transport/tcp/connector.h"
#include "transport/tcp/transport.h"

namespace herring::job {
namespace {

// When this process finds that it cannot take part, others may still be on their way.
constexpr Nanos kTelling = 10 * kSecond;
constexpr Nanos kMargin = 250 * kMillisecond;

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

}  // namespace

Result<std::unique_ptr<Job>> Job::start(JobOptions options) {
  apply_process_settings(options.settings);
  set_log_identity(concat("rank ", options.rank));
  set_record_place({});  // of an earlier job
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
  if (interrupted()) return;  // an interrupted start is not an error of the job
  if (member_) return member_->abort(why);
  auto member = member_options(options_.rendezvous, options_.secret, options_.settings);
  if (!member.ok()) return;
  if (!asked_) {
    log(LogLevel::kError, "cannot take part, and tells the others: ", why.message());
    control::Member::decline(*member, wire::Role::kWorker, options_.rank,
                             {why.code(), concat("rank ", options_.rank, ": ", why.message())});
  }
  // Processes that did not come in time are not waited for again.
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
  control::RendezvousOptions hosting(settings);
  HERRING_RETURN_IF_ERROR(
      credentials_of(options_.secret, settings).move_to(hosting.credentials));
  hosting.size = options_.size;
  hosting.dedicated_servers = options_.dedicated_servers;
  hosting.failover = settings.get_bool("failover");
  hosting.job = settings.get_string("job");
  hosting.label = settings.get_string("label");
  hosting.observe = settings.get_bool("observe");
  hosting.report_every = from_seconds(settings.get_seconds("report_every"));
  hosting.status = settings.get_string("status");
  hosting.flight_folder = settings.get_string("flight_folder");
  hosting.timeline = settings.get_string("timeline");
  HERRING_RETURN_IF_ERROR(
      control::Rendezvous::start(std::move(*listener), hosting).move_to(rendezvous_));
  if (rendezvous.empty()) rendezvous = rendezvous_->address().to_string();
  return {};
}

Status Job::join() {
  const Settings& settings = options_.settings;
  auto member = member_options(options_.rendezvous, options_.secret, settings);
  if (!member.ok()) return member.status();

  HERRING_RETURN_IF_ERROR(LocalBus::listen().move_to(bus_));
  control::WorkerRegistration registration;
  registration.rank = options_.rank;
  registration.size = options_.size;
  registration.local_rank = options_.local_rank;
  registration.local_size = options_.local_size;
  registration.dedicated_servers = options_.dedicated_servers;
  registration.host_id = options_.host_id;
  bool shares = settings.get_bool("shm");
  if (const Status possible = shares ? SharedRegion::possible() : Status(); !possible.ok()) {
    shares = false;
    log(LogLevel::kWarning, "this worker goes without shared memory, which costs speed: ",
        possible.message());
  }
  if (!shares) {
    // Without shared memory every worker is a node of its own.
    registration.host_id += concat("#", options_.rank);
    registration.local_rank = registration.local_size = -1;
  }
  registration.bus = encode_bus(bus_->address());
  registration.settings = shared_settings(settings);
  asked_ = true;
  const auto start_server = [&](const control::Cluster&, uint32_t node) -> Status {
    HERRING_RETURN_IF_ERROR(
        Colocated::start(*member, node, *options_.transport).move_to(colocated_));
    return {};
  };
  auto joined = control::Member::join(*member, registration, start_server);
  const Status serves = colocated_ ? colocated_->joined() : Status();
  if (!joined.ok()) return joined.status();
  member_ = std::move(*joined);
  return serves;
}

Status Job::connect() {
  const Settings& settings = options_.settings;
  auto member = member_options(options_.rendezvous, options_.secret, settings);
  if (!member.ok()) return member.status();
  const control::Cluster& cluster = member_->cluster();
  HERRING_ASSIGN_OR_RETURN(auto& shared, adopt(cluster.settings));
  const server::DataPlaneOptions plane = data_plane(shared, cluster, {});
  if (colocated_) HERRING_RETURN_IF_ERROR(colocated_->attach());

  const Nanos deadline = monotonic_now() + member->connect_timeout;
  // From here on, a death or the end of the job ends every wait below.
  member_->watch([this](const control::Loss& loss) { on_loss(loss); },
                 [this](const Status& why) { on_abort(why); },
                 [](control::Member::End) {},
                 [this](const control::Replacement& news) { on_replacement(news); });
  HERRING_RETURN_IF_ERROR(connect_neighbours(deadline));
  std::string own_host = member->source;  // if empty, the address from which servers are reached
  HERRING_ASSIGN_OR_RETURN(auto& flows, connect_servers(*member, plane.flows, deadline, own_host));

  engine::EngineOptions engine = engine_options(cluster, options_.rank, plane, shared);
  engine.mesh.host = own_host;
  engine.mesh.source = member->source;
  engine.mesh.credentials = member->credentials;
  const auto threads = static_cast<uint32_t>(settings.get_int("node_threads"));
  const uint32_t neighbours = cluster.local_size(cluster.workers[options_.rank].node);
  engine.node_threads = threads != 0 ? threads : node_threads_for(usable_cores(), neighbours);
  engine.timeout = settings.get_seconds("timeout");
  engine.node_stage = settings.get_string("node_stage");
  engine.warn_after = settings.get_seconds("warn_after");
  engine.failed = [member = member_.get()](const Status& why) { member->failed(why.message()); };
  engine.rendezvous_read = [member = member_.get()] { return member->read_until(); };
  engine.abort = [member = member_.get()](const std::string& reason) { member->abort(reason); };
  engine.end_part = [member = member_.get()](const Status& why) { member->end_part(why); };
  engine.server_timeout = from_seconds(settings.get_seconds("heartbeat_timeout"));
  if (engine.failover) {
    // The rendezvous waits a moment longer, and hears why.
    engine.connect_timeout =
        member->connect_timeout - std::min(member->connect_timeout / 10, kMargin);
    engine.report_server = [member = member_.get()](uint32_t server, uint32_t number,
                                                    bool reachable, const std::string& why) {
      member->report_server(server, number, reachable, why);
    };
  }
  engine_ = std::make_unique<worker::Engine>(cluster, engine, *options_.transport, std::move(bus_),
                                             std::move(flows));
  log_begin(engine, plane.flows);
  if (engine.observe) {
    reports_ = std::make_unique<WorkerReports>(*engine_, options_.rank);
    reporter_ = std::make_unique<Reporter>(*member_, *reports_);
    // Everywhere, because a launcher passes the signal on to all workers.
    if (settings.get_string("status") != "off") take_status_signal();
  }

  std::lock_guard lock(news_);
  hears_ = true;
  for (const control::Loss& loss : std::exchange(early_losses_, {})) engine_->tell(loss);
  for (const auto& news : std::exchange(early_replacements_, {})) engine_->tell(news);
  if (!early_abort_.ok()) engine_->fail(early_abort_);
  return {};
}

void Job::log_begin(const engine::EngineOptions& engine, uint32_t flows) {
  began_ = monotonic_now();
  const control::Cluster& cluster = member_->cluster();
  const control::WorkerInfo& me = cluster.workers[options_.rank];
  const auto dedicated = std::count_if(cluster.servers.begin(), cluster.servers.end(),
                                       [](const auto& server) { return server.dedicated; });
  const links::LinksOptions& links = engine.links;
  log(LogLevel::kInfo, "joined as rank ", me.rank, " of ", cluster.size, ", local rank ",
      me.local_rank, " of ", cluster.local_size(me.node), " on node ", me.node, " of ",
      cluster.nodes, ", from ", me.host, "; servers: ", dedicated, " dedicated, ",
      cluster.servers.size() - static_cast<size_t>(dedicated), " colocated; transport: TCP, ",
      counted(flows, "flow"), " to a server, a window of ",
      links.credit_initial * links.segment_bytes / 1000, " kB for each, which ",
      links.credit_fixed ? "is fixed" : "adapts", "; node stage: ", engine.node_stage, ", ",
      counted(engine.node_threads, "thread"));
}

void Job::log_end() {
  const std::string time = in_seconds(monotonic_now() - began_);
  const Status failure = engine_->failure();
  if (!failure.ok()) {
    return log(LogLevel::kInfo, "leaves the job, which failed: ", failure.message());
  }
  const worker::Engine::Counters counters = engine_->counters();
  uint64_t sent = counters.workers.bytes_sent, received = counters.workers.bytes_received;
  for (const transport::FlowCounters& server : counters.servers) {
    sent += server.bytes_sent;
    received += server.bytes_received;
  }
  log(LogLevel::kInfo, "leaves the job after ", time, ": ", sent / 1e6, " MB sent, ",
      received / 1e6, " MB received");
}

Status Job::connect_neighbours(Nanos deadline) {
  const control::Cluster& cluster = member_->cluster();
  const control::WorkerInfo& me = cluster.workers[options_.rank];
  std::vector<LocalAddress> neighbours;
  for (uint32_t rank : cluster.ranks_of(me.node)) {
    HERRING_ASSIGN_OR_RETURN(auto& address, decode_bus(cluster.workers[rank].bus));
    neighbours.push_back(std::move(address));
  }
  return bus_->connect(me.local_rank, neighbours, deadline, [this] { return cannot_connect(); });
}

Result<std::vector<worker::ServerFlow>> Job::connect_servers(
    const control::Member::Options& member, uint32_t flows, Nanos deadline,
    std::string& own_host) {
  const control::Cluster& cluster = member_->cluster();
  HERRING_ASSIGN_OR_RETURN(auto& doors, doors_of(cluster, options_.rank, flows));
  std::vector<transport::tcp::Wanted> wanted;
  for (const Door& door : doors) wanted.push_back({door.address, door.hello});
  auto connected = transport::tcp::connect_all(wanted, member.source, member.credentials, deadline,
                                               size_t{options_.rank} * flows,
                                               [this] { return cannot_connect(); });
  if (!connected.ok()) return connected.status();
  if (own_host.empty() && !connected->empty()) {
    HERRING_ASSIGN_OR_RETURN(auto& local, transport::tcp::local_address(connected->front().get()));
    own_host = local.host;
  }
  std::vector<worker::ServerFlow> made;
  for (size_t i = 0; i < connected->size(); ++i) {
    const control::ServerInfo& server = cluster.servers[doors[i].server];
    made.push_back({server.index, options_.transport->make_connection(
                                      std::move((*connected)[i]), server.address,
                                      doors[i].hello)});
  }
  return made;
}

// Losses that come before the engine exists wait for it. Some make the start impossible and end it.
void Job::on_loss(const control::Loss& loss) {
  std::lock_guard lock(news_);
  hears_ ? engine_->tell(loss) : early_losses_.push_back(loss);
}

void Job::on_abort(const Status& why) {
  std::lock_guard lock(news_);
  const Status told = control::told_to_end(why);
  if (hears_) return engine_->fail(told);
  early_abort_ = told;
}

void Job::on_replacement(const control::Replacement& news) {
  std::lock_guard lock(news_);
  hears_ ? engine_->tell(news) : early_replacements_.push_back(news);
}

// Returns why connecting cannot succeed: a process has died, or a server has left; else ok.
Status Job::cannot_connect() {
  std::lock_guard lock(news_);
  if (!early_abort_.ok()) return early_abort_;
  for (const control::Loss& loss : early_losses_) {
    if (!loss.left || loss.is_server) return {Code::kPeerLost, loss.text};
  }
  return {};
}

Job::~Job() { shutdown(); }

Status Job::begin_timeline(const std::string& path) {
  return rendezvous_ ? rendezvous_->begin_timeline(path) : Status();
}

Status Job::end_timeline() { return rendezvous_ ? rendezvous_->end_timeline() : Status(); }

Result<std::string> Job::write_record(const std::string& why) {
  if (!rendezvous_) return std::string();
  return rendezvous_->write_record(why);
}

void Job::abort(const std::string& reason) {
  set_record_place({});  // no record is written of what a program does on purpose
  member_->abort(reason);
  engine_->fail({Code::kPeerLost, concat("the job was aborted: ", reason)});
}

void Job::shutdown(bool failed) {
  if (std::exchange(down_, true)) return;
  const Status failure = engine_ ? engine_->failure() : Status();
  const bool healthy = engine_ && failure.ok();
  if (reporter_) give_back_status_signal();
  reporter_.reset();
  if (engine_ && log_enabled(LogLevel::kInfo)) log_end();
  if (member_) member_->await_part_told();
  if (engine_) engine_->stop();
  // Skips the farewell if there is no memory for it: the end must come in any case.
  static_cast<void>(without_exceptions([&] {
    if (colocated_ && !failure.ok()) colocated_->server().job_failed(failure.message());
    return Status();
  }));
  static_cast<void>(without_exceptions([this] {
    if (member_) member_->goodbye();
    return Status();
  }));
  if (colocated_) {
    colocated_->leave(options_.rank, !healthy ? Colocated::Farewell::kNothing
                                     : failed ? Colocated::Farewell::kShort
                                              : Colocated::Farewell::kFull);
  }
  if (rendezvous_) rendezvous_->stop();
}

void Job::vanish() {
  if (std::exchange(down_, true)) return;
  reporter_.reset();
  engine_->fail({Code::kShutdown, "this worker is taken for dead"});
  engine_->stop();
  if (colocated_) colocated_->vanish();
  member_.reset();
  if (colocated_) colocated_->server().stop();
}

}  // namespace herring::job
