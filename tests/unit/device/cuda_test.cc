#include "device/cuda/cuda.h"

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <type_traits>
#include <vector>

#ifdef HERRING_HAS_CUDA_HEADER
#include <cuda.h>
#endif

#include "device/cuda/driver.h"
#include "device/flags.h"
#include "tests/unit/device/standin_driver.h"

namespace herring::device {
namespace {

#ifdef HERRING_HAS_CUDA_HEADER
constexpr bool same(auto ours, auto theirs) {
  return static_cast<int>(ours) == static_cast<int>(theirs);
}

static_assert(cuda::kSuccess == CUDA_SUCCESS && cuda::kNotReady == CUDA_ERROR_NOT_READY);
static_assert(same(cuda::kUnifiedAddressing, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING) &&
              same(cuda::kCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) &&
              same(cuda::kCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR) &&
              same(cuda::kMultiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) &&
              same(cuda::kKernelTimeLimit, CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT) &&
              same(cuda::kStreamMemory64, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS));
static_assert(same(cuda::kMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE) &&
              same(cuda::kIsManaged, CU_POINTER_ATTRIBUTE_IS_MANAGED) &&
              same(cuda::kDeviceOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL));
static_assert(cuda::kMemoryTypeDevice == CU_MEMORYTYPE_DEVICE &&
              cuda::kStreamNonBlocking == CU_STREAM_NON_BLOCKING &&
              cuda::kEventWithoutTiming == CU_EVENT_DISABLE_TIMING &&
              cuda::kRegisterPortable == CU_MEMHOSTREGISTER_PORTABLE &&
              cuda::kRegisterMapped == CU_MEMHOSTREGISTER_DEVICEMAP &&
              cuda::kRegisterPortable == CU_MEMHOSTALLOC_PORTABLE &&
              cuda::kRegisterMapped == CU_MEMHOSTALLOC_DEVICEMAP &&
              cuda::kWaitUntilReached == CU_STREAM_WAIT_VALUE_GEQ &&
              cuda::kWriteAfterAll == CU_STREAM_WRITE_VALUE_DEFAULT &&
              cuda::kLazyPeerAccess == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS &&
              sizeof(cuda::IpcHandle) == sizeof(CUipcMemHandle));
static_assert(std::is_same_v<cuda::DevicePointer, CUdeviceptr> &&
              std::is_same_v<cuda::DeviceNumber, CUdevice> && sizeof(CUresult) == sizeof(int));
#if CUDA_VERSION >= 12030
static_assert(same(cuda::kHostNumaNode, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID));
#endif
#endif

TEST(Cuda, SaysWhyThereIsNoDriver) {
  const auto none = cuda::load("libnotcuda.so.1");
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().code(), Code::kConfiguration);
  EXPECT_NE(none.status().message().find("no CUDA driver: libnotcuda.so.1"), std::string::npos);
  // This library is not a driver.
  const auto other = cuda::load("libm.so.6");
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.status().message().find("CUDA 11.7 or later is needed"), std::string::npos);
}

TEST(Cuda, FindsDevices) {
  auto platform = device::platform();
  ASSERT_TRUE(platform.ok()) << platform.status().message();
  EXPECT_EQ((*platform)->version(), "CUDA 13.0");
  EXPECT_EQ((*platform)->count(), 2);
  EXPECT_FALSE((*platform)->can_access(0, 1));
  const Properties& second = gpu(1).properties();
  EXPECT_EQ(second.name, "stand-in 1");
  EXPECT_EQ(second.bus, "0000:02:00.0");
  EXPECT_EQ(second.major, 9);
  EXPECT_EQ(second.numa_node, 0);
  const auto third = (*platform)->device(2);
  EXPECT_EQ(third.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(third.status().message(), "there is no GPU 2; this process sees 2, from 0 on");
}

TEST(Cuda, TellsWhatAnAddressIs) {
  Platform& platform = **device::platform();
  int local = 0;
  EXPECT_EQ(platform.query(reinterpret_cast<Address>(&local))->kind, Kind::kHost);
  const Address address = *gpu(1).allocate(10000);
  const Pointer inside = *platform.query(address + 5000);
  EXPECT_EQ(inside.kind, Kind::kDevice);
  EXPECT_EQ(inside.device, 1);
  gpu(1).free(address);
  EXPECT_EQ(platform.query(address)->kind, Kind::kHost);
  void* const page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                            -1, 0);
  ASSERT_TRUE(platform.register_host(page, 4096).ok());
  EXPECT_EQ(platform.query(reinterpret_cast<Address>(page) + 8)->kind, Kind::kPinned);
  EXPECT_FALSE(platform.register_host(page, 4096).ok());  // a page can be registered once only
  EXPECT_TRUE(platform.unregister_host(page).ok());
  EXPECT_FALSE(platform.unregister_host(page).ok());
  ::munmap(page, 4096);
}

