// Whole jobs in virtual time: sums are right, times are those of the links, and runs repeat
// exactly.
#include "simulate/job.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace herring::simulate {
namespace {

using transport::virtual_time::Network;
using transport::virtual_time::PathSettings;

constexpr double kRate = 200e6;

JobOptions job_over(Nanos delay, double loss = 0) {
  JobOptions options;
  options.nodes = options.dedicated_servers = 4;
  options.prepare = [=](Network& network) {
    network.set_all_paths({delay, 0, loss});
    for (size_t i = 0; i < network.links(); ++i) network.link(i).set({kRate, 20 * kMillisecond});
  };
  return options;
}

std::vector<JobRound> run(JobOptions options, size_t bytes, uint32_t rounds) {
  auto job = SimulatedJob::create(std::move(options));
  EXPECT_TRUE(job.ok()) << job.status().message();
  auto result = (*job)->allreduce(bytes, rounds, 600 * kSecond);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? *result : std::vector<JobRound>(rounds);
}

double median_after(const std::vector<JobRound>& rounds, size_t skipped) {
  std::vector<double> seconds;
  for (size_t i = skipped; i < rounds.size(); ++i) seconds.push_back(rounds[i].seconds);
  std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
  return seconds[seconds.size() / 2];
}

TEST(SimulatedJob, SumsAreRightWhateverTheServers) {
  for (const uint32_t dedicated : {0u, 1u, 3u, 5u}) {
    for (const char* proxies : {"1", "3"}) {
      JobOptions options = job_over(100 * kMicrosecond);
      options.nodes = 5;
      options.dedicated_servers = dedicated;
      options.settings = {{"proxies", proxies}};
      run(options, 1'000'004, 3);
    }
  }
}

TEST(SimulatedJob, SumsAreRightOverLossyPathsAndSmallQueues) {
  for (const uint64_t seed : {1, 2, 3}) {
    JobOptions options = job_over(2 * kMillisecond, 0.01);
    options.simulation.seed = seed;
    options.settings = {{"flows", "2"}};
    options.simulation.streams.send_buffer = 64 << 10;
    run(options, 600'000, 3);
  }
}

TEST(SimulatedJob, TheSameSeedGivesTheSameTimes) {
  const auto times = [](uint64_t seed) {
    JobOptions options = job_over(500 * kMicrosecond, 0.001);
    options.simulation.seed = seed;
    options.simulation.carries_data = false;
    std::vector<double> all;
    for (const JobRound& round : run(options, 2'000'000, 4)) all.push_back(round.seconds);
    return all;
  };
  EXPECT_EQ(times(7), times(7));
  EXPECT_NE(times(7), times(8));
}

TEST(SimulatedJob, DataMakesNoDifferenceToTimes) {
  const auto times = [](bool carries_data) {
    JobOptions options = job_over(500 * kMicrosecond);
    options.simulation.carries_data = carries_data;
    std::vector<double> all;
    for (const JobRound& round : run(options, 2'000'000, 3)) all.push_back(round.seconds);
    return all;
  };
  EXPECT_EQ(times(true), times(false));
}

// Every worker sends its bytes once and receives them once, at the same time.
TEST(SimulatedJob, SelfControlledCreditComesCloseToTheLinkOverLatencyAndLoss) {
  constexpr size_t kBytes = 12'500'000;
  constexpr double kLimit = kBytes * 8 / kRate;
  const struct { Nanos delay; double loss, most; } cases[] = {
      {50 * kMicrosecond, 0, 1.06},     {200 * kMicrosecond, 0, 1.07},
      {500 * kMicrosecond, 0, 1.08},    {5 * kMillisecond, 0, 1.25},
      {500 * kMicrosecond, 1e-4, 1.08}, {500 * kMicrosecond, 1e-3, 1.20},
  };
  for (const auto& one : cases) {
    JobOptions options = job_over(one.delay, one.loss);
    options.simulation.carries_data = false;
    const double median = median_after(run(options, kBytes, 25), 5) / kLimit;
    EXPECT_GE(median, 1.0);
    EXPECT_LE(median, one.most) << to_seconds(one.delay) << " s, " << one.loss << " lost";
  }
}

TEST(SimulatedJob, ARoundThatCannotEndIsSaidToHaveNot) {
  JobOptions options = job_over(kMillisecond);
  options.simulation.carries_data = false;
  auto job = SimulatedJob::create(options);
  ASSERT_TRUE(job.ok());
  const auto result = (*job)->allreduce(12'500'000, 1, 100 * kMillisecond);
  ASSERT_EQ(result.status().code(), Code::kTimeout);
  EXPECT_NE(result.status().message().find("4 of 4 ranks"), std::string::npos);
  const auto next = (*job)->allreduce(1000, 1, kSecond);
  EXPECT_EQ(next.status().code(), Code::kTimeout);
  EXPECT_NE(next.status().message().find("the job has ended"), std::string::npos);
}

// With few processors, some loops work and others wait when the simulation ends.
TEST(SimulatedJob, AJobMayEndInTheMiddle) {
  for (const size_t cores : {0, 1, 3}) {
    for (Nanos at = kMillisecond; at < 200 * kMillisecond; at += 23 * kMillisecond + cores) {
      JobOptions options = job_over(50 * kMicrosecond, 0.01);
      options.simulation.cores = cores;
      options.simulation.shared_cores = true;
      options.simulation.costs.wakeup = 100 * kMicrosecond;
      options.settings = {{"proxies", "2"}};
      auto job = SimulatedJob::create(options);
      ASSERT_TRUE(job.ok());
      EXPECT_FALSE((*job)->allreduce(12'500'000, 1, at).ok());
    }
  }
}

TEST(SimulatedJob, FewProcessorsMakeItSlower) {
  const auto seconds = [](size_t cores) {
    JobOptions options = job_over(50 * kMicrosecond);
    options.simulation.cores = cores;
    options.simulation.shared_cores = true;
    options.simulation.costs.wakeup = 200 * kMicrosecond;
    return median_after(run(options, 1'000'000, 3), 1);
  };
  EXPECT_GT(seconds(1), 1.5 * seconds(0));
}

TEST(SimulatedJob, RoundsGoOnFromOneCallToTheNext) {
  auto job = SimulatedJob::create(job_over(500 * kMicrosecond));
  ASSERT_TRUE(job.ok());
  for (const size_t bytes : {4u, 8196u, 1'000'000u, 400u}) {
    EXPECT_TRUE((*job)->allreduce(bytes, 3, 60 * kSecond).ok()) << bytes;
  }
}

TEST(SimulatedJob, SettingsAndSizesAreChecked) {
  JobOptions options = job_over(kMillisecond);
  options.settings = {{"flows", "99"}};
  EXPECT_EQ(SimulatedJob::create(options).status().code(), Code::kConfiguration);
  options = job_over(kMillisecond);
  options.nodes = 1;
  EXPECT_EQ(SimulatedJob::create(options).status().code(), Code::kConfiguration);
}

}  // namespace
}  // namespace herring::simulate
