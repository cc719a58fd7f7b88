// Tests a running job's control plane inside one process: leaving, dying, aborting and invalid
// messages.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "control/channel.h"
#include "control/messages.h"
#include "job.h"
#include "tests/unit/text.h"

namespace herring::control {
namespace {

using testing::Job;
using testing::kPatience;
using testing::Running;
using testing::Witness;

TEST(Life, AClosedConnectionIsALossToldToEverybody) {
  Running running(3);
  Witness zero(*running.workers[0]), two(*running.workers[2]), server(*running.server);
  running.workers[1].reset();
  for (Witness* witness : {&zero, &two, &server}) {
    ASSERT_TRUE(witness->wait_losses(1));
    const Loss loss = witness->losses()[0];
    EXPECT_FALSE(loss.is_server);
    EXPECT_FALSE(loss.left);
    EXPECT_EQ(loss.index, 1u);
    EXPECT_TRUE(contains(loss.text, concat("rank 1 (127.0.0.1, pid ", getpid(), ") is lost")))
        << loss.text;
    EXPECT_TRUE(contains(loss.text, "without a goodbye")) << loss.text;
  }
  running.server.reset();
  ASSERT_TRUE(zero.wait_losses(2));
  EXPECT_TRUE(zero.losses()[1].is_server);
  EXPECT_EQ(zero.losses()[1].index, 0u);
  EXPECT_TRUE(contains(zero.losses()[1].text, "server 0 (127.0.0.1:7000)"))
      << zero.losses()[1].text;
}

TEST(Life, GoodbyeIsNoFailureAndTheLastOneEndsTheServers) {
  Running running(2);
  Witness zero(*running.workers[0]), server(*running.server);
  running.workers[1]->goodbye();
  ASSERT_TRUE(zero.wait_losses(1));
  EXPECT_TRUE(zero.losses()[0].left);
  EXPECT_EQ(zero.losses()[0].index, 1u);
  EXPECT_TRUE(contains(zero.losses()[0].text, "has left the job (shutdown)"));
  EXPECT_EQ(server.ends(), 0);
  running.workers[1].reset();  // its end is not reported again
  running.workers[0]->goodbye();
  ASSERT_TRUE(server.wait_end());
  EXPECT_EQ(server.ends(), 1);
  EXPECT_EQ(server.end(), Member::End::kAllLeft);
  running.server->goodbye();
  EXPECT_EQ(zero.losses().size(), 1u);
  EXPECT_EQ(server.losses().size(), 2u);
  running.job.rendezvous().stop();
}

TEST(Life, ServersHearThatTheRendezvousLeavesBeforeTheOthersDo) {
  Running running(2);
  Witness server(*running.server);
  running.workers[0]->goodbye();
  running.job.rendezvous().stop();
  ASSERT_TRUE(server.wait_end());
  EXPECT_EQ(server.ends(), 1);
  EXPECT_EQ(server.end(), Member::End::kNoNews) << "rank 1 is still in the job";
}

TEST(Life, ServersEndAlsoWhenTheLastWorkerDies) {
  Running running(2);
  Witness server(*running.server);
  running.workers[0]->goodbye();
  running.workers[1].reset();
  EXPECT_TRUE(server.wait_end());
}

TEST(Life, LossesBeforeWatchAreDeliveredThen) {
  Running running(3);
  Witness zero(*running.workers[0]);
  running.workers[1].reset();
  ASSERT_TRUE(zero.wait_losses(1));
  running.workers[2]->abort("enough");
  ASSERT_TRUE(zero.wait_aborts(1));
  Witness server(*running.server);
  ASSERT_TRUE(server.wait_losses(1));
  ASSERT_TRUE(server.wait_aborts(1));
  EXPECT_EQ(server.losses()[0].index, 1u);
}

TEST(Life, AWorkerWhosePartHasEndedCountsAsLostSoon) {
  Running running(3);
  Witness zero(*running.workers[0]), two(*running.workers[2]), server(*running.server);
  running.workers[1]->end_part({Code::kTimeout, "'x' has waited for rank 2"});
  for (Witness* each : {&zero, &two, &server}) {
    ASSERT_TRUE(each->wait_losses(1));
    EXPECT_EQ(each->losses()[0].index, 1u);
    EXPECT_TRUE(contains(each->losses()[0].text, "'x' has waited for rank 2"));
    EXPECT_TRUE(each->aborts().empty());
  }
  // It leaves later, and nobody hears of it again.
  running.workers[1]->goodbye();
  running.workers[2].reset();
  ASSERT_TRUE(zero.wait_losses(2));
  EXPECT_EQ(zero.losses()[1].index, 2u);
}

// The other ranks hear the reason before they would have heard of a process that stays.
TEST(Life, AWorkerThatGoesAfterItsPartHasEndedIsLostForThatReason) {
  for (const bool says_goodbye : {true, false}) {
    Running running(3);
    Witness zero(*running.workers[0]), two(*running.workers[2]), server(*running.server);
    running.workers[1]->end_part({Code::kTimeout, "'x' has waited for rank 2"});
    if (says_goodbye) running.workers[1]->goodbye();
    running.workers[1].reset();
    for (Witness* each : {&zero, &two, &server}) {
      ASSERT_TRUE(each->wait_losses(1));
      const Loss loss = each->losses()[0];
      EXPECT_EQ(loss.index, 1u);
      EXPECT_FALSE(loss.left);
      EXPECT_TRUE(contains(loss.text, "part of the job has ended: 'x' has waited for rank 2; it"))
          << loss.text;
      EXPECT_TRUE(contains(loss.text, says_goodbye ? "left the job" : "without a goodbye"));
    }
  }
}

TEST(Life, ADeathComesBeforeTheEndOfAPart) {
  Running running(4);
  Witness zero(*running.workers[0]);
  running.workers[1]->end_part({Code::kTimeout, "'x' has waited for rank 2"});
  running.workers[1]->settle();
  running.workers[2].reset();
  ASSERT_TRUE(zero.wait_losses(1));
  EXPECT_EQ(zero.losses()[0].index, 2u);
  EXPECT_TRUE(contains(zero.losses()[0].text, "without a goodbye"));
}

TEST(Life, AbortReachesEverybodyEvenWhenItsAuthorGoesAtOnce) {
  Running running(3);
  Witness zero(*running.workers[0]), two(*running.workers[2]), server(*running.server);
  running.workers[1]->abort("the loss is not a number");
  running.workers[1].reset();
  for (Witness* witness : {&zero, &two, &server}) {
    ASSERT_TRUE(witness->wait_aborts(1));
    EXPECT_TRUE(contains(witness->aborts()[0], "rank 1 (127.0.0.1")) << witness->aborts()[0];
    EXPECT_TRUE(contains(witness->aborts()[0], "the loss is not a number"));
  }
}

TEST(Life, AbortFromManyThreadsDoesNotHang) {
  Running running(2);
  Witness zero(*running.workers[0]);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 25; ++n) running.workers[1]->abort("again");
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(zero.wait_aborts(100));
}

TEST(Life, NoCallbackComesAfterGoodbye) {
  Running running(3);
  Witness zero(*running.workers[0]), one(*running.workers[1]);
  running.workers[1]->goodbye();
  running.workers[2]->abort("too late for rank 1");
  ASSERT_TRUE(zero.wait_aborts(1));
  EXPECT_TRUE(one.aborts().empty());
}

TEST(Life, AnOrderlyEndOfTheRendezvousIsNoCrash) {
  Running running(2);
  Witness one(*running.workers[1]), server(*running.server);
  running.workers[0]->goodbye();
  running.job.rendezvous().stop();  // rank 1 has not said goodbye: stop() waits a moment, then ends
  ASSERT_TRUE(one.wait_losses(1));
  ASSERT_TRUE(server.wait_end());
  for (const Loss& loss : one.losses()) EXPECT_TRUE(loss.left) << loss.text;
  EXPECT_EQ(one.losses().size(), 1u);
  running.workers[1]->goodbye();  // the rendezvous is gone, so this returns
}

// A member that has proven itself and then sends what no correct member would send.
class Nonsense : public ::testing::TestWithParam<int> {};

TEST_P(Nonsense, DropsItsAuthorAndDisturbsNobodyElse) {
  Job job(2, 1);
  auto connect = [&] {
    auto fd = transport::tcp::connect_and_prove(job.options().rendezvous, "", {},
                                                testing::credentials(),
                                                monotonic_now() + kPatience);
    EXPECT_TRUE(fd.ok()) << fd.status().to_string();
    return std::move(*fd);
  };
  // A connection that has not registered is dropped without telling any member.
  const auto send_nonsense = [](int fd, uint64_t number) {
    const auto send = [&](wire::FrameType type, const std::string& payload,
                          uint32_t claimed = ~0u) {
      testing::send_frame(fd, type, payload, claimed, number);
    };
    switch (GetParam()) {
      case 0: return send(wire::FrameType::kRegister, "too short");
      case 1: return send(wire::FrameType::kCluster, "not for you");
      case 2: return send(wire::FrameType::kData, "");
      case 3: return send(wire::FrameType::kRegister, "", 2u << 20);
      case 4: return send(static_cast<wire::FrameType>(200), "");
      case 5: return send(wire::FrameType::kAbort, "no status");
      case 6: return send(wire::FrameType::kHeartbeat, "ba-dum");
      default: return send(wire::FrameType::kOpen, std::string(1000, 'x'));
    }
  };
  transport::tcp::Socket stranger = connect();
  send_nonsense(stranger.get(), 1);
  char byte;
  pollfd waiting{stranger.get(), POLLIN, 0};
  ssize_t got = 0;
  do {  // reads heartbeats until the connection ends
    ASSERT_EQ(poll(&waiting, 1, 600'000), 1);
    got = recv(stranger.get(), &byte, 1, 0);
  } while (got > 0);

  transport::tcp::Socket rogue = connect();
  testing::send_frame(rogue.get(), wire::FrameType::kRegister,
                      encode(Registration{job.worker(1), 4711, kPatience}));
  auto joining = job.join(job.worker(0));
  ServerRegistration registration;
  registration.port = 7000;
  auto serving = job.join(registration);
  auto worker = joining.get();
  ASSERT_TRUE(worker.ok()) << worker.status().to_string();
  auto server = serving.get();
  ASSERT_TRUE(server.ok());
  Witness witness(**worker), also(**server);
  send_nonsense(rogue.get(), 2);
  ASSERT_TRUE(witness.wait_losses(1));
  ASSERT_TRUE(also.wait_losses(1));
  EXPECT_EQ(witness.losses()[0].index, 1u);
  EXPECT_TRUE(contains(witness.losses()[0].text, "rank 1 (127.0.0.1, pid 4711)"))
      << witness.losses()[0].text;
  EXPECT_TRUE(contains(witness.losses()[0].text, "dropped because of what it sent"))
      << witness.losses()[0].text;
  (*worker)->goodbye();
  EXPECT_TRUE(also.wait_end());
}

INSTANTIATE_TEST_SUITE_P(Kinds, Nonsense, ::testing::Range(0, 8));

TEST(Life, StrangersDoNotKeepAJobFromForming) {
  Job job(2, 1);
  std::vector<transport::tcp::Socket> strangers;
  const auto stranger = [&](const std::string& says) {
    auto fd = transport::tcp::connect_to(job.options().rendezvous, "", monotonic_now() + kPatience);
    ASSERT_TRUE(fd.ok());
    if (!says.empty()) {
      EXPECT_GT(::send(fd->get(), says.data(), says.size(), MSG_NOSIGNAL), 0);
    }
    strangers.push_back(std::move(*fd));
  };
  for (int i = 0; i < 100; ++i) {
    stranger("");
    stranger("HRRING\r\n");
    stranger(std::string(72, '\xff'));
    stranger("GET / HTTP/1.1\r\nHost: example\r\n\r\n");
  }
  auto one = job.join(job.worker(1));
  auto zero = job.join(job.worker(0));
  ServerRegistration registration;
  registration.port = 7000;
  EXPECT_TRUE(job.join(registration).get().ok());
  EXPECT_TRUE(zero.get().ok());
  EXPECT_TRUE(one.get().ok());
}

TEST(Life, SilenceIsCountedWithoutTheWatchersOwnAbsence) {
  WatcherDelay silence(0);
  EXPECT_EQ(silence.tick(100, 100), 0);
  EXPECT_EQ(silence.tick(190, 100), 0);   // early: no silence to forgive
  EXPECT_EQ(silence.tick(5290, 100), 5000);
  EXPECT_EQ(silence.tick(5390, 100), 0);
}

// A forked child has a copy of the member, but not of its connection.
TEST(Life, AForkedChildDoesNotSpeakForItsParent) {
  Running running(2);
  Witness one(*running.workers[1]);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    running.workers[0]->abort("from a child");
    running.workers[0]->goodbye();
    running.workers[0].reset();
    running.job.rendezvous_pointer().reset();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  running.workers[0]->abort("from the parent");
  ASSERT_TRUE(one.wait_aborts(1));
  EXPECT_TRUE(contains(one.aborts()[0], "from the parent")) << one.aborts()[0];
  EXPECT_TRUE(one.losses().empty());
}

}  // namespace
}  // namespace herring::control
