#include "device/copier.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/continuations.h"
#include "device/pin.h"
#include "tests/unit/device/standin_driver.h"

namespace herring::device {
namespace {

using namespace std::chrono_literals;

// Host memory that is registered with the driver.
class Pages {
 public:
  explicit Pages(size_t bytes) : bytes_((bytes + 4095) / 4096 * 4096) {
    memory_ = static_cast<char*>(::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_TRUE((*platform())->register_host(memory_, bytes_).ok());
  }
  ~Pages() {
    EXPECT_TRUE((*platform())->unregister_host(memory_).ok());
    ::munmap(memory_, bytes_);
  }
  char* data() const { return memory_; }
  float* floats() const { return reinterpret_cast<float*>(memory_); }

 private:
  size_t bytes_;
  char* memory_;
};

class CopierTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = Copier::create(flags, watcher);
    ASSERT_TRUE(made.ok()) << made.status().message();
    copier = *made;
    user = user_stream(0);
  }
  Address floats_on_device(size_t count) {
    memory.push_back(*gpu(0).allocate(count * sizeof(float)));
    return memory.back();
  }
  // Lets the user's stream wait in a kernel until let_go().
  void hold() {
    ends.store(0);
    STANDIN(standin_hold)(handle_of(user), &ends);
  }
  void let_go() { ends.store(1); }
  void TearDown() override {
    let_go();
    STANDIN(standin_fail)(nullptr, 0, 0, false);
    copier.reset();
    gpu(0).destroy_stream(user);
    for (const Address one : memory) gpu(0).free(one);
  }

