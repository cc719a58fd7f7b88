// Tests that received payloads are checked: cut, lengthened or changed ones give errors and nothing
// worse.
#include "control/messages.h"

#include <gtest/gtest.h>

#include <random>

namespace herring::control {
namespace {

Registration worker_registration() {
  WorkerRegistration worker;
  worker.rank = 3;
  worker.size = 8;
  worker.local_rank = 1;
  worker.local_size = -1;
  worker.dedicated_servers = 2;
  worker.host_id = "host";
  worker.bus = std::string("\0\1\2", 3);
  worker.settings = {{"a", "1"}, {"b", ""}};
  return {worker, 4711, 5 * kSecond};
}

Registration server_registration() {
  ServerRegistration server;
  server.dedicated = false;
  server.node = 1;
  server.port = 7000;
  server.host = "::1";
  return {server, 99, 0};
}

ClusterMessage cluster_message() {
  ClusterMessage message;
  message.start_server = true;
  message.index = 1;
  message.cluster.incarnation = 77;
  message.cluster.epoch = 1;
  message.cluster.size = 3;
  message.cluster.nodes = 2;
  message.cluster.workers = {{0, 0, 0, "10.0.0.1", 10, "x"},
                             {1, 1, 1, "10.0.0.2", 11, ""},
                             {2, 1, 0, "10.0.0.2", 12, "z"}};
  message.cluster.servers = {{0, true, ~0u, "10.0.0.3:1", 0.5}, {1, false, 1, "10.0.0.2:2", 0.25}};
  message.cluster.settings = {{"credit", "0"}};
  return message;
}

TEST(Messages, RegistrationsSurviveTheWay) {
  auto decoded = decode_registration(encode(worker_registration()));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->pid, 4711);
  EXPECT_EQ(decoded->patience, 5 * kSecond);
  const auto& worker = std::get<WorkerRegistration>(decoded->what);
  EXPECT_EQ(worker.rank, 3u);
  EXPECT_EQ(worker.local_rank, 1);
  EXPECT_EQ(worker.local_size, -1);
  EXPECT_EQ(worker.bus.size(), 3u);
  EXPECT_EQ(worker.settings.size(), 2u);
  decoded = decode_registration(encode(server_registration()));
  ASSERT_TRUE(decoded.ok());
  const auto& server = std::get<ServerRegistration>(decoded->what);
  EXPECT_FALSE(server.dedicated);
  EXPECT_EQ(server.node, 1u);
  EXPECT_EQ(server.wanted, ~0u);
  ServerRegistration dedicated;
  dedicated.wanted = 2;
  dedicated.port = 7000;
  auto other = decode_registration(encode(Registration{dedicated, 99, 0}));
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(std::get<ServerRegistration>(other->what).wanted, 2u);
  EXPECT_EQ(std::get<ServerRegistration>(other->what).node, ~0u);
  EXPECT_EQ(server.port, 7000);
  EXPECT_EQ(server.host, "::1");
}

TEST(Messages, TheClusterSurvivesTheWay) {
  auto decoded = decode_cluster(encode(cluster_message()));
  ASSERT_TRUE(decoded.ok());
  EXPECT_TRUE(decoded->start_server);
  EXPECT_EQ(decoded->index, 1u);
  EXPECT_EQ(decoded->cluster.incarnation, 77u);
  EXPECT_EQ(decoded->cluster.epoch, 1u);
  EXPECT_EQ(decoded->cluster.ranks_of(1), (std::vector<uint32_t>{2, 1}));
  EXPECT_EQ(decoded->cluster.describe_rank(2), "rank 2 (10.0.0.2, pid 12)");
  EXPECT_EQ(decoded->cluster.describe_server(0), "server 0 (10.0.0.3:1)");
  EXPECT_EQ(decoded->cluster.describe_server(1),
            "server 1 (10.0.0.2:2, in the process of rank 2 (10.0.0.2, pid 12))");
  EXPECT_EQ(decoded->cluster.workers[0].bus, "x");
  EXPECT_EQ(decoded->cluster.workers[2].bus, "z");
  EXPECT_EQ(decoded->cluster.describe_rank(77), "rank 77");
  EXPECT_EQ(decoded->cluster.servers[1].weight, 0.25);
}

TEST(Messages, OfLocalAddressesOnlyThoseOfTheNodeTravel) {
  const Cluster cluster = cluster_message().cluster;
  auto decoded = decode_cluster(encode_own(false, 2, cluster, {2, 1}) + encode_common(cluster));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->index, 2u);
  EXPECT_EQ(decoded->cluster.workers[0].bus, "");
  EXPECT_EQ(decoded->cluster.workers[2].bus, "z");
  EXPECT_EQ(decoded->cluster.workers[0].host, "10.0.0.1");
  Cluster smaller = cluster;
  smaller.workers.resize(2);
  smaller.workers[1].local_rank = 0;
  smaller.servers.clear();
  EXPECT_TRUE(decode_cluster(encode_own(false, 0, smaller, {1}) + encode_common(smaller)).ok());
  EXPECT_FALSE(decode_cluster(encode_own(false, 0, cluster, {2}) + encode_common(smaller)).ok())
      << "of a rank that is not there";
}

