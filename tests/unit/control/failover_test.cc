// Tests of jobs that survive the loss of a dedicated server: who hears of what, in which order, and
// how replacements come.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "control/messages.h"
#include "job.h"
#include "tests/unit/text.h"

namespace herring::control {
namespace {

using testing::Job;
using testing::kPatience;
using testing::Witness;
using Stage = Replacement::Stage;

ServerRegistration server_at(uint16_t port) {
  ServerRegistration registration;
  registration.port = port;
  return registration;
}

// A server that has registered, and whose frames a test reads by itself.
class RawServer {
 public:
  RawServer(const transport::Address& rendezvous, uint16_t port) {
    auto fd = transport::tcp::connect_and_prove(rendezvous, "", {}, testing::credentials(),
                                                monotonic_now() + kPatience);
    EXPECT_TRUE(fd.ok()) << fd.status().to_string();
    fd_ = std::move(*fd);
    testing::send_frame(fd_.get(), wire::FrameType::kRegister,
                        encode(Registration{server_at(port), 4711, kPatience}));
  }

  // Reads up to the next frame of this type, and returns its flags; -1 if none comes.
  int await(wire::FrameType type) {
    for (;;) {
      wire::FrameHeader header;
      if (!read(&header, sizeof header)) return -1;
      std::string payload(header.payload, '\0');
      if (!read(payload.data(), payload.size())) return -1;
      if (header.type == type) return header.flags;
    }
  }

 private:
  bool read(void* to, size_t bytes) {
    auto* at = static_cast<char*>(to);
    while (bytes > 0) {
      pollfd waiting{fd_.get(), POLLIN, 0};
      if (poll(&waiting, 1, static_cast<int>(kPatience / kMillisecond)) != 1) return false;
      const ssize_t got = recv(fd_.get(), at, bytes, 0);
      if (got > 0) {
        at += got;
        bytes -= static_cast<size_t>(got);
      } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
        return false;
      }
    }
    return true;
  }

  transport::tcp::Socket fd_;
};

// A job of two workers and some dedicated servers, all of which have joined.
struct Servers {
  explicit Servers(uint32_t count, bool failover = true, Nanos connect_timeout = kPatience,
                   Nanos heartbeat_timeout = 10 * kSecond)
      : job(2, count, connect_timeout, std::min(250 * kMillisecond, heartbeat_timeout / 8),
            heartbeat_timeout, failover) {
    std::vector<std::future<Job::Joined>> joining;
    for (uint32_t rank = 0; rank < 2; ++rank) joining.push_back(job.join(job.worker(rank)));
    for (uint32_t i = 0; i < count; ++i) {
      joining.push_back(job.join(server_at(static_cast<uint16_t>(7000 + i))));
    }
    for (uint32_t i = 0; i < joining.size(); ++i) {
      auto joined = joining[i].get();
      EXPECT_TRUE(joined.ok()) << joined.status().to_string();
      (i < 2 ? workers : servers).push_back(std::move(*joined));
    }
    // By their numbers, which follow from their addresses.
    std::ranges::sort(servers, {}, [](const auto& one) { return one->server_index(); });
  }

  // Has every worker say that it can reach a replacement.
  void reach(const Replacement& news) {
    for (const auto& worker : workers) {
      if (worker) worker->report_server(news.server, news.number, true, {});
    }
  }

