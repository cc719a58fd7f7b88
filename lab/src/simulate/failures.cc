#include "simulate/failures.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string_view>
#include <utility>

#include "base/streams.h"
#include "control/server_set.h"
#include "links/links.h"
#include "plan/plan.h"
#include "server/server.h"
#include "virtual/simulation.h"
#include "virtual/transport.h"
#include "wire/hello.h"

namespace herring::simulate {
namespace {

using transport::virtual_time::Simulation;
using transport::virtual_time::SimulationOptions;
using transport::virtual_time::VirtualTransport;

constexpr size_t kSegment = 1024;
constexpr Nanos kPatience = 600 * kSecond;
constexpr uint32_t kPlan = 1000;  // the stream of a plan
constexpr uint32_t kMostElements = 40'000;

const transport::Credentials& credentials() {
  static const transport::Credentials one{"virtual", wire::job_id("failures")};
  return one;
}

// What a seed decides, faults or not.
struct Scenario {
  explicit Scenario(uint64_t seed) : random(seed) {
    nodes = 2 + below(4);
    servers = 2 + below(4);
    flows = 1 + below(2);
    rounds = 3 + below(6);
    credit = kSegment << below(6);
    frame_max = kSegment << below(5);
    rate = 1e6 * static_cast<double>(2 + below(30));
    delay = kMicrosecond * static_cast<Nanos>(5 + below(500));
    const uint32_t buffers = 1 + below(4);
    // Most are small, so that many jobs fit into a second.
    for (uint32_t i = 0; i < buffers; ++i) elements.push_back(1 + below(kMostElements >> below(8)));
    think = kMicrosecond * static_cast<Nanos>(1 + below(3000));
    hears = kMicrosecond * static_cast<Nanos>(1 + below(20'000));
    faults = 1 + below(6);
    lockstep = below(2) == 0 || flows > 1;
    reign = lockstep ? 0 : below(3);
    partial = lockstep && below(3) == 0;
    local = partial ? 1 : 1 + below(3);
    ranks = nodes * local;
  }
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(random() % n); }

  std::mt19937_64 random;
  uint32_t nodes, servers, flows, rounds;
  uint32_t local, ranks;  // on each node, and on all. A rank pushes its slice of each buffer.
  size_t credit, frame_max;
  double rate;  // bytes per second
  Nanos delay;
  std::vector<uint32_t> elements;  // by buffer
  Nanos think;                     // at most, between two buffers
  Nanos hears;                     // at most, until a process hears of a change
  uint32_t faults;
  bool lockstep;  // whether links know that rounds follow each other
  // Rounds until another server owns the name; 0: the job has a plan. Rounds of calls do not wait
  // for each other.
  uint32_t reign;
  bool partial;   // whether the rounds are those of a partial all-reduce
};

// Returns a node's numbers for a buffer of a round, the first of kMostElements. Their float32 sums
// depend on the order of adding.
const float* contributions(uint32_t node, uint32_t round, uint32_t buffer) {
  static const std::vector<float> numbers = [] {
    std::vector<float> all(2 * kMostElements);
    for (size_t i = 0; i < all.size(); ++i) {
      uint64_t x = (i + 1) * 0xff51afd7ed558ccd;
      x ^= x >> 29;
      all[i] = static_cast<float>(x % 10'007) * (static_cast<float>(1 << (x >> 40 & 15)) / 256);
    }
    return all;
  }();
  return &numbers[(node * 7919 + round * 104'729 + buffer * 1301) % kMostElements];
}

class FailingJob {
 public:
  explicit FailingJob(const FailureOptions& options)
      : options_(options),
        scenario_(options.seed),
        faults_((options.seed ^ 0x5eed) + (uint64_t{options.schedule} << 40)),
        simulation_(simulated(scenario_)) {
    const size_t hosts = scenario_.ranks + scenario_.servers;
    transport::virtual_time::Network& network = simulation_.network();
    for (size_t host = 0; host < hosts; ++host) {
      for (const size_t link : {network.egress(host), network.port(host)}) {
        network.link(link).set({8 * scenario_.rate, 20 * kMillisecond});
      }
    }
    network.set_all_paths({scenario_.delay});
    heard_.resize(hosts);
    for (size_t host = 0; host < hosts; ++host) {
      transports_.push_back(std::make_unique<VirtualTransport>(simulation_, host));
    }
    cluster_.nodes = scenario_.nodes;
    cluster_.size = scenario_.ranks;
    cluster_.epoch = control::kFirstEpoch;
    cluster_.incarnation = 1;
    for (uint32_t rank = 0; rank < scenario_.ranks; ++rank) {
      cluster_.workers.push_back({rank, rank / scenario_.local, rank % scenario_.local,
                                  transports_[rank]->address(), 0, ""});
    }
    plane_.segment_bytes = kSegment;
    plane_.frame_max = scenario_.frame_max;
    plane_.credit = scenario_.credit;
    plane_.credit_max = scenario_.credit;
    plane_.flows = scenario_.flows;
    plane_.observe = false;
  }

  ~FailingJob() {
    for (auto& worker : workers_) worker->links.clear();
    for (auto& server : servers_) {
      if (server) server->stop();
    }
    for (auto& server : cut_off_) server->stop();
  }

  Result<FailureReport> run();

 private:
  struct Worker final : links::TransferOwner {
    Worker(FailingJob& job, uint32_t rank)
        : job(job),
          rank(rank),
          loop(job.transports_[rank]->make_loop(true)),
          links(*loop, job.links_options(rank),
                [&job](uint32_t, const wire::FrameHeader& header, std::string_view payload) {
                  if (header.type == wire::FrameType::kOpError) {
                    job.fail({Code::kProtocol, std::string(payload)});
                  }
                },
                [&job](uint32_t, const Status& why) {
                  if (why.is_fault()) job.fail(why);
                }) {}
    void begin_round();
    void push_next();
    void on_transfer_done(links::Transfer& transfer) override;
    void begin_next();

    FailingJob& job;
    const uint32_t rank;
    const std::shared_ptr<transport::EventLoop> loop;
    links::Links links;
    struct Round {
      std::vector<std::vector<float>> arrays;
      std::vector<links::Transfer> transfers;
      uint32_t done = 0;
    };
    std::map<uint32_t, Round> rounds;  // all that have begun
    uint32_t round = 0, pushed = 0;    // where pushing is
    uint32_t whole = 0;                // rounds that are over
    std::vector<uint64_t> results;
  };

  static SimulationOptions simulated(const Scenario& scenario) {
    SimulationOptions options;
    options.hosts = scenario.ranks + scenario.servers;
    options.cores = 2;
    return options;
  }
  links::LinksOptions links_options(uint32_t rank) const {
    links::LinksOptions options;
    options.segment_bytes = kSegment;
    options.frame_max = scenario_.frame_max;
    options.credit_initial = options.credit_max = plane_.credit_segments(scenario_.credit);
    options.credit_fixed = true;
    options.steers = rank == 0;
    options.first_server = rank;
    options.failover = true;
    options.flows = plane_.flows;
    return options;
  }
  Nanos at_most(Nanos most) { return static_cast<Nanos>(faults_() % static_cast<uint64_t>(most)); }

  Status start_server(uint32_t index);
  Status connect(uint32_t rank, uint32_t server,
                 std::vector<std::unique_ptr<transport::Connection>>& connections);
  void plan_fault(uint32_t left);
  void lose(uint32_t server);
  void replace(uint32_t server);
  void hear(size_t host, std::function<void()> of);
  void announce();
  void fail(Status why) {
    if (failure_.ok()) failure_ = std::move(why);
  }

  const FailureOptions options_;
  Scenario scenario_;
  std::mt19937_64 faults_;
  Simulation simulation_;
  std::vector<std::unique_ptr<VirtualTransport>> transports_;  // by host
  control::Cluster cluster_;
  server::DataPlaneOptions plane_;
  control::ServerSet set_;
  std::vector<Nanos> heard_;  // by host: when it hears of the last change
  std::vector<std::unique_ptr<server::Server>> servers_;  // null: gone
  std::vector<std::unique_ptr<server::Server>> cut_off_;  // alive, but no longer servers of the job
  std::vector<std::unique_ptr<Worker>> workers_;
  uint32_t running_ = 0;
  // How many ranks of a node have ended a round.
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> over_;
  FailureReport report_;
  Status failure_;
};

Status FailingJob::start_server(uint32_t index) {
  VirtualTransport& transport = *transports_[scenario_.ranks + index];
  auto server = server::Server::start({transport.address(), 0, credentials()}, transport);
  if (!server.ok()) return server.status();
  servers_[index] = std::move(*server);
  return {};
}

Status FailingJob::connect(uint32_t rank, uint32_t server,
                           std::vector<std::unique_ptr<transport::Connection>>& connections) {
  for (uint32_t flow = 0; flow < scenario_.flows; ++flow) {
    auto connection = transports_[rank]->connect_now(
        servers_[server]->address(), {wire::Role::kWorker, rank, flow, cluster_.incarnation},
        credentials());
    if (!connection.ok()) return connection.status();
    connections.push_back(std::move(*connection));
  }
  return {};
}

void FailingJob::Worker::begin_round() {
  const Scenario& scenario = job.scenario_;
  pushed = 0;
  const auto buffers = static_cast<uint32_t>(scenario.elements.size());
  Round& now = rounds[round];
  now.arrays.resize(buffers);
  now.transfers.resize(buffers);
  for (uint32_t b = 0; b < buffers; ++b) {
    std::vector<float>& array = now.arrays[b];
    const float* const first = contributions(rank / scenario.local, round, b);
    array.assign(first, first + scenario.elements[b]);
    links::Transfer& transfer = now.transfers[b];
    const size_t bytes = array.size() * sizeof(float);
    const uint32_t stream =
        scenario.partial      ? wire::kPartialStreams
        : scenario.reign == 0 ? kPlan
                              : stream_of({0, round / scenario.reign}, scenario.servers);
    transfer.key = {stream, round, b, 0};
    transfer.open.reduction.op = ReduceOp::kAverage;
    if (scenario.partial) transfer.open.participants = wire::Participants::kRanks;
    transfer.open.workers = scenario.local;
    transfer.open.deadline = {1'000'000, 1'000'000, 1'000'000};
    transfer.open.name = "gradients";
    transfer.send = transfer.receive = reinterpret_cast<char*>(array.data());
    transfer.shards = plan::shard_layout(bytes, std::vector<double>(scenario.servers, 1.0));
    transfer.runs = plan::local_slice(transfer.shards, kSegment, rank % scenario.local,
                                      scenario.local);
    transfer.lockstep = scenario.lockstep;
    transfer.owner = this;
  }
  push_next();
}

void FailingJob::Worker::push_next() {
  std::vector<links::Transfer>& transfers = rounds[round].transfers;
  if (Status status = links.push(transfers[pushed++]); !status.ok()) return job.fail(status);
  if (pushed == transfers.size()) {
    if (job.scenario_.reign > 0) begin_next();
    return;
  }
  loop->call_after(job.at_most(job.scenario_.think), [this] { push_next(); });
}

void FailingJob::Worker::begin_next() {
  if (++round == job.scenario_.rounds) return;
  loop->call_after(job.at_most(job.scenario_.think), [this] { begin_round(); });
}

void FailingJob::Worker::on_transfer_done(links::Transfer& transfer) {
  const uint32_t of = transfer.key.round;
  if (!transfer.runs.empty() && transfer.workers != job.scenario_.ranks) {
    job.fail({Code::kInternal, concat("rank ", rank, ": round ", of, ", buffer ",
                                      transfer.key.buffer, " has ", transfer.workers, " workers")});
  }
  Round& ended = rounds[of];
  if (++ended.done < ended.transfers.size()) return;
  results.resize(job.scenario_.rounds * ended.arrays.size());
  for (size_t b = 0; b < ended.arrays.size(); ++b) {
    std::vector<float>& array = ended.arrays[b];
    results[of * ended.arrays.size() + b] = std::hash<std::string_view>()(
        {reinterpret_cast<const char*>(array.data()), array.size() * sizeof(float)});
    // The program does what it wants with the results.
    std::fill(array.begin(), array.end(), -1.0f);
  }
  if (++whole == job.scenario_.rounds) --job.running_;
  if (job.scenario_.reign > 0) return;
  // The ranks of a node begin a round together.
  const uint32_t node = rank / job.scenario_.local;
  if (++job.over_[{node, of}] < job.scenario_.local) return;
  for (uint32_t place = 0; place < job.scenario_.local; ++place) {
    Worker* const worker = job.workers_[node * job.scenario_.local + place].get();
    worker->loop->post([worker] { worker->begin_next(); });
  }
}

// A host hears of something after a delay. It hears of everything in order.
void FailingJob::hear(size_t host, std::function<void()> of) {
  heard_[host] = std::max(heard_[host] + 1, simulation_.now() + at_most(scenario_.hears));
  simulation_.call_at(heard_[host], std::move(of));
}

void FailingJob::announce() {
  for (auto& worker : workers_) {
    hear(worker->rank, [one = worker.get(), set = set_] {
      one->loop->post([one, set] { one->links.serve(set); });
    });
  }
  for (uint32_t server = 0; server < servers_.size(); ++server) {
    if (!servers_[server]) continue;
    hear(scenario_.ranks + server, [this, server, set = set_, one = servers_[server].get()] {
      if (servers_[server].get() == one) one->serve(set);
    });
  }
}

void FailingJob::lose(uint32_t server) {
  set_.lose(server);
  if (faults_() % 2 == 0) {
    ++report_.kills;
    servers_[server]->stop();
    servers_[server].reset();
  } else {
    ++report_.cuts;
    cut_off_.push_back(std::move(servers_[server]));
  }
  announce();
}

void FailingJob::replace(uint32_t server) {
  ++report_.replacements;
  if (Status status = start_server(server); !status.ok()) return fail(status);
  cluster_.servers[server].address = servers_[server]->address().to_string();
  servers_[server]->attach(cluster_, server, plane_);
  for (auto& worker : workers_) {
    auto flows = std::make_shared<std::vector<std::unique_ptr<transport::Connection>>>();
    if (Status status = connect(worker->rank, server, *flows); !status.ok()) return fail(status);
    hear(worker->rank, [one = worker.get(), server, flows] {
      one->loop->post([one, server, flows] {
        one->links.server_replaced(server, std::move(*flows));
      });
    });
  }
  set_.add(server);
  announce();
}

void FailingJob::plan_fault(uint32_t left) {
  if (left == 0) return;
  const Nanos wait = at_most(faults_() % 3 == 0 ? 200 * kMicrosecond : 60 * kMillisecond);
  simulation_.call_at(simulation_.now() + wait, [this, left] {
    if (running_ == 0) return;
    std::vector<uint32_t> here, gone;
    for (uint32_t server = 0; server < scenario_.servers; ++server) {
      (set_.has(server) ? here : gone).push_back(server);
    }
    const bool returns = !gone.empty() && (here.size() == 1 || faults_() % 2 == 0);
    if (returns) {
      replace(gone[faults_() % gone.size()]);
    } else {
      lose(here[faults_() % here.size()]);
    }
    plan_fault(left - 1);
  });
}

Result<FailureReport> FailingJob::run() {
  set_ = control::ServerSet::all(scenario_.servers);
  servers_.resize(scenario_.servers);
  for (uint32_t server = 0; server < scenario_.servers; ++server) {
    HERRING_RETURN_IF_ERROR(start_server(server));
    cluster_.servers.push_back({server, true, ~0u, servers_[server]->address().to_string(), 1.0});
  }
  for (uint32_t server = 0; server < scenario_.servers; ++server) {
    servers_[server]->attach(cluster_, server, plane_);
  }
  for (uint32_t rank = 0; rank < scenario_.ranks; ++rank) {
    workers_.push_back(std::make_unique<Worker>(*this, rank));
    for (uint32_t server = 0; server < scenario_.servers; ++server) {
      std::vector<std::unique_ptr<transport::Connection>> flows;
      HERRING_RETURN_IF_ERROR(connect(rank, server, flows));
      for (auto& flow : flows) workers_[rank]->links.add_flow(server, *flow);
    }
  }
  running_ = scenario_.ranks;
  for (auto& worker : workers_) {
    worker->loop->start("worker");
    worker->loop->post([one = worker.get()] { one->begin_round(); });
  }
  if (options_.schedule > 0) plan_fault(scenario_.faults);
  const bool ended = simulation_.run_until(
      [this] { return running_ == 0 || !failure_.ok(); }, simulation_.now() + kPatience);
  report_.description = concat(
      scenario_.nodes, " nodes of ", counted(scenario_.local, "worker"), ", ", scenario_.servers,
      " servers, ", scenario_.flows, " flows, ",
      scenario_.rounds, " rounds of ", scenario_.elements.size(), " buffers, credit ",
      scenario_.credit,
      scenario_.reign == 0 ? "" : concat(", ", counted(scenario_.reign, "round"), " per reign"),
      "; ", report_.kills, " killed, ", report_.cuts, " cut off, ",
      report_.replacements, " replaced");
  if (!failure_.ok()) return failure_;
  if (!ended) {
    std::string text;
    for (const auto& worker : workers_) {
      text += concat(" rank ", worker->rank, ": ", worker->whole, " rounds are over, ",
                     worker->round, " are pushed;");
    }
    return Status(Code::kTimeout, concat(report_.description, ":", text));
  }
  report_.seconds = static_cast<double>(simulation_.now()) / kSecond;
  // Results are kept only of the latest reign, when nothing is on its way any more.
  simulation_.run_until([] { return false; }, simulation_.now() + kSecond);
  for (const auto& worker : workers_) {
    const std::vector<wire::Key> kept = worker->links.kept();
    if (kept.empty() || kept.front().stream == kept.back().stream) continue;
    return Status(Code::kInternal, concat("rank ", worker->rank, " keeps results of round ",
                                          kept.front().round, " in vain"));
  }
  for (const auto& worker : workers_) {
    report_.results.insert(report_.results.end(), worker->results.begin(), worker->results.end());
  }
  return report_;
}

}  // namespace

Result<FailureReport> run_with_failures(const FailureOptions& options) {
  return FailingJob(options).run();
}

}  // namespace herring::simulate
