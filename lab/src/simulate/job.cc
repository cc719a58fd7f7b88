#include "simulate/job.h"

#include <algorithm>
#include <utility>

#include "base/interrupt.h"
#include "control/assembly.h"
#include "job/options.h"
#include "wire/hello.h"

namespace herring::simulate {

using transport::Address;
using transport::virtual_time::Simulation;
using transport::virtual_time::SimulationOptions;
using transport::virtual_time::VirtualTransport;

namespace {

constexpr uint64_t kEventsPerLook = 1 << 14;  // events between checks for an interrupt

const transport::Credentials& credentials() {
  static const transport::Credentials one{"virtual", wire::job_id("simulation")};
  return one;
}

SimulationOptions with_hosts(SimulationOptions options, size_t hosts) {
  options.hosts = hosts;
  return options;
}

// Returns small whole numbers, whose float32 sums are exact in any order.
float contribution(uint32_t rank, size_t i) {
  return static_cast<float>((i * 7 + rank * 13 + i / 1024) % 61);
}

}  // namespace

struct SimulatedJob::Program {
  worker::Engine* engine = nullptr;
  uint32_t rank = 0;
  size_t round = 0;
  Nanos began = 0;
  std::vector<float> array;
  std::shared_ptr<calls::Operation> operation;
};

SimulatedJob::SimulatedJob(JobOptions options)
    : options_(std::move(options)),
      simulation_(with_hosts(options_.simulation,
                             size_t{options_.nodes} + options_.dedicated_servers)) {
  for (size_t host = 0; host < simulation_.options().hosts; ++host) {
    transports_.push_back(std::make_unique<VirtualTransport>(simulation_, host));
  }
}

SimulatedJob::~SimulatedJob() {
  for (auto& engine : engines_) engine->stop();
  for (auto& server : servers_) server->stop();
}

Result<std::unique_ptr<SimulatedJob>> SimulatedJob::create(JobOptions options) {
  if (options.nodes < 2) {
    return Status(Code::kConfiguration, concat("nodes is ", options.nodes,
                                               "; a job over a network needs at least 2"));
  }
  std::unique_ptr<SimulatedJob> job(new SimulatedJob(std::move(options)));
  HERRING_RETURN_IF_ERROR(job->set_up());
  return job;
}

Status SimulatedJob::set_up() {
  if (options_.prepare) options_.prepare(simulation_.network());
  auto settings = Settings::load(options_.settings, [](const char*) -> const char* {
    return nullptr;
  });
  if (!settings.ok()) return settings.status();
  const control::Settings shared = job::shared_settings(*settings);

  std::vector<control::RegisteredWorker> workers(options_.nodes);
  for (uint32_t rank = 0; rank < options_.nodes; ++rank) {
    control::WorkerRegistration& registration = workers[rank].registration;
    registration.rank = rank;
    registration.size = options_.nodes;
    registration.dedicated_servers = options_.dedicated_servers;
    registration.host_id = workers[rank].host = transports_[rank]->address();
    registration.settings = shared;
  }
  HERRING_RETURN_IF_ERROR(control::assemble(workers).move_to(cluster_));
  cluster_.incarnation = 1;
  auto weights = control::choose_weights(shared, options_.nodes, options_.dedicated_servers);
  if (!weights.ok()) return weights.status();

  const auto colocated = control::colocated_nodes(options_.nodes, options_.dedicated_servers);
  for (uint32_t i = 0; i < weights->size(); ++i) {
    const bool dedicated = i < options_.dedicated_servers;
    const uint32_t node = dedicated ? ~0u : colocated[i - options_.dedicated_servers];
    const size_t host = dedicated ? options_.nodes + i : node;
    auto server = server::Server::start({transports_[host]->address(), 0, credentials()},
                                        *transports_[host]);
    if (!server.ok()) return server.status();
    cluster_.servers.push_back({i, dedicated, node, (*server)->address().to_string(),
                                (*weights)[i]});
    servers_.push_back(std::move(*server));
  }
  const auto cores = static_cast<uint32_t>(std::max<size_t>(options_.simulation.cores, 1));
  const server::DataPlaneOptions plane = job::data_plane(*settings, cluster_, {cores});
  for (uint32_t i = 0; i < servers_.size(); ++i) servers_[i]->attach(cluster_, i, plane);

  for (uint32_t rank = 0; rank < options_.nodes; ++rank) {
    HERRING_ASSIGN_OR_RETURN(auto& doors, job::doors_of(cluster_, rank, plane.flows));
    std::vector<worker::ServerFlow> flows;
    for (const job::Door& door : doors) {
      auto connection = transports_[rank]->connect_now(door.address, door.hello, credentials());
      if (!connection.ok()) return connection.status();
      flows.push_back({door.server, std::move(*connection)});
    }
    HERRING_ASSIGN_OR_RETURN(auto& bus, LocalBus::listen());
    HERRING_RETURN_IF_ERROR(bus->connect(0, {bus->address()}, monotonic_now() + kSecond));
    engine::EngineOptions engine = job::engine_options(cluster_, rank, plane, *settings);
    engine.mesh.host = transports_[rank]->address();
    engine.mesh.credentials = credentials();
    engine.observe = false;  // nobody reads the entries, of which thousands of ranks have many
    engines_.push_back(std::make_unique<worker::Engine>(cluster_, engine, *transports_[rank],
                                                        std::move(bus), std::move(flows)));
    programs_.push_back(std::make_unique<Program>());
    programs_.back()->engine = engines_.back().get();
    programs_.back()->rank = rank;
  }
  return {};
}

Result<std::vector<JobRound>> SimulatedJob::allreduce(size_t bytes, uint32_t rounds,
                                                      Nanos patience) {
  if (!failure_.ok()) {
    return Status(failure_.code(), concat("the job has ended: ", failure_.message()));
  }
  bytes_ = bytes / sizeof(float) * sizeof(float);
  rounds_.assign(rounds, {});
  running_ = programs_.size();
  const bool checks = options_.simulation.carries_data;
  if (!checks) scratch_.resize(bytes_);
  for (auto& program : programs_) {
    program->round = 0;
    program->array.resize(checks ? bytes_ / sizeof(float) : 0);
    simulation_.call_at(simulation_.now(), [this, p = program.get()] { enter_round(*p); });
  }
  const auto ended = [this] {
    if (simulation_.events() % kEventsPerLook == 0 && interrupted()) {
      fail({Code::kShutdown, "the simulation was interrupted"});
    }
    return running_ == 0 || !failure_.ok();
  };
  const bool done = simulation_.run_until(ended, simulation_.now() + patience);
  if (!failure_.ok()) return failure_;
  if (!done) {
    size_t least = rounds;
    for (const auto& program : programs_) least = std::min(least, program->round);
    fail({Code::kTimeout, concat("after ", to_seconds(patience), " s of virtual time ", running_,
                                 " of ", programs_.size(),
                                 " ranks are not done; the last is in round ", least)});
    return failure_;
  }
  for (const auto& program : programs_) {
    for (size_t i = 0; i < program->array.size(); ++i) {
      float sum = 0;
      for (uint32_t rank = 0; rank < programs_.size(); ++rank) sum += contribution(rank, i);
      if (program->array[i] == sum) continue;
      return defect("rank ", program->rank, " has ", program->array[i], " instead of ", sum, " at ",
                    i);
    }
  }
  return rounds_;
}

void SimulatedJob::fail(const Status& status) {
  if (failure_.ok()) failure_ = status;
}

void SimulatedJob::call(Program& program, calls::Call call,
                        void (SimulatedJob::*then)(Program&)) {
  auto operation = program.engine->submit(std::move(call), true);
  if (!operation.ok()) return fail(operation.status());
  program.operation = *operation;
  program.operation->then(engine::Where::kEngine, [this, &program, then] {
    simulation_.call_at(program.engine->loop()->now() + options_.pause, [this, &program, then] {
      const Status& status = program.operation->status();
      status.ok() ? (this->*then)(program) : fail(status);
    });
  });
}

void SimulatedJob::enter_round(Program& program) {
  call(program, {.name = "barrier", .what = wire::Barrier{}}, &SimulatedJob::reduce);
}

void SimulatedJob::reduce(Program& program) {
  program.began = simulation_.now();
  for (size_t i = 0; i < program.array.size(); ++i) {
    program.array[i] = contribution(program.rank, i);
  }
  char* const array = options_.simulation.carries_data
                          ? reinterpret_cast<char*>(program.array.data())
                          : scratch_.data();
  calls::Call allreduce{.name = "array", .what = wire::AllReduce{}};
  allreduce.buffers = {{{DType::kFloat32, {bytes_ / sizeof(float)}}, array, array}};
  call(program, std::move(allreduce), &SimulatedJob::leave_round);
}

void SimulatedJob::leave_round(Program& program) {
  JobRound& round = rounds_[program.round];
  // The pause after the operation does not count: it belongs to the program.
  const Nanos took = simulation_.now() - options_.pause - program.began;
  round.seconds = std::max(round.seconds, to_seconds(took));
  if (program.rank == 0) {
    round.credit_bytes = program.engine->credit_bytes();
    round.began = to_seconds(program.began);
  }
  if (++program.round == rounds_.size()) {
    --running_;
  } else {
    enter_round(program);
  }
}

}  // namespace herring::simulate