  Flags flags{**platform(), gpu(0)};
  Watcher watcher;
  std::shared_ptr<Copier> copier;
  Stream user = 0;
  std::vector<Address> memory;
  std::atomic<uint32_t> ends{0};
};

TEST_F(CopierTest, OutComesAfterTheProducerAndIsHeardOf) {
  constexpr size_t kCount = (size_t{9} << 20) / 4;  // three pieces
  const Jitter jitter(300);
  const Address device = floats_on_device(kCount);
  const Pages host(kCount * 4);
  const uint64_t copies = STANDIN(standin_calls)("cuMemcpyDtoHAsync");
  for (int round = 1; round <= 20; ++round) {
    STANDIN(standin_fill)(handle_of(user), device, kCount, static_cast<float>(round), 1000);
    std::promise<Status> out;
    ASSERT_TRUE(copier->out({user}, {{device, host.data(), kCount * 4}}, [&](const Status& status) {
                        out.set_value(status);
                      }).ok());
    EXPECT_TRUE(out.get_future().get().ok());
    for (size_t i = 0; i < kCount; i += 1000) ASSERT_EQ(host.floats()[i], round);
    ASSERT_EQ(host.floats()[kCount - 1], round);
  }
  EXPECT_EQ(STANDIN(standin_calls)("cuMemcpyDtoHAsync"), copies + 60);
}

TEST_F(CopierTest, BackWaitsForItsFlagAndTheConsumerForIt) {
  constexpr size_t kCount = 100000;
  const Jitter jitter(300);
  const Address device = floats_on_device(kCount);
  const Pages host(kCount * 4);
  const Flag flag = *copier->flags().take();
  const uint32_t first = flag.word->load();
  for (uint32_t round = 1; round <= 20; ++round) {
    STANDIN(standin_fill)(handle_of(user), device, kCount, -1, 500);  // the copy overwrites this
    ASSERT_TRUE(copier->follow(user).ok());
    ASSERT_TRUE(copier->back_when(flag, first + round, {{device, host.data(), kCount * 4}}).ok());
    ASSERT_TRUE(copier->join(user).ok());
    STANDIN(standin_scale)(handle_of(user), device, kCount, 2, 0);
    EXPECT_FALSE(*gpu(0).idle(user));
    std::fill_n(host.floats(), kCount, static_cast<float>(round));
    flag.set(first + round);
    ASSERT_TRUE(gpu(0).synchronize(user).ok());
    std::vector<float> found(kCount);
    STANDIN(standin_peek)(found.data(), device, kCount * 4);
    ASSERT_EQ(found, std::vector<float>(kCount, 2.0f * static_cast<float>(round)));
  }
  copier->flags().give_back(flag);
}

TEST_F(CopierTest, PoisonComesAfterAllThatIsQueued) {
  constexpr size_t kCount = 100000;
  const Jitter jitter(300);
  const Address goes_out = floats_on_device(kCount), comes_back = floats_on_device(kCount);
  const Pages out(kCount * 4), back(kCount * 4);
  const Flag flag = *copier->flags().take();
  const uint32_t value = flag.word->load() + 1;
  STANDIN(standin_fill)(handle_of(user), goes_out, kCount, 5, 20000);
  std::promise<Status> is_out;
  ASSERT_TRUE(copier->out({user}, {{goes_out, out.data(), kCount * 4}}, [&](const Status& status) {
                      is_out.set_value(status);
                    }).ok());
  ASSERT_TRUE(copier->back_when(flag, value, {{comes_back, back.data(), kCount * 4}}).ok());
  ASSERT_TRUE(copier->poison({{goes_out, kCount * 4}, {comes_back, 4},
                              {comes_back + 8, kCount * 4 - 8}}).ok());
  ASSERT_TRUE(copier->join(user).ok());
  EXPECT_FALSE(*gpu(0).idle(user));
  std::fill_n(back.floats(), kCount, 3.0f);
  flag.set(value);
  ASSERT_TRUE(gpu(0).synchronize(user).ok());
  EXPECT_TRUE(is_out.get_future().get().ok());
  // The copy out does not take the poison with it.
  for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(out.floats()[i], 5.0f) << i;
  std::vector<float> found(kCount);
  STANDIN(standin_peek)(found.data(), goes_out, kCount * 4);
  for (size_t i = 0; i < kCount; ++i) ASSERT_TRUE(std::isnan(found[i])) << i;
  STANDIN(standin_peek)(found.data(), comes_back, kCount * 4);
  for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(std::isnan(found[i]), i != 1) << i;
  EXPECT_EQ(found[1], 3.0f) << "this one was left out";
  copier->flags().give_back(flag);
}

TEST_F(CopierTest, HostMemoryIsKeptUntilTheCopyBackIsDone) {
  const Jitter jitter(2000);
  const Address device = floats_on_device(1000);
  const Pages host(4000);
  std::promise<Status> back;
  std::fill_n(host.floats(), 1000, 3.0f);
  ASSERT_TRUE(copier->back({{device, host.data(), 4000}}).ok());
  ASSERT_TRUE(copier->when_back([&](const Status& status) { back.set_value(status); }).ok());
  EXPECT_TRUE(back.get_future().get().ok());
  std::fill_n(host.floats(), 1000, 4.0f);
  std::vector<float> found(1000);
  STANDIN(standin_peek)(found.data(), device, 4000);
  EXPECT_EQ(found, std::vector<float>(1000, 3.0f));
}

// The thread that calls callbacks would otherwise wait for itself, and then nobody hears of a copy.
TEST_F(CopierTest, ACallbackMayHaveTheLastShare) {
  unmap_left();  // what other tests left
  hold();
  ASSERT_TRUE(copier->out({user}, {}, [share = copier](const Status&) {}).ok());
  const std::weak_ptr<Copier> first = std::exchange(copier, nullptr);
  let_go();
  while (!any_to_unmap()) std::this_thread::yield();
  EXPECT_TRUE(first.expired());
  unmap_left();

  std::promise<Status> heard;
  SetUp();
  ASSERT_TRUE(copier->out({}, {}, [&](const Status& status) { heard.set_value(status); }).ok());
  EXPECT_TRUE(heard.get_future().get().ok());
}

TEST_F(CopierTest, CallsInOrderAreHeardOfInOrder) {
  const Jitter jitter(100);
  const Address device = floats_on_device(1000);
  const Pages host(4000);
  std::vector<int> order;
  std::promise<void> last;
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(copier->out({user}, {{device, host.data(), 4000}}, [&, i](const Status&) {
                        order.push_back(i);
                        if (i == 199) last.set_value();
                      }).ok());
  }
  last.get_future().wait();
  for (int i = 0; i < 200; ++i) ASSERT_EQ(order[i], i);
}

