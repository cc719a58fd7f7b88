// Shared by the tests of the coordinator: announcements of ranks, and the answers to them.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fixture.h"
#include "server/coordinator.h"

namespace herring::server {

struct Call {
  wire::Announce message;
  std::string payload;
  std::string text() const { return encode(message) + payload; }
};

inline Call small(uint64_t id, std::string payload) {
  Call call;
  call.message.id = id;
  call.message.name = "x";
  call.message.inline_payload = true;
  call.message.timeout_ms = 1000;
  call.message.warn_ms = 500;
  call.message.arrays = {{DType::kFloat32, {payload.size() / 4}}};
  call.payload = std::move(payload);
  return call;
}

class CoordinatorTest : public testing::Test {
 protected:
  std::vector<Answer> say(uint32_t rank, const Call& call, Nanos now = 0) {
    std::vector<Answer> answers;
    const Status status = coordinator.announce(rank, 0, {5}, call.text(), now, answers);
    EXPECT_TRUE(status.ok()) << status.to_string();
    return answers;
  }
  std::vector<Answer> overdue(Nanos now) {
    std::vector<Answer> answers;
    coordinator.overdue(now, answers);
    return answers;
  }
  std::vector<Answer> leave(uint32_t rank) {
    std::vector<Answer> answers;
    coordinator.rank_gone(rank, kLeftJob, 0, answers);
    return answers;
  }
  static wire::OpError error_in(const Answer& answer) {
    auto error = wire::decode_op_error(answer.payload);
    EXPECT_TRUE(answer.header.type == wire::FrameType::kOpError && error.ok());
    return error.ok() ? *error : wire::OpError{};
  }

  control::Cluster cluster = make_cluster(3);
  GroupTable groups{cluster};
  observe::RankStates states;
  Coordinator coordinator{cluster, groups, 5, states};
};

}  // namespace herring::server
