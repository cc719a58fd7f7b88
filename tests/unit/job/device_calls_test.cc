// Calls of a job of one rank whose array lies on a device.
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "device/copiers.h"
#include "tests/unit/device/standin_driver.h"
#include "tests/unit/job/one_rank.h"

namespace herring::job {
namespace {

class DeviceCallsTest : public OneRankTest {
 protected:
  // Averages an array and brings the result back. The call may have the last share of the copier.
  void average(Result<std::shared_ptr<device::Copier>> copier) {
    ASSERT_TRUE(copier.ok()) << copier.status().message();
    constexpr size_t kCount = 10'000, kBytes = kCount * sizeof(float);
    const device::Stream stream = device::user_stream(0);
    const device::Address address = STANDIN(standin_allocate)(0, kBytes);
    STANDIN(standin_fill)(device::handle_of(stream), address, kCount, 3, 100);
    calls::Call call;
    call.name = "x";
    call.what = wire::AllReduce{{.op = ReduceOp::kAverage, .postscale = 2}};
    call.buffers.push_back({.array = {DType::kFloat32, {kCount}}, .on_device = address});
    call.copier = *std::exchange(copier, Status(Code::kShutdown, "given away"));
    call.streams = {stream};
    auto submitted = job->engine().submit(std::move(call), true);
    ASSERT_TRUE(submitted.ok()) << submitted.status().message();
    std::shared_ptr<calls::Operation> operation = std::move(*submitted);
    while (!operation->wait_for(kSecond)) {}
    ASSERT_TRUE(operation->status().ok()) << operation->status().message();
    ASSERT_TRUE(operation->take_back({}).ok());
    const std::shared_ptr<engine::Future> back = operation->taken_back();
    submitted = Status(Code::kShutdown, "given away");
    operation.reset();
    while (!back->wait_for(kSecond)) {}
    ASSERT_TRUE(back->status().ok()) << back->status().message();
    std::vector<float> got(kCount);
    STANDIN(standin_peek)(got.data(), address, kBytes);
    EXPECT_EQ(got, std::vector<float>(kCount, 6));
    STANDIN(standin_free)(0, address);
    device::gpu(0).destroy_stream(stream);
  }
};

TEST_F(DeviceCallsTest, AnArrayIsAveraged) { average(device::shared_copier(0)); }

TEST_F(DeviceCallsTest, AnArrayIsAveragedWithACopierThatEndsWithTheCall) {
  for (int i = 0; i < 20; ++i) average(device::own_copier(0));
}

}  // namespace
}  // namespace herring::job