TEST_F(CopierTest, OnlyCallersCallTheDriver) {
  const Address device = floats_on_device(1000);
  const Pages host(4000);
  const size_t before = STANDIN(standin_threads)();
  for (int i = 0; i < 10; ++i) {
    std::promise<void> out;
    ASSERT_TRUE(copier->out({user}, {{device, host.data(), 4000}}, [&](const Status&) {
                        out.set_value();
                      }).ok());
    out.get_future().wait();
  }
  EXPECT_EQ(STANDIN(standin_threads)(), before);
}

TEST_F(CopierTest, NoCallBlocksOnAStep) {
  const Address device = floats_on_device(1000);
  const Pages host(4000);
  const uint64_t before = STANDIN(standin_calls)("cuStreamSynchronize");
  std::promise<void> out;
  ASSERT_TRUE(copier->out({user}, {{device, host.data(), 4000}}, [&](const Status&) {
                      out.set_value();
                    }).ok());
  out.get_future().wait();
  ASSERT_TRUE(copier->back({{device, host.data(), 4000}}).ok());
  ASSERT_TRUE(copier->join(user).ok());
  EXPECT_EQ(STANDIN(standin_calls)("cuStreamSynchronize"), before);
}

TEST_F(CopierTest, NothingReachesHostMemoryAfterTheEnd) {
  const Address device = floats_on_device(1000);
  const Pages host(4000);
  STANDIN(standin_fill)(handle_of(user), device, 1000, 1, 50000);
  std::promise<void> told;
  ASSERT_TRUE(copier->out({user}, {{device, host.data(), 4000}}, [&](const Status&) {
                      told.set_value();
                    }).ok());
  copier.reset();
  EXPECT_EQ(host.floats()[999], 1.0f);
  told.get_future().wait();
}

TEST_F(CopierTest, ACaptureIsRefusedBeforeAnythingIsQueued) {
  const Address device = floats_on_device(1000);
  const Pages host(4000);
  STANDIN(standin_capture)(handle_of(user), true);
  const uint64_t copies = STANDIN(standin_calls)("cuMemcpyDtoHAsync");
  const Status refused = copier->out({user}, {{device, host.data(), 4000}}, [](const Status&) {});
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_NE(refused.message().find("captured for a CUDA graph"), std::string::npos);
  EXPECT_EQ(copier->join(user).code(), Code::kInvalidArgument);
  EXPECT_EQ(copier->follow(user).code(), Code::kInvalidArgument);
  EXPECT_EQ(STANDIN(standin_calls)("cuMemcpyDtoHAsync"), copies);
  STANDIN(standin_capture)(handle_of(user), false);
}

// Whichever call of the driver fails, the caller is told, and its memory can be freed at once.
TEST_F(CopierTest, AFailureAtEachCall) {
  const Address device = floats_on_device(1u << 20);
  int failures = 0;
  for (uint64_t n = 1; n <= 60; ++n) {
    auto other = Copier::create(flags, watcher);
    ASSERT_TRUE(other.ok());
    auto host = std::make_unique<Pages>(size_t{4} << 20);
    auto told = std::make_shared<std::promise<Status>>();
    STANDIN(standin_fail)(nullptr, n, 719, false);
    Status status = (*other)->out({user}, {{device, host->data(), size_t{4} << 20}},
                                  [told](const Status& s) { told->set_value(s); });
    if (status.ok()) {
      told->get_future().wait();
      status = (*other)->back({{device, host->data(), size_t{4} << 20}});
    }
    if (status.ok()) status = (*other)->join(user);
    STANDIN(standin_fail)(nullptr, 0, 0, false);
    failures += status.ok() ? 0 : 1;
    EXPECT_TRUE(status.ok() || status.code() == Code::kDevice) << status.message();
    other->reset();
  }
  EXPECT_GT(failures, 20);
  EXPECT_LT(failures, 60);
}