TEST(Cuda, AFailureNamesTheDeviceAndTheCall) {
  STANDIN(standin_fail)("cuMemAlloc", 1, 2, false);
  const auto failed = gpu(0).allocate(64);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.status().code(), Code::kDevice);
  EXPECT_EQ(failed.status().message(),
            "GPU 0: cuMemAlloc failed: out of memory (CUDA_ERROR_OUT_OF_MEMORY, 2)");
  EXPECT_TRUE(failed.status().is_fault());
}

TEST(Cuda, TheHostCannotReadDeviceMemory) {
  const Address address = *gpu(0).allocate(64);
  EXPECT_DEATH(static_cast<void>(*reinterpret_cast<volatile char*>(address)), "");
  gpu(0).free(address);
}

// Runs `call` while a stream waits for a word, and returns whether it ends only after the word has
// come, and other calls of the device, too.
bool holds_up_others(const std::function<Status()>& call) {
  EXPECT_TRUE(gpu(0).prepare_words().ok());
  Flags flags(**platform(), gpu(0));
  const Flag flag = *flags.take();
  const Stream parked = *gpu(0).make_stream();
  EXPECT_TRUE(gpu(0).wait_word(flag.address, flag.word->load() + 1, parked).ok());
  std::atomic<bool> ended{false};
  std::atomic<uint64_t> others{0};
  std::thread caller([&] {
    EXPECT_TRUE(call().ok());
    ended.store(true);
  });
  std::thread other([&] {
    while (!ended.load()) {
      gpu(0).destroy_event(*gpu(0).make_event());
      ++others;
    }
  });
  uint64_t before = 0;
  do {
    before = others.load();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  } while (!ended.load() && others.load() != before);
  const bool waited = !ended.load();
  flag.set(flag.word->load() + 1);
  caller.join();
  other.join();
  gpu(0).destroy_stream(parked);
  return waited;
}

// CUDA's driver may do so; see also TakeRelay in relay_test.cc.
TEST(StandIn, LoadsKernelsWhenAllStreamsAreIdleAndHoldsUpOtherCalls) {
  Kernel kernel = 0;
  EXPECT_TRUE(holds_up_others([&kernel] {
    return gpu(0).kernel(KernelName::of(DType::kInt16, ReduceOp::kMin)).move_to(kernel);
  }));
  const Stream stream = *gpu(0).make_stream();
  const auto launch = [&] { return gpu(0).combine(kernel, Combination(), 1, stream); };
  EXPECT_TRUE(holds_up_others(launch)) << "the first launch loads its code";
  EXPECT_FALSE(holds_up_others(launch));
  gpu(0).destroy_stream(stream);
}

TEST(StandIn, ReleasesMemoryWhenAllStreamsAreIdleAndHoldsUpOtherCalls) {
  const Address memory = *gpu(0).allocate(1000);
  EXPECT_TRUE(holds_up_others([memory] {
    gpu(0).free(memory);
    return Status();
  }));
}

// A platform whose GPUs have no memory operations on streams.
class WithoutMemoryOperations : public ::testing::Test {
 protected:
  void SetUp() override {
    before_ = gpu(0).properties().stream_memory;
    STANDIN(standin_stream_memory)(false);
    auto loaded = cuda::load();
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    all = std::move(*loaded);
    one = *all->device(0);
  }
  void TearDown() override {
    STANDIN(standin_stream_memory)(before_);
    STANDIN(standin_time_limit)(false);
    STANDIN(standin_fail)(nullptr, 0, 0, false);
  }

  std::unique_ptr<Platform> all;
  Device* one = nullptr;

 private:
  bool before_ = true;
};

