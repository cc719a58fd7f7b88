// A node stage with the local ranks of a node in one process, on one loop.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "node/node_stage.h"
#include "transport/epoll_loop.h"

namespace herring::node_stage_test {

inline constexpr size_t kSegment = 1024, kSmall = 64;

// Servers that answer every push with the same bytes, and report `workers` contributing workers.
class Servers : public links::Pusher {
 public:
  Servers(transport::EventLoop& loop, uint32_t workers) : loop_(loop), workers_(workers) {}

  Status push(links::Transfer& transfer, std::shared_ptr<void> keeps) override {
    pushed.push_back(transfer.key.buffer);
    loop_.post([this, &transfer, keeps] {
      for (const plan::SegmentRun& run : transfer.runs) {
        const plan::Range range = plan::run_range(transfer.shards, kSegment, run);
        if (transfer.send == nullptr) std::memset(transfer.receive + range.offset, 0, range.bytes);
        transfer.workers = workers_;
        transfer.owner->on_result(transfer, range);
      }
      transfer.owner->on_transfer_done(transfer);
    });
    return {};
  }
  Nanos answered_at() const override { return 0; }

  std::vector<uint32_t> pushed;  // numbers of buffers, in the order of the pushes

 private:
  transport::EventLoop& loop_;
  const uint32_t workers_;
};

// A device that is done adding when the test says so.
class Adder : public SliceAdder {
 public:
  void start(uint32_t active, double divisor) override {
    started = true;
    this->active = active;
    this->divisor = divisor;
  }
  void stop() override { stopped = true; }
  bool through() const override { return true; }
  bool gives() const override { return gives_results; }
  void give() override { giving = true; }

  bool started = false, stopped = false, giving = false;
  bool gives_results = false;
  uint32_t active = 0;
  double divisor = 0;
};

// An adder of a device that never finishes.
struct SlowAdder : SliceAdder {
  void start(uint32_t, double) override { ++started; }
  void stop() override { ++stopped; }
  bool through() const override { return false; }
  int started = 0, stopped = 0;
};

class NodeStageTest : public ::testing::Test {
 protected:
  struct Rank {
    std::unique_ptr<SharedHeap> heap = std::make_unique<SharedHeap>(0);  // caches nothing
    std::unique_ptr<LocalBus> bus;
    std::unique_ptr<NodeStage> stage;
    std::vector<uint32_t> workers;  // contributing workers, per finished task
    std::vector<Status> failures;
    std::shared_ptr<LocalGroup> group;
  };

  void make(uint32_t size, uint32_t nodes, uint32_t adders = 1) {
    ranks = std::vector<Rank>(size);
    std::vector<LocalAddress> addresses;
    for (Rank& rank : ranks) {
      auto bus = LocalBus::listen();
      ASSERT_TRUE(bus.ok());
      rank.bus = std::move(*bus);
      addresses.push_back(rank.bus->address());
    }
    std::vector<std::thread> threads;
    for (uint32_t r = 0; r < size; ++r) {
      threads.emplace_back([&, r] {
        const Nanos deadline = monotonic_now() + 600 * kSecond;
        EXPECT_TRUE(ranks[r].bus->connect(r, addresses, deadline).ok());
      });
    }
    for (std::thread& thread : threads) thread.join();
    cluster.nodes = nodes;
    cluster.size = nodes * size;
    for (uint32_t r = 0; r < cluster.size; ++r) {
      cluster.workers.push_back({r, r / size, r % size, "10.0.0.1", 100 + r, ""});
    }
    cluster.servers.push_back({0, true, ~0u, "10.0.0.2:7000", 1.0});
    for (uint32_t r = 0; r < size; ++r) {
      Rank& rank = ranks[r];
      rank.group = std::make_shared<LocalGroup>(cluster, control::Group(cluster), r);
      NodeStage::Options stage;
      stage.local_rank = r;
      stage.threads = adders;
      stage.segment_bytes = kSegment;
      for (uint32_t other = 0; other < size; ++other) {
        stage.names.push_back(size > 2 ? concat("rank ", 10 + other) : "a rank");
        stage.ranks.push_back(10 + other);
      }
      stage.states = &states;
      rank.stage = std::make_unique<NodeStage>(
          loop, *rank.bus, *rank.heap, servers, stage,
          [&rank](const Status& why) { rank.failures.push_back(why); });
      rank.stage->attach();
    }
  }

  char* allocate(uint32_t r, size_t bytes) {
    auto memory = ranks[r].heap->allocate(bytes);
    EXPECT_TRUE(memory.ok());
    return static_cast<char*>(*memory);
  }

  void post(uint32_t r, char* data, size_t bytes, uint32_t round = 0, bool active = true,
            std::shared_ptr<SliceAdder> adder = nullptr, observe::Mark mark = {},
            uint32_t buffer = 0) {
    NodeTask task;
    task.group = ranks[r].group;
    task.key = {3, round, buffer};
    task.lockstep = true;
    task.name = "test";
    task.data = data;
    task.bytes = bytes;
    task.reduction.op = adder ? ReduceOp::kAverage : ReduceOp::kSum;
    task.adder = std::move(adder);
    task.active = active;
    task.deadline = deadline;
    task.mark = mark;
    task.shards = {{0, 0, bytes}};
    task.on_done = [this, r](uint32_t workers) { ranks[r].workers.push_back(workers); };
    ranks[r].stage->post(std::move(task));
  }

  // Exchanges: `data` is what local rank `r` posts, and `pieces` is what it takes from the others.
  void exchange(uint32_t r, char* data, size_t bytes, std::vector<NodePiece> pieces, void* out,
                uint32_t round = 0) {
    NodeTask task;
    task.group = ranks[r].group;
    task.key = {4, round, 0};
    task.name = "exchange";
    task.data = data;
    task.bytes = bytes;
    task.reduction.op = ReduceOp::kSum;
    task.deadline = {60'000, 60'000, 60'000};
    task.exchanges = true;
    task.pieces = std::move(pieces);
    task.out = static_cast<char*>(out);
    task.on_done = [this, r](uint32_t workers) { ranks[r].workers.push_back(workers); };
    ranks[r].stage->post(std::move(task));
  }

  using Step = std::function<void()>;
  // Runs each step on the loop once the effects of the previous step are over. Everything runs in
  // this thread, so a fixed number of turns is enough.
  void run(std::vector<Step> steps) {
    constexpr int kTurns = 200;
    int turns = 0;
    size_t next = 0;
    Step turn = [&] {
      if (turns++ % kTurns == 0) {
        if (next == steps.size()) return loop.stop();
        steps[next++]();
      }
      loop.post(turn);
    };
    loop.post(turn);
    loop.run();
  }

  void run_until(const std::function<bool()>& over) {
    const Nanos end = monotonic_now() + 600 * kSecond;
    Step turn = [&] {
      if (over() || monotonic_now() > end) return loop.stop();
      loop.post(turn);
    };
    loop.post(turn);
    loop.run();
    EXPECT_TRUE(over());
  }

  transport::EpollLoop loop;
  observe::RankStates states;
  Deadline deadline{60'000, 60'000, 60'000};
  Servers servers{loop, 5};
  control::Cluster cluster;
  std::vector<Rank> ranks;
};

}  // namespace herring::node_stage_test
