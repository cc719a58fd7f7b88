#include "device/relay.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "device/copiers.h"
#include "tests/unit/device/standin_driver.h"

namespace herring::device {
namespace {

using namespace std::chrono_literals;

constexpr size_t kCount = 10'000;  // floats per piece
constexpr size_t kBytes = kCount * sizeof(float);

template <typename Condition>
void wait_until(const Condition& condition) {
  while (!condition()) std::this_thread::sleep_for(100us);
}

// An array of four pieces on the device, with an image in host memory. The first piece goes out.
// The second is added to and goes out. The third is added to and divided, and the fourth is
// replaced.
class RelayTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = Relay::create(flags, watcher);
    ASSERT_TRUE(made.ok()) << made.status().message();
    relay = *made;
    kernel = *gpu(0).kernel(KernelName::of(DType::kFloat32, ReduceOp::kSum));
    ASSERT_TRUE(relay->try_kernel(kernel).ok());  // the first launch waits for idle streams
    array = *gpu(0).allocate(4 * kBytes);
    image = static_cast<float*>(::mmap(nullptr, kMapped, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_TRUE((*platform())->register_host(image, kMapped).ok());
    user = user_stream(0);
  }
  void TearDown() override {
    ends.store(1);
    STANDIN(standin_fail)(nullptr, 0, 0, false);
    relay->stop();
    EXPECT_TRUE((*platform())->unregister_host(image).ok());
    ::munmap(image, kMapped);
    gpu(0).free(array);
    gpu(0).destroy_stream(user);
    relay.reset();
  }

  Status queue() {
    std::vector<Relay::Piece> pieces;
    const auto out = [&](size_t i) {
      Relay::Piece& piece = pieces.emplace_back();
      piece.out = true;
      piece.copy = {array + i * kBytes, reinterpret_cast<char*>(image + i * kCount), kBytes};
    };
    const auto sum = [&](size_t i, bool adds, bool divides) {
      Relay::Piece& piece = pieces.emplace_back();
      const Address come = *gpu(0).address_of(image) + i * kBytes;
      piece.sum.sources[0] = adds ? array + i * kBytes : come;
      piece.sum.sources[1] = come;
      piece.sum.number_of_sources = adds ? 2 : 1;
      piece.sum.targets[0] = array + i * kBytes;
      piece.sum.number_of_targets = 1;
      piece.sum.elements = kCount;
      piece.divides = divides;
    };
    out(0);
    sum(1, true, false);
    out(1);
    sum(2, true, true);
    sum(3, false, false);
    return relay->queue({user}, kernel, 4.0, pieces, [this](const Status& status) {
      ++moved;
      if (!status.ok()) lost = status;
    });
  }
  void fill(float value, uint32_t microseconds = 0) {
    STANDIN(standin_fill)(handle_of(user), array, 4 * kCount, value, microseconds);
  }
  // Lets the user's stream wait in a kernel until `ends` is 1.
  void hold() { STANDIN(standin_hold)(handle_of(user), &ends); }
  std::vector<float> on_device() {
    std::vector<float> all(4 * kCount), found;
    STANDIN(standin_peek)(all.data(), array, 4 * kBytes);
    for (size_t i = 0; i < 4; ++i) {
      found.push_back(all[i * kCount]);
      const auto* const first = all.data() + i * kCount;
      EXPECT_EQ(std::count(first, first + kCount, *first), kCount) << i;
    }
    return found;
  }
  void put(size_t piece, float value) { std::fill_n(image + piece * kCount, kCount, value); }

  static constexpr size_t kMapped = (4 * kBytes + 4095) / 4096 * 4096;
  Flags flags{**platform(), gpu(0)};
  std::shared_ptr<Relay> relay;
  Kernel kernel = 0;
  Address array = 0;
  float* image = nullptr;
  Stream user = 0;
  std::atomic<uint32_t> ends{0};
  std::atomic<int> moved{0};
  Status lost;
  Watcher watcher;  // destroyed first, because it may still call into the members above
};

TEST_F(RelayTest, EachSideGoesOnWhenTheOtherHasDoneItsPart) {
  const Jitter jitter(300);
  const uint64_t blocking = STANDIN(standin_calls)("cuStreamSynchronize");
  for (int round = 1; round <= 20; ++round) {
    const auto value = static_cast<float>(round);
    moved = 0;
    fill(value, 1000);
    ASSERT_TRUE(queue().ok());
    EXPECT_FALSE(relay->through());
    wait_until([&] { return relay->outs() == 1; });
    ASSERT_EQ(image[kCount - 1], value);
    put(1, 10);
    relay->arrived(1);
    wait_until([&] { return relay->outs() == 2; });
    EXPECT_EQ(relay->ins(), 1u);
    ASSERT_EQ(image[kCount], value + 10);
    put(2, 3);
    put(3, 7);
    relay->arrived(3);
    wait_until([&] { return relay->through(); });
    wait_until([&] { return moved == 2 + 3 + 1; });
    ASSERT_EQ(on_device(), (std::vector<float>{value, value + 10, (value + 3) / 4, 7}));
  }
  EXPECT_EQ(STANDIN(standin_calls)("cuStreamSynchronize"), blocking);
  EXPECT_TRUE(lost.ok());
}

TEST_F(RelayTest, StoppedItTouchesNothingAndParksNobody) {
  const Jitter jitter(300);
  for (const uint32_t arrived : {0u, 1u}) {
    fill(1);
    ASSERT_TRUE(queue().ok());
    put(1, 10);
    relay->arrived(arrived);
    wait_until([&] { return relay->ins() == arrived; });
    relay->stop();
    wait_until([&] { return relay->through(); });
    EXPECT_EQ(on_device(), (std::vector<float>{1, arrived ? 11.0f : 1.0f, 1, 1}));
    int idle = 0;
    wait_until([&] {
      relay->while_idle([&] { ++idle; });
      return idle > 0;
    });
  }
  fill(1);
  ASSERT_TRUE(queue().ok());  // the relay serves the next array
  put(3, 5);
  relay->arrived(3);
  wait_until([&] { return relay->through(); });
  EXPECT_EQ(on_device()[3], 5);
}

// Returns whether a thread of this process sleeps.
bool sleeps(pid_t thread) {
  std::ifstream file(concat("/proc/self/task/", thread, "/stat"));
  std::string number, name, state;
  file >> number >> name >> state;
  return state == "S";
}

TEST_F(RelayTest, NothingIsQueuedWhileACallNeedsItIdle) {
  for (int attempt = 0; attempt < 5; ++attempt) {
    std::atomic<pid_t> thread{0};
    std::atomic<bool> is_queued{false};
    std::thread other;
    bool called = false;
    wait_until([&] {
      relay->while_idle([&] {
        called = true;
        other = std::thread([&] {
          thread = ::gettid();
          EXPECT_TRUE(queue().ok());
          is_queued = true;
        });
        // It waits for the relay, or it does not.
        wait_until([&] { return is_queued.load() || (thread != 0 && sleeps(thread)); });
        EXPECT_FALSE(is_queued.load());
      });
      return called;
    });
    other.join();
    relay->stop();
    wait_until([&] { return relay->through(); });
  }
}

// The second and the third piece of the array go one of two ways.
TEST_F(RelayTest, PiecesTakeTheWayThatIsChosen) {
  const Jitter jitter(300);
  EXPECT_TRUE(relay->should_share(4 * kBytes));
  ASSERT_TRUE(relay->share(4 * kBytes).ok());
  EXPECT_FALSE(relay->should_share(4 * kBytes));
  const Image& shared = *relay->image();
  std::vector<float> peek(kCount);
  const auto queue_ways = [&] {
    std::vector<Relay::Piece> pieces(2);
    const Address here = array + kBytes, come = *gpu(0).address_of(image);
    pieces[0].out = true;
    pieces[0].way = pieces[1].way = 3;
    pieces[0].sum.sources[0] = here;
    pieces[0].sum.number_of_sources = pieces[0].sum.number_of_targets = 1;
    pieces[0].sum.elements = kCount;
    pieces[0].to_host = pieces[0].sum;
    pieces[0].sum.targets[0] = shared.address() + kBytes;
    pieces[0].to_host.targets[0] = come + kBytes;
    pieces[1].sum.sources[0] = here;
    pieces[1].sum.sources[1] = come + 2 * kBytes;
    pieces[1].sum.sources[2] = array;  // in place of a neighbour's memory
    pieces[1].sum.targets[0] = array + 2 * kBytes;
    pieces[1].sum.number_of_sources = 3;
    pieces[1].sum.number_of_targets = 1;
    pieces[1].sum.elements = kCount;
    pieces[1].divides = true;
    return relay->queue({user}, kernel, 2.0, pieces, [](const Status&) {});
  };
  for (const bool stays : {false, true, false}) {
    put(1, -1);
    put(2, 5);
    fill(stays ? 3 : 4);
    ASSERT_TRUE(queue_ways().ok());
    std::this_thread::sleep_for(2ms);
    EXPECT_EQ(relay->outs(), 0u) << "nothing goes out before the choice";
    relay->choose(3, stays, stays ? 0b101 : 0b011);
    wait_until([&] { return relay->outs() == 1; });
    EXPECT_EQ(image[kCount], stays ? -1 : 4);
    STANDIN(standin_peek)(peek.data(), shared.address() + kBytes, kBytes);
    if (stays) {
      EXPECT_EQ(peek, std::vector<float>(kCount, 3));
    }
    relay->arrived(1);
    wait_until([&] { return relay->through(); });
    EXPECT_EQ(on_device()[2], stays ? 3 : 4.5f);
  }
  fill(1);
  ASSERT_TRUE(queue_ways().ok());
  relay->stop();
  wait_until([&] { return relay->through(); });
  EXPECT_EQ(on_device(), std::vector<float>(4, 1));
  EXPECT_EQ(relay->image(), nullptr) << "a neighbour may still read it";
  const uint64_t id = shared.id();
  EXPECT_TRUE(relay->should_share(kBytes));
  ASSERT_TRUE(relay->share(kBytes).ok());
  EXPECT_NE(relay->image()->id(), id);
}

TEST_F(RelayTest, WhicheverCallFailsNothingIsTouchedAndTheNextIsServed) {
  int failures = 0;
  for (uint64_t n = 1; n <= 60; ++n) {
    fill(1);
    ASSERT_TRUE(gpu(0).synchronize(user).ok());
    put(1, 10);
    STANDIN(standin_fail)(nullptr, n, 719, false);
    const Status status = queue();
    STANDIN(standin_fail)(nullptr, 0, 0, false);
    ASSERT_TRUE(status.ok() || status.code() == Code::kDevice) << status.message();
    failures += status.ok() ? 0 : 1;
    if (status.ok()) relay->stop();
    wait_until([&] { return relay->through(); });
    ASSERT_EQ(on_device(), std::vector<float>(4, 1)) << n;
    ASSERT_FALSE(relay->is_lost());
  }
  EXPECT_GT(failures, 15);
  EXPECT_LT(failures, 60);
}

TEST_F(RelayTest, AFailureBehindAKernelThatDoesNotEndIsNotWaitedFor) {
  hold();
  fill(1);
  STANDIN(standin_fail)("cuLaunchKernel", 2, 719, false);
  const Nanos start = monotonic_now();
  EXPECT_EQ(queue().code(), Code::kDevice);
  EXPECT_GE(monotonic_now() - start, Copier::kPatienceAfterError);
  EXPECT_TRUE(relay->through());
  EXPECT_TRUE(relay->is_lost());
  EXPECT_EQ(relay.use_count(), 2) << "what the device may still use lives as long as the process";
  int idle = 0;
  relay->while_idle([&] { ++idle; });
  EXPECT_EQ(idle, 0) << "the device could wait for its streams";
  ends.store(1);
  STANDIN(standin_synchronize)(0);
  EXPECT_EQ(on_device(), std::vector<float>(4, 1));
}

TEST_F(RelayTest, ADeviceThatIsGoneEndsAllWaits) {
  hold();
  fill(1);
  ASSERT_TRUE(queue().ok());
  EXPECT_TRUE(relay->check().ok());
  STANDIN(standin_lose)(0, 0);
  EXPECT_EQ(relay->check().code(), Code::kDevice);
  EXPECT_EQ(lost.code(), Code::kDevice);
  EXPECT_TRUE(relay->through());
  EXPECT_TRUE(relay->is_lost());
  EXPECT_EQ(queue().code(), Code::kDevice);
  STANDIN(standin_lose)(0, -1);
}

TEST_F(RelayTest, ADeviceThatIsLostIsToldOf) {
  ASSERT_TRUE(queue().ok());
  EXPECT_TRUE(relay->check().ok());
  STANDIN(standin_fail)("cuStreamQuery", 1, 719, false);
  EXPECT_EQ(relay->check().code(), Code::kDevice);
  EXPECT_EQ(lost.code(), Code::kDevice);
  EXPECT_TRUE(relay->through());
  EXPECT_TRUE(relay->is_lost());
  // Nothing stays under way afterwards, so while_idle() runs its function.
  int idle = 0;
  wait_until([&] {
    relay->while_idle([&] { ++idle; });
    return idle > 0;
  });
}

TEST(TakeRelay, AsManyAsThereAreAndNoKernelWhileAStreamWaits) {
  std::vector<Taken> taken;
  for (size_t i = 0; i < kMostRelays; ++i) {
    taken.push_back(*take_relay(0, DType::kFloat32, ReduceOp::kAverage));
    ASSERT_NE(taken.back().relay, nullptr);
    EXPECT_NE(taken.back().kernel, Kernel{0});
  }
  EXPECT_EQ(take_relay(0, DType::kFloat32, ReduceOp::kSum)->relay, nullptr);
  taken.pop_back();
  EXPECT_NE(take_relay(0, DType::kFloat32, ReduceOp::kSum)->relay, nullptr);
  taken.clear();

  const auto copier = *own_copier(0);
  const Flag flag = *copier->flags().take();
  const uint32_t first = flag.word->load();
  ASSERT_TRUE(copier->back_when(flag, first + 1, {}).ok());
  EXPECT_NE(take_relay(0, DType::kFloat32, ReduceOp::kSum)->relay, nullptr) << "it is loaded";
  EXPECT_EQ(take_relay(0, DType::kInt8, ReduceOp::kMax)->relay, nullptr);
  flag.set(first + 1);
  ASSERT_TRUE(copier->drain(monotonic_now() + kSecond).ok());
  EXPECT_NE(take_relay(0, DType::kInt8, ReduceOp::kMax)->relay, nullptr);
  copier->flags().give_back(flag);
}

}  // namespace
}  // namespace herring::device