TEST_F(WithoutMemoryOperations, KernelsWaitForWordsAndWriteThem) {
  EXPECT_FALSE(one->properties().stream_memory);
  ASSERT_TRUE(one->prepare_words().ok());
  EXPECT_TRUE(all->check_words(0).ok());
  const uint64_t operations = STANDIN(standin_calls)("cuStreamWaitValue32") +
                              STANDIN(standin_calls)("cuStreamWriteValue32");
  {
    Flags flags(*all, *one);
    const Flag come = *flags.take(), gone = *flags.take();
    const Stream stream = *one->make_stream();
    uint32_t value = 0xfffffffeu;  // the comparison holds over the end of the numbers
    come.set(value);
    gone.set(value);
    for (int i = 0; i < 4; ++i) {
      ++value;
      ASSERT_TRUE(one->wait_word(come.address, value, stream).ok());
      ASSERT_TRUE(one->write_word(gone.address, value, stream).ok());
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      EXPECT_FALSE(*one->idle(stream));
      EXPECT_FALSE(gone.has(value));
      come.set(value + 1);  // more than the value is enough
      EXPECT_TRUE(*one->empty_by(monotonic_now() + 10 * kSecond, {stream}));
      EXPECT_EQ(gone.word->load(), value);
      ++value;
    }
    one->destroy_stream(stream);
  }
  EXPECT_EQ(STANDIN(standin_calls)("cuStreamWaitValue32") +
                STANDIN(standin_calls)("cuStreamWriteValue32"), operations);
}

// Loading may wait until the device is idle, so what loads must not come when a stream waits.
TEST_F(WithoutMemoryOperations, KernelsAreLoadedAndLaunchedBeforeAnyStreamWaits) {
  const uint64_t loads = STANDIN(standin_calls)("cuModuleLoadData");
  EXPECT_FALSE(one->wait_word(0, 1, 0).ok());
  EXPECT_FALSE(one->write_word(0, 1, 0).ok());
  EXPECT_EQ(STANDIN(standin_calls)("cuModuleLoadData"), loads);
  STANDIN(standin_fail)("cuLaunchKernel", 2, 719, false);
  EXPECT_EQ(one->prepare_words().code(), Code::kDevice);
  ASSERT_TRUE(one->prepare_words().ok()) << "it can be tried again";
  ASSERT_TRUE(one->prepare_words().ok());
  EXPECT_EQ(STANDIN(standin_calls)("cuModuleLoadData"), loads + 2);
  STANDIN(standin_stream_memory)(true);  // the other stream waits by itself
  EXPECT_FALSE(holds_up_others([this] {
    const Stream stream = *one->make_stream();
    HERRING_RETURN_IF_ERROR(one->wait_word(0, 1, stream));
    HERRING_RETURN_IF_ERROR(one->write_word(0, 1, stream));
    one->destroy_stream(stream);
    return Status();
  }));
}

TEST_F(WithoutMemoryOperations, WhatIsMissingIsNamedIfKernelsCannotWait) {
  ::setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
  EXPECT_EQ(one->prepare_words().message(),
            "GPU 0 (stand-in 0) has no memory operations on streams, and kernels cannot wait "
            "instead: CUDA_LAUNCH_BLOCKING=1 would make their launch wait for other ranks");
  ::unsetenv("CUDA_LAUNCH_BLOCKING");
  EXPECT_TRUE(all->check_words(0).ok());
  STANDIN(standin_time_limit)(true);
  const auto limited = cuda::load();
  ASSERT_TRUE(limited.ok());
  const Status refused = (*limited)->check_words(1);
  EXPECT_EQ(refused.code(), Code::kConfiguration);
  EXPECT_NE(refused.message().find("GPU 1 (stand-in 1)"), std::string::npos);
  EXPECT_NE(refused.message().find("a display is attached"), std::string::npos);
}

TEST(Cuda, KernelsWaitWhereThatIsAskedFor) {
  ::setenv("HERRING_GPU_WAITS", "Kernels", 1);
  const auto asked = cuda::load();
  ::unsetenv("HERRING_GPU_WAITS");
  ASSERT_TRUE(asked.ok());
  EXPECT_FALSE((*asked)->properties(0).stream_memory);
}

}  // namespace
}  // namespace herring::device