TEST_F(CopierTest, AFailureOfASumAtEachCall) {
  constexpr size_t kCount = 1000;
  const Address device = floats_on_device(kCount);
  const Pages host(kCount * 4);
  const Copy copy{device, host.data(), kCount * 4};
  Launch launch;
  launch.kernel = *gpu(0).kernel(KernelName::of(DType::kFloat32, ReduceOp::kSum));
  launch.what.sources[0] = launch.what.targets[0] = device;
  launch.what.number_of_sources = launch.what.number_of_targets = 1;
  launch.what.elements = kCount;
  std::string told;
  for (uint64_t n = 1; n <= 60; ++n) {
    auto other = Copier::create(flags, watcher);
    ASSERT_TRUE(other.ok());
    const Flag flag = *flags.take();
    STANDIN(standin_fail)(nullptr, n, 719, false);
    const Status status = (*other)->combine_when(flag, flag.word->load(), {{copy}, {copy}, launch},
                                                 [](const Status&) {});
    STANDIN(standin_fail)(nullptr, 0, 0, false);
    told += status.ok() ? '.' : 'F';
    EXPECT_TRUE((*other)->await_idle(monotonic_now() + 20 * kSecond));
    other->reset();
    flags.give_back(flag);
  }
  // A failure that nobody hears of would be a hole among those that are told.
  EXPECT_EQ(told.find('.'), told.rfind('F') + 1) << told;
  EXPECT_GT(told.find('.'), 5u) << told;
  EXPECT_LT(told.find('.'), 60u) << told;
}

// What the device may still use lives as long as the process.
TEST_F(CopierTest, AFailureBehindAKernelThatDoesNotEndIsNotWaitedFor) {
  const Address device = floats_on_device(1000);
  const Pages host(4000);
  const char* const writes =
      gpu(0).properties().stream_memory ? "cuStreamWriteValue32" : "cuLaunchKernel";
  for (const char* const function : {writes, "cuMemcpyHtoDAsync"}) {
    hold();
    if (function[2] == 'M') {
      ASSERT_TRUE(copier->follow(user).ok());
    }
    const auto owner = std::make_shared<int>();
    STANDIN(standin_fail)(function, function[2] == 'M' ? 2 : 1, 719, false);
    const Nanos start = monotonic_now();
    const std::vector<Copy> copies(2, {device, host.data(), 4000});
    const Status status = function[2] == 'M'
                              ? copier->back(copies, owner)
                              : copier->out({user}, copies, [owner](const Status&) {});
    EXPECT_EQ(status.code(), Code::kDevice);
    EXPECT_GE(monotonic_now() - start, Copier::kPatienceAfterError);
    EXPECT_EQ(owner.use_count(), 2);
    let_go();
    STANDIN(standin_synchronize)(0);
  }
}

TEST_F(CopierTest, ADeviceThatIsLostIsNoticed) {
  EXPECT_TRUE(copier->check().ok());
  STANDIN(standin_fail)("cuStreamQuery", 1, 719, true);
  const Status lost = copier->check();
  EXPECT_EQ(lost.code(), Code::kDevice);
  EXPECT_NE(lost.message().find("GPU 0: cuStreamQuery failed: unspecified launch failure"),
            std::string::npos);
  STANDIN(standin_fail)(nullptr, 0, 0, false);
}

TEST_F(CopierTest, WhoExpectsSomethingOfALostDeviceIsTold) {
  const Address device = floats_on_device(1000);
  const Pages host(4000);
  STANDIN(standin_fill)(handle_of(user), device, 1000, 1, 100000);
  std::promise<Status> out;
  ASSERT_TRUE(copier->out({user}, {{device, host.data(), 4000}}, [&](const Status& status) {
                      out.set_value(status);
                    }).ok());
  STANDIN(standin_fail)("cuStreamQuery", 1, 719, false);
  EXPECT_EQ(copier->check().code(), Code::kDevice);
  EXPECT_EQ(out.get_future().get().code(), Code::kDevice);
}

