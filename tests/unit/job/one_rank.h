// A job of one rank, for the tests of a process.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "job/job.h"

namespace herring::job {

class OneRankTest : public testing::Test {
 protected:
  void SetUp() override {
    auto settings = Settings::load({}, [](const char*) -> const char* { return nullptr; });
    ASSERT_TRUE(settings.ok());
    auto listener = transport::tcp::listen_on({"127.0.0.1", 0}, 4);
    ASSERT_TRUE(listener.ok());
    JobOptions options;
    options.rendezvous = transport::tcp::local_address(listener->get())->to_string();
    options.rendezvous_fd = listener->release().release();
    options.host_id = "host";
    options.secret = "secret";
    options.settings = *settings;
    auto started = Job::start(std::move(options));
    ASSERT_TRUE(started.ok()) << started.status().message();
    job = std::move(*started);
  }
  void TearDown() override { job->shutdown(); }

  std::unique_ptr<Job> job;
};

}  // namespace herring::job