TEST(Messages, OnlyPlainHostNamesCount) {
  const auto told = [](const std::string& name) {
    Registration registration = worker_registration();
    registration.host_name = name;
    const auto got = decode_registration(encode(registration));
    return got.ok() ? got->host_name : "refused";
  };
  EXPECT_EQ(told("gpu-07.example_1"), "gpu-07.example_1");
  EXPECT_EQ(told(std::string(300, 'a')), std::string(255, 'a'));
  for (const char* const name : {"", "a\x1b[31m", "<b>", "a\"} 1", "a b", "a\n", "h\xc3\xb6st",
                                 "localhost", "localhost.localdomain"}) {
    EXPECT_EQ(told(name), "") << name;
  }
}

TEST(Messages, ImpossibleClustersAreRefused) {
  const auto refused = [](auto change) {
    ClusterMessage message = cluster_message();
    change(message.cluster);
    EXPECT_FALSE(decode_cluster(encode(message)).ok());
  };
  refused([](Cluster& c) { c.workers.clear(); });
  refused([](Cluster& c) { c.workers[0].node = 2; });
  refused([](Cluster& c) { c.workers[2].local_rank = 1; });
  refused([](Cluster& c) { c.workers[1].local_rank = 2; });
  refused([](Cluster& c) { c.nodes = 3; });
  refused([](Cluster& c) { c.nodes = 4; });
  refused([](Cluster& c) { c.servers[1].node = 2; });
  refused([](Cluster& c) { c.servers[0].weight = -1; });
  refused([](Cluster& c) { c.servers[0].weight = std::numeric_limits<double>::quiet_NaN(); });
}

TEST(Messages, LimitsHold) {
  WorkerRegistration worker = std::get<WorkerRegistration>(worker_registration().what);
  for (int i = 0; i < 62; ++i) worker.settings[std::to_string(i)] = std::string(4096, 'v');
  EXPECT_TRUE(check_limits(worker).ok());
  EXPECT_TRUE(decode_registration(encode(Registration{worker, 0, 0})).ok());
  worker.settings["one more"] = "";
  EXPECT_EQ(check_limits(worker).code(), Code::kConfiguration);
  EXPECT_FALSE(decode_registration(encode(Registration{worker, 0, 0})).ok());
  worker.settings = {{"name", std::string(4097, 'v')}};
  EXPECT_FALSE(check_limits(worker).ok());
  EXPECT_FALSE(decode_registration(encode(Registration{worker, 0, 0})).ok());
  worker.settings.clear();
  worker.host_id.resize(1025);
  EXPECT_FALSE(check_limits(worker).ok());
  worker.host_id.clear();
  worker.bus.resize(1025);
  EXPECT_FALSE(check_limits(worker).ok());
}