  Job job;
  std::vector<std::unique_ptr<Member>> workers, servers;
};

TEST(Failover, OthersStandInForAServerThatIsLost) {
  Servers running(3);
  Witness zero(*running.workers[0]), one(*running.workers[1]), two(*running.servers[2]);
  running.servers[1].reset();
  for (Witness* witness : {&zero, &one, &two}) {
    ASSERT_TRUE(witness->wait_losses(1));
    const Loss loss = witness->losses()[0];
    EXPECT_TRUE(loss.is_server);
    EXPECT_EQ(loss.index, 1u);
    EXPECT_EQ(loss.epoch, 2u);
    EXPECT_EQ(loss.serving, std::vector<bool>({true, false, true}));
    EXPECT_TRUE(contains(loss.text, "server 1 (127.0.0.1:7001) is lost")) << loss.text;
  }
  running.servers[0]->goodbye();  // nobody has told it to end
  ASSERT_TRUE(zero.wait_losses(2));
  EXPECT_FALSE(zero.losses()[1].left);
  EXPECT_EQ(zero.losses()[1].serving, std::vector<bool>({false, false, true}));
  EXPECT_TRUE(contains(zero.losses()[1].text, "it has left the job"));
  // The last one has no stand-in.
  running.servers[2].reset();
  ASSERT_TRUE(zero.wait_losses(3));
  EXPECT_TRUE(zero.losses()[2].serving.empty());
  EXPECT_EQ(zero.losses()[2].index, 2u);
  EXPECT_EQ(zero.losses()[2].epoch, 4u);
}

TEST(Failover, WithoutItALossIsALoss) {
  Servers running(2, false);
  Witness zero(*running.workers[0]);
  running.servers[1].reset();
  ASSERT_TRUE(zero.wait_losses(1));
  EXPECT_TRUE(zero.losses()[0].serving.empty());
}

TEST(Failover, AReplacementServesOnceAllWorkersCanReachIt) {
  Servers running(2);
  Witness zero(*running.workers[0]), one(*running.workers[1]), other(*running.servers[1]);
  running.servers[0].reset();
  ASSERT_TRUE(zero.wait_losses(1));
  auto joined = running.job.join(server_at(7100)).get();
  ASSERT_TRUE(joined.ok()) << joined.status().to_string();
  Member& newcomer = **joined;
  EXPECT_EQ(newcomer.server_index(), 0u);
  EXPECT_EQ(newcomer.epoch(), 2u);
  EXPECT_EQ(newcomer.cluster().incarnation, running.workers[0]->cluster().incarnation);
  EXPECT_EQ(newcomer.cluster().servers[0].address, "127.0.0.1:7100");
  EXPECT_EQ(newcomer.cluster().settings, running.workers[0]->cluster().settings);
  ASSERT_EQ(newcomer.gone().size(), 1u);
  EXPECT_TRUE(newcomer.gone()[0].is_server);
  EXPECT_EQ(newcomer.gone()[0].index, 0u);
  Witness self(newcomer);
  for (Witness* witness : {&zero, &one}) {
    ASSERT_TRUE(witness->wait_replacements(1));
    EXPECT_EQ(witness->replacements()[0].stage, Stage::kComing);
    EXPECT_EQ(witness->replacements()[0].address, "127.0.0.1:7100");
  }
  const Replacement news = zero.replacements()[0];
  running.workers[0]->report_server(news.server, news.number, true, {});
  running.workers[1]->report_server(news.server, news.number + 1, true, {});  // about no one
  newcomer.report_server(0, 0, true, {});
  running.servers[1]->report_server(news.server, news.number, true, {});  // is not asked
  // Only the abort of a member that is asked last can come before the last worker is ready.
  running.workers[1]->report_server(1, 0, true, {});
  EXPECT_TRUE(self.replacements().empty());
  running.workers[1]->report_server(news.server, news.number, true, {});
  for (Witness* witness : {&zero, &one, &other, &self}) {
    const bool worker = witness == &zero || witness == &one;
    ASSERT_TRUE(witness->wait_replacements(worker ? 2 : 1));
    const Replacement serves = witness->replacements().back();
    EXPECT_EQ(serves.stage, Stage::kServes);
    EXPECT_EQ(serves.server, 0u);
    EXPECT_EQ(serves.epoch, 3u);
    EXPECT_EQ(serves.serving, std::vector<bool>({true, true}));
  }
  EXPECT_EQ(running.workers[1]->epoch(), 3u);
  // It can be lost and replaced like the first one.
  joined->reset();
  ASSERT_TRUE(zero.wait_losses(2));
  EXPECT_TRUE(contains(zero.losses()[1].text, "server 0 (127.0.0.1:7100) is lost"))
      << zero.losses()[1].text;
  EXPECT_EQ(zero.losses()[1].epoch, 4u);
  EXPECT_EQ(zero.losses()[1].serving, std::vector<bool>({false, true}));
}

TEST(Failover, AReplacementHearsWhoIsGone) {
  Servers running(2);
  Witness zero(*running.workers[0]);
  running.workers[1]->goodbye();
  running.servers[1].reset();
  ASSERT_TRUE(zero.wait_losses(2));
  auto joined = running.job.join(server_at(7100)).get();
  ASSERT_TRUE(joined.ok()) << joined.status().to_string();
  ASSERT_EQ((*joined)->gone().size(), 2u);
  EXPECT_FALSE((*joined)->gone()[0].is_server);
  EXPECT_TRUE((*joined)->gone()[0].left);
  EXPECT_EQ((*joined)->gone()[0].index, 1u);
  EXPECT_EQ((*joined)->epoch(), 3u);
  // The worker that has left is not waited for.
  (*joined)->report_server(1, 0, true, {});
  running.workers[0]->report_server(1, 1, true, {});
  ASSERT_TRUE(zero.wait_replacements(2));
  EXPECT_EQ(zero.replacements()[1].stage, Stage::kServes);
}

TEST(Failover, AReplacementThatDiesIsForgotten) {
  Servers running(2);
  Witness zero(*running.workers[0]), other(*running.servers[0]);
  running.servers[1].reset();
  ASSERT_TRUE(zero.wait_losses(1));
  auto first = running.job.join(server_at(7100)).get();
  ASSERT_TRUE(first.ok());
  first->reset();
  ASSERT_TRUE(zero.wait_replacements(2));
  EXPECT_EQ(zero.replacements()[1].stage, Stage::kDropped);
  EXPECT_EQ(zero.replacements()[1].number, 1u);
  // The next one comes under another number; what is said about the first does not count.
  auto second = running.job.join(server_at(7101)).get();
  ASSERT_TRUE(second.ok());
  ASSERT_TRUE(zero.wait_replacements(3));
  EXPECT_EQ(zero.replacements()[2].number, 2u);
  running.workers[0]->report_server(1, 1, false, "no route");
  running.reach(zero.replacements()[2]);
  (*second)->report_server(1, 0, true, {});
  ASSERT_TRUE(zero.wait_replacements(4));
  EXPECT_EQ(zero.replacements()[3].stage, Stage::kServes);
  ASSERT_TRUE(other.wait_replacements(1));
  EXPECT_EQ(running.workers[0]->epoch(), 3u);  // the first one made no epoch
  EXPECT_EQ(zero.losses().size(), 1u);
}

TEST(Failover, AReplacementThatAWorkerCannotReachIsToldWhy) {
  Servers running(2);
  Witness zero(*running.workers[0]);
  running.servers[1].reset();
  ASSERT_TRUE(zero.wait_losses(1));
  auto joined = running.job.join(server_at(7100)).get();
  ASSERT_TRUE(joined.ok());
  Witness newcomer(**joined);
  auto spare = running.job.join(server_at(7101));
  running.workers[1]->report_server(1, 1, false, "no route to host");
  ASSERT_TRUE(newcomer.wait_aborts(1));
  EXPECT_TRUE(contains(newcomer.aborts()[0],
                       "the server at 127.0.0.1:7100 cannot replace server 1: rank 1 (127.0.0.1"))
      << newcomer.aborts()[0];
  EXPECT_TRUE(contains(newcomer.aborts()[0], "no route to host"));
  EXPECT_TRUE(spare.get().ok());  // the next one has its turn
  EXPECT_TRUE(zero.aborts().empty());
}

TEST(Failover, AReplacementHasALimitedTime) {
  Servers running(2, true, 4 * kSecond);
  Witness zero(*running.workers[0]);
  running.servers[1].reset();
  ASSERT_TRUE(zero.wait_losses(1));
  auto joined = running.job.join(server_at(7100)).get();
  ASSERT_TRUE(joined.ok());
  Witness newcomer(**joined);
  (*joined)->report_server(1, 0, true, {});
  running.workers[0]->report_server(1, 1, true, {});
  ASSERT_TRUE(newcomer.wait_aborts(1));
  EXPECT_TRUE(contains(newcomer.aborts()[0], "rank 1 did not connect to it within"))
      << newcomer.aborts()[0];
  ASSERT_TRUE(zero.wait_replacements(2));
  EXPECT_EQ(zero.replacements()[1].stage, Stage::kDropped);
}

TEST(Failover, ServersMayDieWhileAReplacementComes) {
  Servers running(3);
  Witness zero(*running.workers[0]);
  running.servers[1].reset();
  ASSERT_TRUE(zero.wait_losses(1));
  auto joined = running.job.join(server_at(7100)).get();
  ASSERT_TRUE(joined.ok());
  Witness newcomer(**joined);
  running.servers[0].reset();
  ASSERT_TRUE(newcomer.wait_losses(1));
  EXPECT_EQ(newcomer.losses()[0].index, 0u);
  EXPECT_EQ(newcomer.losses()[0].serving, std::vector<bool>({false, false, true}));
  EXPECT_EQ(newcomer.losses()[0].epoch, 3u);
  // Another one comes meanwhile, and is ready first.
  auto second = running.job.join(server_at(7101)).get();
  ASSERT_TRUE(second.ok());
  EXPECT_EQ((*second)->server_index(), 0u);
  ASSERT_TRUE(zero.wait_replacements(2));
  running.reach(zero.replacements()[1]);
  (*second)->report_server(0, 0, true, {});
  ASSERT_TRUE(zero.wait_replacements(3));
  EXPECT_EQ(zero.replacements()[2].serving, std::vector<bool>({true, false, true}));
  // A worker that dies is not waited for.
  running.workers[1].reset();
  running.reach(zero.replacements()[0]);
  (*joined)->report_server(1, 0, true, {});
  ASSERT_TRUE(zero.wait_replacements(4));
  EXPECT_EQ(zero.replacements()[3].serving, std::vector<bool>({true, true, true}));
  EXPECT_EQ(zero.replacements()[3].epoch, 6u);  // two losses, one replacement, a worker, this
}

TEST(Failover, AReplacementTakesTheNumberThatItAsksForIfThatIsFree) {
  Servers running(3);
  Witness zero(*running.workers[0]);
  running.servers[0].reset();
  running.servers[1].reset();
  ASSERT_TRUE(zero.wait_losses(2));
  ServerRegistration registration = server_at(7100);
  for (const uint32_t number : {1u, 0u}) {  // the second one finds its number taken
    registration.wanted = 1;
    auto joined = running.job.join(registration).get();
    ASSERT_TRUE(joined.ok()) << joined.status().to_string();
    EXPECT_EQ((*joined)->server_index(), number);
    running.servers.push_back(std::move(*joined));
    ++registration.port;
  }
}

TEST(Failover, ASpareWaitsForAFreePlace) {
  Servers running(2, true, 3 * kSecond);
  Witness zero(*running.workers[0]);
  auto spare = running.job.join(server_at(7100));
  // It waits for longer than a server may wait for its job.
  ASSERT_EQ(spare.wait_for(std::chrono::milliseconds(5000)), std::future_status::timeout);
  running.servers[1].reset();
  auto joined = spare.get();
  ASSERT_TRUE(joined.ok()) << joined.status().to_string();
  EXPECT_EQ((*joined)->server_index(), 1u);
  ASSERT_TRUE(zero.wait_replacements(1));
  EXPECT_EQ(zero.replacements()[0].stage, Stage::kComing);
}

TEST(Failover, TheEndOfTheJobReachesSparesAndReplacements) {
  Servers running(2);
  Witness zero(*running.workers[0]), server(*running.servers[0]);
  running.servers[1].reset();
  ASSERT_TRUE(zero.wait_losses(1));
  auto joined = running.job.join(server_at(7100)).get();
  ASSERT_TRUE(joined.ok());
  Witness newcomer(**joined);
  RawServer spare(running.job.options().rendezvous, 7101);
  ASSERT_EQ(spare.await(wire::FrameType::kServerNews), 0);
  running.workers[1]->goodbye();
  running.workers[0]->goodbye();
  EXPECT_EQ(spare.await(wire::FrameType::kGoodbye), kFlagEnd);
  EXPECT_TRUE(newcomer.wait_end());
  EXPECT_TRUE(server.wait_end());
  // A server that comes now waits for the next job.
  running.servers[0]->goodbye();
  running.job.options().connect_timeout = 500 * kMillisecond;
  const Status late = running.job.join(server_at(7102)).get().status();
  EXPECT_TRUE(contains(late.message(), "the job is about to end")) << late.message();
}

TEST(Failover, ASpareHearsThatRankZeroHasLeft) {
  Servers running(2);
  RawServer spare(running.job.options().rendezvous, 7100);
  ASSERT_EQ(spare.await(wire::FrameType::kServerNews), 0);
  running.workers[0]->goodbye();
  running.job.rendezvous().stop();
  EXPECT_EQ(spare.await(wire::FrameType::kGoodbye), kFlagStop);
}

TEST(Failover, AWorkerMayReportAServer) {
  Servers running(2);
  Witness zero(*running.workers[0]), server(*running.servers[1]);
  running.workers[1]->report_server(1, 3, false, "about a replacement that never served");
  running.workers[1]->report_server(1, 0, false, "its connection was reset");
  ASSERT_TRUE(zero.wait_losses(1));
  EXPECT_EQ(zero.losses()[0].index, 1u);
  EXPECT_TRUE(contains(zero.losses()[0].text, "cannot reach it: its connection was reset"))
      << zero.losses()[0].text;
  EXPECT_TRUE(contains(zero.losses()[0].text, "rank 1 (127.0.0.1"));
  ASSERT_TRUE(server.wait_aborts(1));
  EXPECT_TRUE(contains(server.aborts()[0], "this server is given up")) << server.aborts()[0];
  // The last one is kept: nobody could stand in for it.
  running.workers[1]->report_server(0, 0, false, "its connection was reset");
  running.workers[1]->abort("enough");
  ASSERT_TRUE(zero.wait_aborts(1));
  EXPECT_EQ(zero.losses().size(), 1u);
}

TEST(Failover, AServerThatCannotGoOnIsLostAndEndsNobodyElse) {
  Servers running(2);
  Witness zero(*running.workers[0]);
  running.servers[1]->abort("no memory");
  ASSERT_TRUE(zero.wait_losses(1));
  EXPECT_TRUE(contains(zero.losses()[0].text, "it cannot go on: no memory"))
      << zero.losses()[0].text;
  EXPECT_TRUE(zero.aborts().empty());
}

// As if the process was stopped: its system goes on to acknowledge what is sent to it.
TEST(Failover, AServerThatIsSilentIsLost) {
  for (const bool failover : {true, false}) {
    // Those that are not silent must not be so for this long, however busy the machine is.
    const Nanos timeout = failover ? 4 * kSecond : 500 * kMillisecond;
    Job job(1, 2, kPatience, 60 * kMillisecond, timeout, failover);
    RawServer silent(job.options().rendezvous, 7000);
    auto serving = job.join(server_at(7001));
    auto worker = job.join(job.worker(0)).get();
    ASSERT_TRUE(worker.ok()) << worker.status().to_string();
    auto server = serving.get();
    ASSERT_TRUE(server.ok());
    Witness zero(**worker);
    if (failover) {
      ASSERT_TRUE(zero.wait_losses(1));
      EXPECT_TRUE(contains(zero.losses()[0].text, "nothing was heard from it for"))
          << zero.losses()[0].text;
      EXPECT_EQ(zero.losses()[0].serving, std::vector<bool>({false, true}));
    } else {
      poll(nullptr, 0, 1500);  // three timeouts
      EXPECT_TRUE(zero.losses().empty());
    }
  }
}

TEST(Failover, ALateServerIsAnsweredWithoutFailover) {
  Servers running(2, false);
  const Status status = running.job.join(server_at(7100)).get().status();
  EXPECT_EQ(status.code(), Code::kConfiguration);
  EXPECT_TRUE(contains(status.message(), "HERRING_FAILOVER=true")) << status.message();
}

TEST(Failover, NewsOfServersSurviveTheWire) {
  const Replacement news{Stage::kServes, 3, 7, "10.0.0.5:4711", 12, {true, false, true}};
  auto decoded = decode_replacement(encode(news));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->server, 3u);
  EXPECT_EQ(decoded->number, 7u);
  EXPECT_EQ(decoded->address, news.address);
  EXPECT_EQ(decoded->epoch, 12u);
  EXPECT_EQ(decoded->serving, news.serving);
  auto report = decode_server_report(encode(ServerReport{3, 7, false, "why"}));
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->text, "why");
  const std::string whole = encode(news);
  for (size_t n = 0; n < whole.size(); ++n) {
    EXPECT_FALSE(decode_replacement(whole.substr(0, n)).ok()) << n;
  }
  EXPECT_FALSE(decode_replacement(whole + "x").ok());
  std::string wrong = whole;
  wrong[0] = 9;
  EXPECT_FALSE(decode_replacement(wrong).ok());
}

}  // namespace
}  // namespace herring::control