// As if the GPU had fallen off the bus, while one direction waits for a kernel and the other one
// for another rank. It takes nothing that is queued any more.
TEST_F(CopierTest, ADeviceThatIsGoneEndsAllWaits) {
  const Address device = floats_on_device(1000);
  const Pages host(4000);
  std::fill_n(host.floats(), 1000, 3.0f);
  hold();
  const Flag flag = *flags.take();
  std::promise<Status> out, back;
  ASSERT_TRUE(copier->back_when(flag, flag.word->load() + 1, {{device, host.data(), 4000}}).ok());
  ASSERT_TRUE(copier->when_back([&](const Status& status) { back.set_value(status); }).ok());
  ASSERT_TRUE(copier->out({user}, {{device, host.data(), 4000}}, [&](const Status& status) {
                      out.set_value(status);
                    }).ok());
  EXPECT_TRUE(copier->check().ok());
  STANDIN(standin_lose)(0, 0);
  EXPECT_EQ(copier->check().code(), Code::kDevice);
  EXPECT_EQ(out.get_future().get().code(), Code::kDevice);
  EXPECT_EQ(back.get_future().get().code(), Code::kDevice);
  EXPECT_EQ(copier->out({user}, {{device, host.data(), 4000}}, [](const Status&) {}).code(),
            Code::kDevice);
  EXPECT_EQ(copier->drain(monotonic_now() + Copier::kPatience).code(), Code::kDevice);
  copier.reset();
  EXPECT_EQ(host.floats()[0], 3.0f);
  STANDIN(standin_lose)(0, -1);
}

TEST_F(CopierTest, NothingIsUnmappedWhileAStreamWaits) {
  const Flag flag = *flags.take();
  const uint32_t first = flag.word->load();
  int calls = 0;
  copier->while_idle([&] { ++calls; });
  EXPECT_EQ(calls, 1);
  ASSERT_TRUE(copier->back_when(flag, first + 1, {}).ok());
  copier->while_idle([&] { ++calls; });
  EXPECT_EQ(calls, 1);
  flag.set(first + 1);
  EXPECT_TRUE(copier->drain(monotonic_now() + kSecond).ok());
  copier->while_idle([&] { ++calls; });
  EXPECT_EQ(calls, 2);
  flags.give_back(flag);
}

TEST_F(CopierTest, OneThatHangsIsLeftToItsDriver) {
  const Address device = floats_on_device(1000);
  const Pages host(4000);
  std::fill_n(host.floats(), 1000, 3.0f);
  const Flag flag = *flags.take();
  const uint32_t first = flag.word->load();
  ASSERT_TRUE(copier->back_when(flag, first + 1, {{device, host.data(), 4000}}).ok());
  EXPECT_EQ(copier->drain(monotonic_now() + 50 * kMillisecond).code(), Code::kTimeout);
  EXPECT_FALSE(copier->await_idle(monotonic_now() + 50 * kMillisecond));
  EXPECT_TRUE(copier->settle_out(monotonic_now() + kSecond)) << "nothing goes out";
  const uint64_t destroyed = STANDIN(standin_calls)("cuStreamDestroy");
  const Nanos start = monotonic_now();
  copier.reset();
  const Nanos waited = monotonic_now() - start;
  EXPECT_GE(waited, Copier::kPatience);
  EXPECT_EQ(STANDIN(standin_calls)("cuStreamDestroy"), destroyed);
  flag.set(first + 1);  // the device goes on and still makes its copy
  STANDIN(standin_synchronize)(0);
  std::vector<float> found(1000);
  STANDIN(standin_peek)(found.data(), device, 4000);
  EXPECT_EQ(found, std::vector<float>(1000, 3.0f));
}

TEST_F(CopierTest, OneThatWaitsHoldsUpNoOther) {
  const Address device = floats_on_device(1000);
  const Pages host(4000);
  std::shared_ptr<Copier> other = *Copier::create(flags, watcher);
  const Flag flag = *flags.take();
  const uint32_t first = flag.word->load();
  ASSERT_TRUE(other->back_when(flag, first + 1, {}).ok());
  ASSERT_TRUE(copier->back({{device, host.data(), 4000}}).ok());
  std::promise<void> back;
  ASSERT_TRUE(copier->when_back([&](const Status&) { back.set_value(); }).ok());
  EXPECT_EQ(back.get_future().wait_for(10s), std::future_status::ready);
  flag.set(first + 1);
  other.reset();
  flags.give_back(flag);
}