TEST(Messages, RhythmsAreChecked) {
  EXPECT_TRUE(decode_rhythm(encode(Rhythm{kSecond, 2 * kSecond})).ok());
  for (const Rhythm& bad : {Rhythm{0, kSecond}, Rhythm{kSecond, kSecond}, Rhythm{-1, kSecond},
                            Rhythm{INT64_MAX, INT64_MAX}, Rhythm{kSecond, 8 * 86400 * kSecond},
                            Rhythm{INT64_MIN, INT64_MIN}}) {
    EXPECT_FALSE(decode_rhythm(encode(bad)).ok());
  }
}

TEST(Messages, LossesAndAbortsSurviveTheWay) {
  const auto notice = decode_losses(
      encode(LossNotice{9, {{true, false, 5, "server 5 is gone"}, {false, true, 7, {}}}}));
  ASSERT_TRUE(notice.ok());
  EXPECT_EQ(notice->epoch, 9u);
  const std::vector<Loss>& losses = notice->losses;
  ASSERT_EQ(losses.size(), 2u);
  EXPECT_TRUE(losses[0].is_server && !losses[0].left);
  EXPECT_EQ(losses[0].index, 5u);
  EXPECT_EQ(losses[0].text, "server 5 is gone");
  EXPECT_EQ(losses[0].epoch, 8u);
  EXPECT_TRUE(!losses[1].is_server && losses[1].left);
  EXPECT_EQ(losses[1].index, 7u);
  EXPECT_EQ(losses[1].text, "");
  EXPECT_EQ(losses[1].epoch, 9u);
  Status why;
  ASSERT_TRUE(decode_abort(encode(Status(Code::kTimeout, "too late")), why).ok());
  EXPECT_EQ(why.code(), Code::kTimeout);
  EXPECT_EQ(why.message(), "too late");
  // An error keeps its code when it is sent, even if it is a breach of the protocol.
  ASSERT_TRUE(decode_abort(encode(breach("it sent nonsense")), why).ok());
  EXPECT_EQ(why.code(), Code::kProtocol);
  // A long reason is cut, and control characters are replaced by question marks.
  ASSERT_TRUE(decode_abort(encode(Status(Code::kShutdown, std::string(100000, '\x1b'))), why).ok());
  EXPECT_EQ(why.message(), std::string(kMaxTextBytes, ' '));
  // A reason with an unknown code still decodes to an error.
  ASSERT_TRUE(decode_abort(std::string("\xff\0\0\0\0\0\0\0", 8), why).ok());
  EXPECT_EQ(why.code(), Code::kProtocol);
  ASSERT_TRUE(decode_abort(std::string("\0\0\0\0\0\0\0\0", 8), why).ok());
  EXPECT_FALSE(why.ok());
}

TEST(Messages, ADeadlockIsATimeoutAndNobodysDoing) {
  const Status deadlock = told_to_end({Code::kTimeout, concat(kDeadlock, "all wait")});
  EXPECT_EQ(deadlock.code(), Code::kTimeout);
  EXPECT_EQ(deadlock.message(), "deadlock: all wait");
  const Status aborted = told_to_end({Code::kTimeout, "rank 1: it took too long"});
  EXPECT_EQ(aborted.code(), Code::kPeerLost);
  EXPECT_EQ(aborted.message(), "the job was aborted: rank 1: it took too long");
}

TEST(Messages, NoticesFollowTheMembersEpoch) {
  const LossNotice two{5, {{false, false, 1, {}}, {false, false, 2, {}}}};
  EXPECT_TRUE(check_next(two, 3).ok());
  for (const uint32_t epoch : {0u, 2u, 4u, 5u, 6u, ~0u}) {
    EXPECT_EQ(check_next(two, epoch).code(), Code::kProtocol) << epoch;
  }
  EXPECT_FALSE(check_next({1, {{}, {}}}, ~0u).ok()) << "no epoch comes twice";
  EXPECT_TRUE(decode_losses(encode(two)).ok());
  EXPECT_TRUE(decode_losses(encode(LossNotice{3, two.losses})).ok());
  EXPECT_FALSE(decode_losses(encode(LossNotice{2, two.losses})).ok()) << "before the first";
  EXPECT_FALSE(decode_losses(encode(LossNotice{0, two.losses})).ok());
  EXPECT_FALSE(decode_losses(encode(LossNotice{5, {}})).ok()) << "of nobody";
}

