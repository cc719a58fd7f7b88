// The bytes of every message, so that no change moves a field by mistake. Whoever changes a message
// on purpose raises wire::kProtocolVersion and takes the new number from the failure.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/hash.h"
#include "control/messages.h"
#include "tests/unit/observe/samples.h"
#include "wire/handover.h"
#include "wire/hello.h"
#include "wire/messages.h"
#include "wire/partial.h"
#include "wire/settled.h"

namespace herring::control {
namespace {

template <typename Kind>
wire::Announce announce(Kind what) {
  wire::Announce a;
  a.id = 0x1122334455667788;
  a.what = what;
  a.arrays = {{DType::kFloat16, {3, 4}}, {DType::kInt64, {}}};
  a.listed = true;
  a.timeout_ms = 1000;
  a.warn_ms = 2000;
  a.servers = 3;
  a.name = "grad";
  a.refusal = "no memory";
  a.agreement = "root 1";
  a.address = "10.0.0.1:99";
  return a;
}

std::vector<std::string> messages_of_the_data_plane() {
  using namespace wire;
  const Reduction reduction{ReduceOp::kAverage, 0.5, 2.0, 7};
  Open open;
  open.dtype = DType::kBFloat16;
  open.reduction = reduction;
  open.participants = Participants::kPair;
  open.workers = 4;
  open.shard_bytes = 4096;
  open.deadline = {11, 22, 33};
  open.pair_a = 1;
  open.pair_b = 2;
  open.result_workers = 5;
  open.name = "buffer 3";
  Open again = open, stays = open;
  again.again = true;
  stays.stays = true;
  std::vector<std::string> all = {encode(open), encode(again), encode(stays)};
  all.push_back(encode(announce(AllReduce{reduction, Algorithm::kRing})));
  all.push_back(encode(announce(Broadcast{2})));
  all.push_back(encode(announce(AllGather{})));
  all.push_back(encode(announce(ReduceScatter{reduction, {1, 2}})));
  all.push_back(encode(announce(AllToAll{{3, 4}})));
  all.push_back(encode(announce(Barrier{})));
  all.push_back(encode(announce(FormGroup{{0, 5}, 2, 3})));
  all.push_back(encode(announce(Send{1, 9})));
  all.push_back(encode(announce(Receive{})));
  all.push_back(encode(announce(Receive{6, 8})));
  all.push_back(encode(announce(Join{12})));
  all.push_back(encode(Go{5, {6, 7}, 8}));
  all.push_back(encode(GroupMessage{1, "tp", {2, 3}}));
  all.push_back(encode(OpError{4, Code::kTimeout, "late"}));
  all.push_back(encode(std::vector<Settled>{{{Subject::Kind::kAnswers, 3}, 4}}));
  all.push_back(encode(Handover{true,
                                9,
                                {2, 4},
                                {{7, FrameType::kGo, 1, 2, "n", "text", {5, 6}, "call"}},
                                {{1, 2, 3, FrameType::kOpError, 4, 5, "why"}}}));
  return all;
}

std::vector<std::string> messages_of_partial_all_reduces() {
  using namespace wire;
  Enlist enlist;
  enlist.dtype = DType::kInt32;
  enlist.op = ReduceOp::kSum;
  enlist.by_contributors = enlist.replays = true;
  enlist.elements = 100;
  enlist.quorum = 3;
  enlist.grace = 4;
  enlist.staleness = 5;
  enlist.timeout_ms = 6;
  enlist.warn_ms = 7;
  enlist.number = 8;
  enlist.name = "series";
  partial::SeriesState known;
  known.rounds = 1;
  known.tickets = 2;
  known.whole = true;
  known.counts = {{3, 4}, {5, 6}};
  return {encode(enlist), encode(JoinMessage{1, 2, 3, true, 4, 5, 6, 7, {}}),
          encode(RoundMessage{1, 2, 3, 4, true, {{5, 6, 7, true, -8, 9}}, {{1, 2, 3}}, {}}),
          encode(RoundMark{1, 2, 3, false}), encode_known(9, known)};
}

std::vector<std::string> messages_of_control() {
  WorkerRegistration worker;
  worker.rank = 3;
  worker.size = 8;
  worker.local_rank = 1;
  worker.dedicated_servers = 2;
  worker.host_id = "host";
  worker.bus = std::string("\0\1\2", 3);
  worker.settings = {{"a", "1"}, {"b", ""}};
  ServerRegistration server{false, 1, 2, 7000, "::1"};
  ServerRegistration dedicated{true, 1, 2, 7000, ""};
  ClusterMessage cluster;
  cluster.start_server = true;
  cluster.index = 1;
  cluster.cluster = {77, 1, 3, 2,
                     {{0, 0, 0, "10.0.0.1", 10, "x"},
                      {1, 1, 1, "10.0.0.2", 11, ""},
                      {2, 1, 0, "10.0.0.2", 12, "z"}},
                     {{0, true, ~0u, "10.0.0.3:1", 0.5}, {1, false, 1, "10.0.0.2:2", 0.25}},
                     {{"credit", "0"}}};
  cluster.gone = {{true, false, 1, {}, 0, {}}, {false, true, 2, {}, 0, {}}};
  const Rhythm rhythm{kSecond, 5 * kSecond, 1, 2, 3};
  const LossNotice notice{9, {{true, false, 1, "server 1 is gone", 8, {true, false}},
                              {false, true, 2, "", 9, {}}}};
  const Replacement replacement{Replacement::Stage::kServes, 1, 2, "10.0.0.9:5", 3, {false, true}};
  return {encode(Registration{worker, 4711, 5, "gpu-1"}), encode(Registration{server, 1, 2, ""}),
          encode(Registration{dedicated, 1, 2, ""}), encode(cluster), encode(rhythm),
          encode(Beat{4}), encode(notice), encode(replacement),
          encode(ServerReport{1, 2, false, "refused"}), encode(Status(Code::kTimeout, "late"))};
}

std::vector<std::string> messages_of_observation() {
  using namespace observe;
  return {encode(full_report()), encode(full_record()),
          encode(RankTexts{{3, "has been computing for 2 s", 4, 5}, {9, "", 7, 3}})};
}

std::vector<std::string> numbers(const std::vector<std::string>& messages) {
  std::vector<std::string> all;
  for (const std::string& message : messages) {
    const uint64_t hash = fnv1a(message);
    all.push_back(concat(message.size(), ' ', wire::in_hexadecimal(&hash, sizeof hash)));
  }
  return all;
}

TEST(Layout, OfMessagesIsThatOfTheProtocolVersion) {
  EXPECT_EQ(wire::kProtocolVersion, 20);
  EXPECT_EQ(numbers(messages_of_the_data_plane()), (std::vector<std::string>{
      "72 86222d8383674b11", "72 f9431c86dc8db58e", "72 888e1415bbd06f84",
      "112 9eab0b6abb2f0b80", "94 0bfd943d58ecd66e", "90 eedbc4bfe12e2a07",
      "131 bf393f8335c8ecd5", "110 63cd17e2981efa47", "90 45b62506a3c20e17",
      "110 6895b7b39b2e1557", "102 7b2c2e392c3cf16b", "104 d87a977cf5dcb646",
      "104 b0605cf8d5b1b734", "98 0d37085a8b29c261", "32 5b25de40d538010e",
      "26 215512ae21677be5", "17 d465beda0fba2499", "21 15d7962a442dd2d9",
      "131 6e426933600245fa",
  }));
  EXPECT_EQ(numbers(messages_of_partial_all_reduces()), (std::vector<std::string>{
      "52 2851f224b09a7945", "41 dc20440a257baa79", "78 7b4dfff2538fc377",
      "17 efe2051198d04819", "47 aacf6b1e0443a624",
  }));
  EXPECT_EQ(numbers(messages_of_control()), (std::vector<std::string>{
      "84 b448d02324a053ec", "35 723476da886b4bb6", "32 34d712a440c339fc",
      "224 3d44f4f4e47732c3", "40 0c6ac0e5f9a9ace2", "8 41115dfc0ddcdc2c",
      "54 b334a5b93fbf80b4", "33 2103a42fecabeee8", "20 a3ac39caf261bed5",
      "12 68505164dfd540d1",
  }));
  EXPECT_EQ(numbers(messages_of_observation()), (std::vector<std::string>{
      "566 0b120b87f1acfbbe", "352 0d09bf0091c884b4", "78 369c0e5b74c8d546",
  }));
}

}  // namespace
}  // namespace herring::control