TEST(Watcher, SleepsWhileNothingIsExpected) {
  Watcher watcher;
  watcher.start();
  std::atomic<uint32_t> word{0};
  const Flag flag{&word, 0};
  std::promise<void> come;
  EXPECT_TRUE(watcher.idle());
  watcher.expect(flag, 1, [&](const Status&) { come.set_value(); });
  EXPECT_FALSE(watcher.idle());
  flag.set(1);
  come.get_future().wait();
  watcher.settle(flag);
  EXPECT_TRUE(watcher.idle());
  const uint64_t looks = watcher.looks();
  std::this_thread::sleep_for(50ms);
  EXPECT_LE(watcher.looks(), looks + 1);
}

TEST(Watcher, LooksRarelyWhileNothingComes) {
  Watcher watcher;
  watcher.start();
  std::atomic<uint32_t> word{0};
  const Flag flag{&word, 0};
  std::promise<Status> told;
  watcher.expect(flag, 1, [&](const Status& status) { told.set_value(status); });
  const Nanos start = monotonic_now();
  std::this_thread::sleep_for(100ms);
  const uint64_t looks = watcher.looks();
  EXPECT_LE(looks, static_cast<uint64_t>((monotonic_now() - start) / kMillisecond) * 3);
  watcher.give_up(flag, {Code::kDevice, "gone"});
  EXPECT_EQ(told.get_future().get().message(), "gone");
}

// A report asks twice a second. A lock that it took would stay taken in a child forked then.
TEST(Watcher, CanBeAskedInAForkedChild) {
  Watcher watcher;
  watcher.start();
  std::atomic<uint32_t> word{0};
  std::atomic<bool> ends{false};
  std::thread works([&] {
    const Flag flag{&word, 0};
    for (uint32_t value = 1; !ends; ++value) {
      watcher.expect(flag, value, [](const Status&) {});
      Continuations::shared().put([] {});
      flag.set(value);
      Watcher::idle();
      Continuations::idle();
      watcher.settle(flag);
    }
  });
  for (int i = 0; i < 100; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      Watcher::idle();
      Continuations::idle();
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  ends = true;
  works.join();
}

TEST(Flags, CountOverTheEnd) {
  EXPECT_TRUE(reached(5, 5));
  EXPECT_TRUE(reached(6, 5));
  EXPECT_FALSE(reached(4, 5));
  EXPECT_TRUE(reached(1, 0xffffffffu));
  EXPECT_FALSE(reached(0xffffffffu, 1));
}

TEST(Flags, ComeFromMemoryOfTheDriverIfOtherMemoryIsRefused) {
  const size_t before = STANDIN(standin_registrations)();
  {
    Flags flags(**platform(), gpu(0));
    STANDIN(standin_fail)("cuMemHostRegister", 1, 2, false);
    const auto flag = flags.take();
    STANDIN(standin_fail)(nullptr, 0, 0, false);
    ASSERT_TRUE(flag.ok()) << flag.status().message();
    const Stream stream = *gpu(0).make_stream();
    ASSERT_TRUE(gpu(0).prepare_words().ok());
    EXPECT_TRUE(gpu(0).write_word(flag->address, 5, stream).ok());
    EXPECT_TRUE(gpu(0).synchronize(stream).ok());
    EXPECT_TRUE(flag->has(5));
    gpu(0).destroy_stream(stream);
  }
  EXPECT_EQ(STANDIN(standin_registrations)(), before);
}

TEST(Flags, SayWhatToDoIfNoMemoryCanBePinned) {
  Flags flags(**platform(), gpu(0));
  STANDIN(standin_fail)("cuMemHostRegister", 1, 2, true);
  const Status refused = flags.take().status();
  STANDIN(standin_fail)(nullptr, 0, 0, false);
  EXPECT_EQ(refused.code(), Code::kDevice);
  EXPECT_NE(refused.message().find("ulimit -l unlimited"), std::string::npos);
  EXPECT_TRUE(flags.take().ok());
}

TEST(Flags, AreUsedAgain) {
  Flags flags(**platform(), gpu(0));
  std::vector<Flag> taken;
  for (int i = 0; i < 100; ++i) taken.push_back(*flags.take());
  for (const Flag& one : taken) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(one.word) % 64, 0u);
    flags.give_back(one);
  }
  const size_t before = STANDIN(standin_registrations)();
  for (int i = 0; i < 100; ++i) taken[i] = *flags.take();
  EXPECT_EQ(STANDIN(standin_registrations)(), before);
}

}  // namespace
}  // namespace herring::device
