#include "tests/connections/job.h"

#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <span>
#include <thread>

#include "base/interrupt.h"
#include "job/dedicated.h"
#include "job/job.h"
#include "tests/random/random.h"
#include "tests/random/watchdog.h"
#include "transport/tcp/socket.h"
#include "rounds/planned.h"

namespace herring::connections_test {

using random_test::Doing, random_test::fail, random_test::mix, random_test::Random;

namespace {

constexpr const char* kSecret = "a secret of jobs that break";
constexpr uint32_t kServers = 2, kRounds = 5;
constexpr Nanos kPause = kSecond;  // between two looks at a result that does not come
constexpr size_t kHeaderBits = 8 * wire::kHeaderBytes;

struct Layout {
  std::vector<uint32_t> node_of;            // by rank
  std::map<std::string, std::string> settings;
  std::vector<plan::Gradient> gradients;
  size_t small = 0, large = 0;              // elements of the named all-reduces
  bool failover = false;
  uint32_t size() const { return static_cast<uint32_t>(node_of.size()); }
  uint32_t nodes() const { return node_of.back() + 1; }
  std::string describe() const {
    return concat(size(), " ranks on ", nodes(), " nodes", failover ? ", with failover" : "",
                  ", segments of ", settings.at("segment_bytes"), " bytes");
  }
};

// Where the fault happens. `process`: a rank, or behind all of them a dedicated server.
struct Place {
  Side side = Side::kWorker;
  uint32_t rank = 0, server = 0;
  uint32_t process(const Layout& layout) const {
    return side == Side::kWorker ? rank : layout.size() + server;
  }
  Line line() const {
    return side == Side::kWorker ? Line{false, server} : Line{true, rank};
  }
  std::string describe() const {
    return side == Side::kWorker ? concat("rank ", rank, " to server ", server)
                                 : concat("server ", server, " to rank ", rank);
  }
};

// What became of a rank.
struct Outcome {
  std::vector<uint64_t> results;  // hashes, in the order of the program
  Status status;
  Nanos ended = 0;
};

struct Run {
  std::vector<Outcome> ranks;
  std::vector<std::pair<Place, uint64_t>> frames;  // that were sent, where there were any
  Nanos struck = 0;
  std::string what;
  uint64_t restarts = 0;
};

Layout make_layout(uint64_t seed, bool failover) {
  Random random{seed, 1};
  Layout layout;
  layout.failover = failover;
  switch (random.below(5)) {
    case 0: layout.node_of = {0, 1}; break;
    case 1: layout.node_of = {0, 1, 2}; break;
    case 2: layout.node_of = {0, 0, 1, 1}; break;
    case 3: layout.node_of = {0, 0, 1}; break;
    default: layout.node_of = {0, 1, 2, 3};
  }
  const uint64_t segment = 1024u << random.below(4);
  layout.settings = {
      {"segment_bytes", std::to_string(segment)},
      {"frame_max", std::to_string(segment * random.pick({1u, 4u, 32u}))},
      {"buffer_bytes", std::to_string(1u << random.from_to(14, 17))},
      {"small_bytes", "4096"},
      {"proxies", std::to_string(random.from_to(1, 2))},
      {"failover", failover ? "true" : "false"},
      {"timeout", "8"},
      {"warn_after", "4"},
      {"connect_timeout", "20"},
      {"status", "off"},
      {"flight_folder", "off"},
      {"log_level", "info"},
  };
  if (!failover) {  // a link that is cut ends the job within 4 s
    layout.settings["heartbeat_interval"] = "0.05";
    layout.settings["heartbeat_timeout"] = "0.2";
  }
  for (uint64_t i = random.from_to(2, 6); i > 0; --i) {
    layout.gradients.push_back({random.from_to(1, 30'000), DType::kFloat32});
  }
  layout.small = random.from_to(1, 1000);
  layout.large = random.from_to(2000, 40'000);
  return layout;
}

float value(uint64_t seed, size_t i) {
  return static_cast<float>(mix(seed + i) >> 40) * 0x1p-24f - 0.5f;
}

uint64_t hash_of(const float* values, size_t count) {
  uint64_t hash = count;
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, values + i, sizeof(bits));
    hash = (hash ^ bits) * 0x100000001b3;
  }
  return hash;
}

// A job with its processes. They begin their programs together.
class JobRun {
 public:
  JobRun(const Wanted& wanted, const Layout& layout, const Place& place, const Fault& fault)
      : name_(std::to_string(wanted.seed)), seed_(wanted.seed), layout_(layout), place_(place),
        sides_(wanted.sides) {
    settings_ = load("127.0.0.1");
    auto listener = transport::tcp::listen_on({"127.0.0.1", 0}, 128);
    if (!listener.ok()) fail(name_, listener.status().to_string());
    listener_ = std::move(*listener);
    address_ = transport::tcp::local_address(listener_.get())->to_string();
    for (uint32_t i = 0; i < layout_.size() + kServers; ++i) {
      transports_.push_back(std::make_unique<FaultyTransport>(sockets_));
    }
    track(place)->fault = fault;
    run_.ranks.resize(layout_.size());
    not_ready_ = not_ended_ = layout_.size();
  }

  Run run() {
    std::vector<std::thread> servers, ranks;
    for (uint32_t server = 0; server < kServers; ++server) {
      servers.emplace_back([this, server] { run_server(server); });
    }
    for (uint32_t rank = 0; rank < layout_.size(); ++rank) {
      ranks.emplace_back([this, rank] { run_rank(rank); });
    }
    for (std::thread& thread : ranks) thread.join();
    over_ = true;
    for (std::thread& thread : servers) thread.join();
    for (const Side side : sides_) {
      for (uint32_t rank = 0; rank < layout_.size(); ++rank) {
        for (uint32_t server = 0; server < kServers; ++server) {
          const Place place{side, rank, server};
          const uint64_t frames = track(place)->frames;
          if (frames > 0) run_.frames.push_back({place, frames});
        }
      }
    }
    const auto track = this->track(place_);
    run_.struck = track->struck;
    run_.what = track->what;
    run_.restarts = restarts_;
    return std::move(run_);
  }

 private:
  std::shared_ptr<Track> track(const Place& place) {
    return transports_[place.process(layout_)]->track(place.line());
  }

  Settings load(const std::string& host) const {
    auto all = layout_.settings;
    all["interface"] = host;
    auto settings = Settings::load(all, [](const char*) -> const char* { return nullptr; });
    if (!settings.ok()) fail(name_, settings.status().to_string());
    return *settings;
  }

  void run_server(uint32_t server) {
    Doing doing(name_, concat("server ", server));
    doing.rests("serves");
    // Servers are numbered in the order of their addresses.
    const Settings settings = load(concat("127.0.0.", 2 + server));
    const Interruptible interruptible([this] { return over_.load(); });
    for (;;) {
      const Status status = job::run_dedicated_server(
          address_, kSecret, settings, 0, *transports_[layout_.size() + server]);
      if (!layout_.failover || over_ || status.ok()) return;
      ++restarts_;
    }
  }

  void run_rank(uint32_t rank) {
    Doing doing(name_, concat("rank ", rank));
    doing.now("starts");
    job::JobOptions options;
    options.rank = rank;
    options.size = layout_.size();
    options.dedicated_servers = kServers;
    options.rendezvous = address_;
    if (rank == 0) options.rendezvous_fd = ::fcntl(listener_.get(), F_DUPFD_CLOEXEC, 0);
    options.host_id = concat("node ", layout_.node_of[rank]);
    options.secret = kSecret;
    options.settings = settings_;
    options.transport = transports_[rank].get();
    auto job = job::Job::start(std::move(options));
    if (!job.ok()) fail(name_, concat("rank ", rank, " starts: ", job.status().to_string()));
    begin_together();
    Outcome& outcome = run_.ranks[rank];
    outcome.status = run_program(rank, **job, outcome.results, doing);
    outcome.ended = monotonic_now();
    if (layout_.failover && outcome.status.ok()) {
      doing.rests("waits for the others");
      end_together();
    } else {
      end_alone();
    }
    doing.now("leaves");
    (*job)->shutdown();
  }

  // What breaks while the job starts ends it, so all have started before anything can.
  void begin_together() {
    std::unique_lock lock(mutex_);
    if (--not_ready_ == 0) changed_.notify_all();
    changed_.wait(lock, [this] { return not_ready_ == 0; });
  }

  // A rank that has left gives nothing to others that lack something.
  void end_together() {
    std::unique_lock lock(mutex_);
    if (--not_ended_ == 0) changed_.notify_all();
    changed_.wait(lock, [this] { return not_ended_ == 0; });
  }
  void end_alone() {
    std::lock_guard lock(mutex_);
    if (--not_ended_ == 0) changed_.notify_all();
  }

  Status run_program(uint32_t rank, job::Job& job, std::vector<uint64_t>& results, Doing& doing) {
    rounds::PlannedOptions options;
    options.name = "plan";
    options.buffer_bytes = std::stoul(layout_.settings.at("buffer_bytes"));
    auto plan =
        rounds::Planned::create(job.engine().rounds(), layout_.gradients, std::move(options));
    if (!plan.ok()) return plan.status();
    const size_t arena = (*plan)->plan().arenas[0].bytes / sizeof(float);
    const std::shared_ptr<char> memory = (*plan)->arena(0);
    const std::span gradients(reinterpret_cast<float*>(memory.get()), arena);
    std::vector<float> small(layout_.small), large(layout_.large), spread(layout_.large),
        parts(layout_.large);
    const std::span<float> arrays[] = {gradients, small, large, spread, parts};
    Status status;
    for (uint32_t round = 0; round < kRounds && status.ok(); ++round) {
      status = run_round(rank, round, job, **plan, arrays, results, doing);
    }
    // A program that has heard of a failure may use its memory for something else. No other rank
    // may get that for a result.
    if (!status.ok()) {
      for (const auto& array : arrays) std::ranges::fill(array, 1e9f);
    }
    return status;
  }

  Status run_round(uint32_t rank, uint32_t round, job::Job& job, rounds::Planned& plan,
                   std::span<const std::span<float>, 5> arrays, std::vector<uint64_t>& results,
                   Doing& doing) {
    doing.now("calls", -1, static_cast<int>(round));
    for (size_t salt = 0; salt < arrays.size(); ++salt) {
      const uint64_t from = mix(mix(mix(seed_) + rank) + 16 * round + salt);
      for (size_t i = 0; i < arrays[salt].size(); ++i) arrays[salt][i] = value(from, i);
    }
    HERRING_RETURN_IF_ERROR(plan.begin(true));
    std::vector<std::shared_ptr<engine::Future>> awaited{plan.round()};
    for (size_t i = 0; i < layout_.gradients.size(); ++i) {
      if (Status status = plan.ready(i); !status.ok()) return give_up(status, awaited);
    }
    // The last array is gathered, into memory of its own.
    const std::pair<const char*, wire::Collective> calls[] = {
        {"small", wire::AllReduce{}},
        {"large", wire::AllReduce{}},
        {"spread", wire::Broadcast{round % layout_.size()}},
        {"parts", wire::AllGather{}}};
    std::shared_ptr<calls::Operation> gathers;
    for (size_t i = 0; i < std::size(calls); ++i) {
      const auto& [name, what] = calls[i];
      calls::Call call{.name = name, .what = what};
      char* const data = reinterpret_cast<char*>(arrays[i + 1].data());
      call.buffers = {{{DType::kFloat32, {arrays[i + 1].size()}}, data,
                       wire::is<wire::AllGather>(what) ? nullptr : data}};
      auto submitted = job.engine().submit(std::move(call));
      if (!submitted.ok()) return give_up(submitted.status(), awaited);
      awaited.push_back(gathers = *submitted);
    }
    doing.now("waits", -1, static_cast<int>(round));
    Status status;
    for (const auto& one : awaited) {
      while (!one->wait_for(kPause)) {
      }
      if (status.ok()) status = one->status();
    }
    HERRING_RETURN_IF_ERROR(status);
    for (const auto& array : arrays.first<4>()) {
      results.push_back(hash_of(array.data(), array.size()));
    }
    results.push_back(hash_of(reinterpret_cast<const float*>(gathers->result.get()),
                              gathers->result_bytes / sizeof(float)));
    return {};
  }

  // The job has failed; nothing may use the arrays any more when the program ends.
  static Status give_up(const Status& why,
                        const std::vector<std::shared_ptr<engine::Future>>& awaited) {
    for (const auto& one : awaited) {
      while (!one->wait_for(kPause)) {
      }
    }
    return why;
  }

  const std::string name_;
  const uint64_t seed_;
  const Layout& layout_;
  const Place place_;
  const std::vector<Side> sides_;
  Settings settings_;
  GuardedFd listener_;
  std::string address_;
  Sockets sockets_;
  std::vector<std::unique_ptr<FaultyTransport>> transports_;  // ranks, then servers
  std::atomic<bool> over_{false};
  std::atomic<uint64_t> restarts_{0};
  Run run_;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint32_t not_ready_ = 0, not_ended_ = 0;  // guarded by mutex_
};

Fault choose_fault(Random& random, const std::vector<Kind>& kinds, uint64_t frames) {
  Fault fault;
  fault.kind = kinds[random.below(kinds.size())];
  fault.frame = random.from_to(1, frames);
  fault.cut_at = random.chance(0.3) ? random.below(wire::kHeaderBytes) : random.below(1 << 16);
  fault.bit = random.below(kHeaderBits);
  fault.delay = static_cast<Nanos>(random.from_to(1, 400)) * kMillisecond;
  return fault;
}

// Returns whether the text says which process something happened to.
bool names_somebody(const std::string& text) {
  for (const char* word : {"rank ", "ranks ", "server ", "servers "}) {
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
      const size_t digit = at + std::char_traits<char>::length(word);
      if (digit < text.size() && std::isdigit(static_cast<unsigned char>(text[digit]))) return true;
    }
  }
  return false;
}

// Returns whether the job must end as if nothing had happened.
bool must_survive(const Layout& layout, Kind kind) {
  return kind == Kind::kDelay || layout.failover;
}

}  // namespace

void Tally::add(const Tally& other) {
  jobs += other.jobs;
  struck += other.struck;
  survived += other.survived;
  failed += other.failed;
  restarts += other.restarts;
  longest = std::max(longest, other.longest);
  for (const auto& [what, count] : other.errors) errors[what] += count;
}

Tally run_job(const Wanted& wanted) {
  Random random{wanted.seed, 2};
  const bool failover = wanted.failovers[random.below(wanted.failovers.size())];
  const Layout layout = make_layout(wanted.seed, failover);
  const std::string name = std::to_string(wanted.seed);
  const Run sane = JobRun(wanted, layout, {}, {}).run();
  const auto [place, frames] = sane.frames[random.below(sane.frames.size())];
  const Fault fault = choose_fault(random, wanted.kinds, frames);
  const std::string text = concat(name_of(fault.kind), " at frame ", fault.frame, " of ",
                                  frames, ", ", place.describe(), "; ", layout.describe());
  if (wanted.verbose) std::fprintf(stderr, "seed %s: %s\n", name.c_str(), text.c_str());
  for (const Outcome& rank : sane.ranks) {
    if (!rank.status.ok()) fail(name, concat("without a fault: ", rank.status.to_string()));
    if (rank.results != sane.ranks[0].results) fail(name, "without a fault, ranks differ");
  }
  const Run run = JobRun(wanted, layout, place, fault).run();
  Tally tally;
  tally.jobs = 1;
  tally.struck = run.struck != 0;
  tally.restarts = run.restarts;
  bool failed = false;
  for (size_t rank = 0; rank < run.ranks.size(); ++rank) {
    const Outcome& outcome = run.ranks[rank];
    const auto wrong = [&](const std::string& what) {
      fail(name, concat(text, " (", run.what, "): rank ", rank, ": ", what));
    };
    const auto& expected = sane.ranks[rank].results;
    if (!std::equal(outcome.results.begin(), outcome.results.end(), expected.begin())) {
      const auto differs = std::mismatch(outcome.results.begin(), outcome.results.end(),
                                         expected.begin());
      wrong(concat("result ", differs.first - outcome.results.begin(), " has other bits"));
    }
    if (run.struck != 0) tally.longest = std::max(tally.longest, outcome.ended - run.struck);
    if (outcome.status.ok()) {
      if (outcome.results.size() != expected.size()) wrong("it lacks results");
      continue;
    }
    failed = true;
    const Status& why = outcome.status;
    if (wanted.verbose) std::fprintf(stderr, "  rank %zu: %s\n", rank, why.to_string().c_str());
    ++tally.errors[concat(name_of(fault.kind), failover ? "+failover" : "", ": ",
                          code_name(why.code()))];
    if (run.struck == 0) wrong(concat("no fault, but ", why.to_string()));
    if (must_survive(layout, fault.kind)) wrong(why.to_string());
    if (why.code() != Code::kPeerLost) {
      wrong(concat("an error of another kind: ", why.to_string()));
    }
    if (!names_somebody(why.message())) wrong(concat("it does not say who: ", why.to_string()));
  }
  tally.failed = failed;
  tally.survived = run.struck != 0 && !failed;
  return tally;
}

}  // namespace herring::connections_test
