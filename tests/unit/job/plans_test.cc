// Planned operations of a job of one rank, which other threads use at the same time.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/copiers.h"
#include "tests/unit/device/standin_driver.h"
#include "tests/unit/job/one_rank.h"
#include "rounds/device_rounds.h"

namespace herring::job {
namespace {

class PlansTest : public OneRankTest {
 protected:
  static rounds::PlannedOptions named(std::string name) {
    rounds::PlannedOptions options;
    options.name = std::move(name);
    return options;
  }
};

// What a device reports of a round may come when the program begins the next one. Rounds without
// gradients are over at once.
TEST_F(PlansTest, DevicesReportWhileRoundsBegin) {
  auto plan = rounds::Planned::create(job->engine().rounds(), {}, named("empty"));
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  ASSERT_TRUE((*plan)->begin(true).ok());
  std::atomic<bool> over{false};
  std::thread device([&] {
    for (uint32_t before = 0; !over;) {
      (*plan)->added(0);
      (*plan)->given(0);
      const uint32_t begun = (*plan)->rounds();
      EXPECT_LE(before, begun);
      before = begun;
    }
  });
  for (int round = 0; round < 100'000; ++round) EXPECT_TRUE((*plan)->begin(true).ok());
  over = true;
  device.join();
  EXPECT_EQ((*plan)->rounds(), 100'001u);
}

// A plan needs a flag for each buffer. So many take memory that must be pinned.
TEST_F(PlansTest, APlanWithoutFlagsForItsBuffersIsRefused) {
  const std::vector<plan::Gradient> gradients(200, {1 << 14, DType::kFloat32});
  rounds::PlannedOptions options = named("large");
  options.buffer_bytes = 1 << 16;
  auto copier = device::own_copier(0);
  ASSERT_TRUE(copier.ok()) << copier.status().message();
  STANDIN(standin_fail)("cuMemHostRegister", 1, 2, true);
  const auto refused = rounds::DeviceRounds::create(job->engine().rounds(), gradients,
                                                    std::move(options), *copier, nullptr);
  STANDIN(standin_fail)(nullptr, 0, 0, false);
  EXPECT_EQ(refused.status().code(), Code::kDevice) << refused.status().message();
  EXPECT_NE(refused.status().message().find("the words through which GPUs and processors meet"),
            std::string::npos) << refused.status().message();
}

}  // namespace
}  // namespace herring::job