const LossNotice kLosses = {3, {{false, false, 1, "text"}, {true, true, 0, {}}}};

// Runs every decoder. A decoder may refuse or accept the payload, but must stay within its memory
// (the sanitizers check this).
void decode_all(std::string_view payload) {
  if (auto decoded = decode_registration(payload); decoded.ok()) {
    if (const auto* worker = std::get_if<WorkerRegistration>(&decoded->what)) {
      EXPECT_TRUE(check_limits(*worker).ok());
    }
  }
  if (auto decoded = decode_cluster(payload); decoded.ok()) {
    const Cluster& cluster = decoded->cluster;
    for (uint32_t node = 0; node < cluster.nodes; ++node) {
      EXPECT_EQ(cluster.ranks_of(node).size(), cluster.local_size(node));
    }
  }
  (void)decode_rhythm(payload);
  (void)decode_losses(payload);
  Status why;
  (void)decode_abort(payload, why);
}

TEST(Messages, CutAndLengthenedPayloadsAreRefused) {
  const std::string whole[] = {encode(worker_registration()), encode(server_registration()),
                               encode(cluster_message()), encode(kLosses)};
  for (const std::string& payload : whole) {
    for (size_t n = 0; n < payload.size(); ++n) {
      const std::string cut = payload.substr(0, n);  // its own memory, where an overrun shows
      EXPECT_FALSE(decode_registration(cut).ok());
      EXPECT_FALSE(decode_cluster(cut).ok());
      decode_all(cut);
    }
    decode_all(payload + '\0');
  }
  EXPECT_FALSE(decode_registration(whole[0] + '\0').ok());
  EXPECT_FALSE(decode_cluster(whole[2] + '\0').ok());
}

TEST(Messages, ChangedPayloadsDoNoHarm) {
  std::mt19937 random(11);
  const std::string whole[] = {encode(worker_registration()), encode(server_registration()),
                               encode(cluster_message()), encode(kLosses)};
  const unsigned char nasty[] = {0, 1, 0x7f, 0x80, 0xff};
  for (int round = 0; round < 20000; ++round) {
    std::string payload = whole[random() % 4];
    for (int change = 1 + random() % 4; change > 0; --change) {
      payload[random() % payload.size()] =
          static_cast<char>(random() % 2 ? nasty[random() % 5] : random());
    }
    decode_all(payload);
  }
}

TEST(Messages, HeartbeatsCarryTheTimesOfBothClocks) {
  const Rhythm sent{kSecond, 3 * kSecond, 11, 22, 33};
  auto got = decode_rhythm(encode(sent));
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(encode(*got), encode(sent));
  EXPECT_EQ(got->echo, 11);
  EXPECT_EQ(got->received, 22);
  EXPECT_EQ(got->sent, 33);
  auto beat = decode_beat(encode(Beat{44}));
  ASSERT_TRUE(beat.ok());
  EXPECT_EQ(beat->sent, 44);
  for (const std::string& whole : {encode(sent), encode(Beat{44})}) {
    for (size_t size = 0; size < whole.size(); ++size) {
      const std::string_view cut = std::string_view(whole).substr(0, size);
      EXPECT_FALSE(decode_rhythm(cut).ok() || (size != 8 && decode_beat(cut).ok())) << size;
    }
  }
  for (const Nanos wrong : {Nanos{-1}, kEndless, INT64_MAX}) {
    EXPECT_FALSE(decode_rhythm(encode(Rhythm{kSecond, 3 * kSecond, wrong, 0, 0})).ok());
    EXPECT_FALSE(decode_rhythm(encode(Rhythm{kSecond, 3 * kSecond, 0, 0, wrong})).ok());
    EXPECT_FALSE(decode_beat(encode(Beat{wrong})).ok());
  }
}

}  // namespace
}  // namespace herring::control
