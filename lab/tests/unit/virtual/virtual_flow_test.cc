// Flows between the hosts of a simulation use the same handlers as over TCP.
#include "virtual/flow.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "tests/unit/transport/pair.h"
#include "virtual/transport.h"

namespace herring::transport::virtual_time {
namespace {

using tcp::testing::Recorder;

struct Hosts {
  Hosts() {
    network().set_all_paths({.delay = kMillisecond});
    for (size_t link = 0; link < network().links(); ++link) {
      network().link(link).set({1e9, 20 * kMillisecond});
    }
    client_loop->start("client");
    server_loop->start("server");
    auto listening = there.listen(
        *server_loop, {there.address(), 0}, {}, [](auto&) { return wire::Verdict::kAccepted; },
        [this](auto connection, auto&, auto&) {
          server = connection->open(*server_loop, server_handler, {});
        });
    EXPECT_TRUE(listening.ok());
    listener = std::move(*listening);
    auto connection = here.connect_now(listener->address(), {}, {});
    EXPECT_TRUE(connection.ok());
    client = (*connection)->open(*client_loop, client_handler, {});
    EXPECT_TRUE(run([&] { return server != nullptr; }));
  }
  // In the client's loop, like all calls to a flow.
  void post(EventLoop::Task task) { EXPECT_TRUE(client_loop->post(std::move(task))); }
  Network& network() { return simulation.network(); }
  bool run(const std::function<bool()>& done) {
    return simulation.run_until(done, simulation.now() + 600 * kSecond);
  }

  Simulation simulation{{.hosts = 2}};
  VirtualTransport here{simulation, 0}, there{simulation, 1};
  std::shared_ptr<EventLoop> client_loop = here.make_loop(false);
  std::shared_ptr<EventLoop> server_loop = there.make_loop(false);
  Recorder client_handler, server_handler;
  std::unique_ptr<Listener> listener;
  std::unique_ptr<Flow> client, server;
};

TEST(VirtualFlow, CarriesFramesAndSaysWhenItEnds) {
  Hosts hosts;
  hosts.post([&] {
    hosts.client->send_owned(tcp::testing::data_header(0, 1), tcp::testing::pattern(100000, 3));
  });
  ASSERT_TRUE(hosts.run([&] { return !hosts.server_handler.frames.empty(); }));
  EXPECT_EQ(hosts.server_handler.frames[0].payload, tcp::testing::pattern(100000, 3));
  hosts.post([&] { hosts.client->finish(); });
  ASSERT_TRUE(hosts.run([&] { return !hosts.server_handler.closed.empty(); }));
}

// A flow that is destroyed without finishing resets its connection.
TEST(VirtualFlow, TellsThatTheOtherSideIsGone) {
  Hosts hosts;
  hosts.post([&] { hosts.client.reset(); });
  ASSERT_TRUE(hosts.run([&] { return !hosts.server_handler.closed.empty(); }));
  EXPECT_EQ(hosts.server_handler.closed[0].code(), Code::kPeerLost);
}

// The connection also ends if nothing arrives any more: TCP gives up after so many timeouts.
TEST(VirtualFlow, TellsThatNothingArrivesAnyMore) {
  Hosts hosts;
  hosts.network().set_all_paths({.delay = kMillisecond, .loss = 1});
  hosts.post([&] { hosts.client->send_owned(tcp::testing::data_header(0, 1), "lost"); });
  EXPECT_TRUE(hosts.simulation.run_until([&] { return !hosts.client_handler.closed.empty(); },
                                         hosts.simulation.now() + 10000 * kSecond));
  EXPECT_TRUE(hosts.server_handler.closed.empty());
}

}  // namespace
}  // namespace herring::transport::virtual_time
