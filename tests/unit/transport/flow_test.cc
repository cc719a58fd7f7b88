#include "transport/epoll_loop.h"
#include "transport/tcp/flow.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "pair.h"

namespace herring::transport::tcp {
namespace {

using testing::connected_pair;
using testing::data_header;
using testing::Pair;
using testing::pattern;
using testing::Recorder;

class FlowPieces : public ::testing::TestWithParam<std::tuple<int, int>> {};

// Sends frames of many sizes both ways at once, cut into pieces on both sides, with buffers of any
// size.
TEST_P(FlowPieces, FramesArriveWholeAndInOrder) {
  const auto [buffer, pieces] = GetParam();
  Pair pair(buffer);
  pair.client_handler.pieces = pair.server_handler.pieces = pieces;
  const size_t sizes[] = {0,    1,    31,   32,    33,    63,    64,     0,      100,   1000,
                          4095, 4096, 4097, 65535, 65536, 65537, 200001, 300000, 31,    0};
  constexpr uint32_t kCount = std::size(sizes);
  std::vector<std::string> payloads;
  for (uint32_t i = 0; i < kCount; ++i) payloads.push_back(pattern(sizes[i], i));
  const auto send_all = [&](Flow& flow) {
    for (uint32_t i = 0; i < kCount; ++i) {
      std::vector<iovec> iov;
      const size_t step = std::max<size_t>(1, sizes[i] / pieces);
      for (size_t at = 0; at < sizes[i]; at += step) {
        iov.push_back({payloads[i].data() + at, std::min(step, sizes[i] - at)});
      }
      flow.send(data_header(sizes[i], i), iov.data(), static_cast<int>(iov.size()), i + 1);
    }
  };
  int finished = 0;
  for (Recorder* handler : {&pair.client_handler, &pair.server_handler}) {
    handler->frame_hook = [&, handler](Flow&, const wire::FrameHeader&) {
      if (handler->frames.size() == kCount && ++finished == 2) pair.loop.stop();
      return Status();
    };
  }
  pair.loop.post([&] {
    send_all(*pair.client);
    send_all(*pair.server);
  });
  pair.run();
  std::vector<uint64_t> tokens(kCount);
  std::iota(tokens.begin(), tokens.end(), 1);
  for (Recorder* handler : {&pair.client_handler, &pair.server_handler}) {
    ASSERT_EQ(handler->frames.size(), kCount);
    for (uint32_t i = 0; i < kCount; ++i) {
      EXPECT_EQ(handler->frames[i].header.round, i);
      EXPECT_EQ(handler->frames[i].payload, payloads[i]) << "frame " << i;
    }
    EXPECT_EQ(handler->tokens, tokens);
    EXPECT_TRUE(handler->closed.empty());
  }
  const size_t bytes = std::accumulate(std::begin(sizes), std::end(sizes), size_t{0}) +
                       kCount * wire::kHeaderBytes;
  for (TcpFlow* flow : {pair.client.get(), pair.server.get()}) {
    EXPECT_EQ(flow->backlog(), 0u);
    EXPECT_EQ(flow->counters().bytes_sent, bytes);
    EXPECT_EQ(flow->counters().bytes_received, bytes);
    EXPECT_EQ(flow->counters().frames_sent, kCount);
    EXPECT_EQ(flow->counters().frames_received, kCount);
  }
}

INSTANTIATE_TEST_SUITE_P(Buffers, FlowPieces,
                         ::testing::Combine(::testing::Values(0, 4096),
                                            ::testing::Values(1, 3, 60)));

// A header may arrive byte by byte, with the end of the frame before, or with the next frame.
TEST(Flow, AnyCutOfTheByteStreamGivesTheSameFrames) {
  std::string stream;
  std::vector<std::string> payloads;
  const auto append = [&](size_t bytes) {
    payloads.push_back(pattern(bytes, static_cast<uint32_t>(payloads.size())));
    const auto header =
        data_header(bytes, static_cast<uint32_t>(payloads.size() - 1), payloads.size());
    stream.append(reinterpret_cast<const char*>(&header), sizeof(header));
    stream += payloads.back();
  };
  for (size_t bytes : {0, 1, 5, 0, 0, 40, 100, 3}) append(bytes);
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    auto [writer, reader] = connected_pair();
    EpollLoop loop;
    Recorder handler;
    handler.pieces = 1 + round % 4;
    TcpFlow flow(loop, std::move(reader), handler, "writer");
    size_t at = 0;
    std::function<void()> write_some = [&] {
      if (at == stream.size()) return;
      const size_t n = round == 0 ? 1 : std::min<size_t>(stream.size() - at, 1 + random() % 60);
      ASSERT_EQ(::send(writer.get(), stream.data() + at, n, MSG_NOSIGNAL), static_cast<ssize_t>(n));
      at += n;
      loop.post(write_some);
    };
    handler.frame_hook = [&](Flow&, const wire::FrameHeader&) {
      if (handler.frames.size() == payloads.size()) loop.stop();
      return Status();
    };
    loop.post(write_some);
    loop.run();
    ASSERT_EQ(handler.frames.size(), payloads.size());
    for (size_t i = 0; i < payloads.size(); ++i) EXPECT_EQ(handler.frames[i].payload, payloads[i]);
  }
}

TEST(Flow, OwnedPayloadsAndEmptyFramesMixWithOthers) {
  Pair pair(4096);
  std::string borrowed = pattern(10000, 1);
  pair.loop.post([&] {
    wire::FrameHeader control;
    control.type = wire::FrameType::kAnnounce;
    pair.client->send_owned(control, pattern(5000, 2));
    iovec piece{borrowed.data(), borrowed.size()};
    pair.client->send(data_header(borrowed.size(), 0), &piece, 1, 7);
    control.type = wire::FrameType::kHeartbeat;
    pair.client->send_owned(control, "");
    control.type = wire::FrameType::kAnnounce;
    pair.client->send_owned(control, pattern(3, 3));
  });
  pair.server_handler.frame_hook = [&](Flow&, const wire::FrameHeader&) {
    if (pair.server_handler.frames.size() == 4) pair.loop.stop();
    return Status();
  };
  pair.run();
  const auto& frames = pair.server_handler.frames;
  EXPECT_EQ(frames[0].payload, pattern(5000, 2));
  EXPECT_EQ(frames[1].payload, borrowed);
  EXPECT_EQ(frames[2].header.type, wire::FrameType::kHeartbeat);
  EXPECT_EQ(frames[3].payload, pattern(3, 3));
  EXPECT_EQ(pair.client_handler.tokens, (std::vector<uint64_t>{7}));
}

// The other side must see the same bytes, whether they are lent or copied, whole or in parts,
// aligned or not.
TEST(Flow, LentPiecesArriveWholeAmongOthers) {
  for (const int buffer : {0, 8192}) {
    Pair pair(buffer);
    std::mt19937 random(11);
    const std::string memory = pattern(3 << 20, 5);
    std::vector<std::string_view> payloads;
    for (const size_t bytes : {0, 1, 4096, 32767, 32768, 65536, 131072, 262144, 300001, 1 << 20}) {
      for (int i = 0; i < 3; ++i) {
        payloads.push_back(std::string_view(memory).substr(random() % (1 << 20), bytes));
      }
    }
    std::shuffle(payloads.begin(), payloads.end(), random);
    pair.loop.post([&] {
      for (uint32_t i = 0; i < payloads.size(); ++i) {
        const iovec piece{const_cast<char*>(payloads[i].data()), payloads[i].size()};
        if (i % 4 == 3) {
          pair.client->send(data_header(piece.iov_len, i), &piece, 1, i);
        } else {
          // Lends several pieces, wherever they lie.
          const size_t third = piece.iov_len / 3;
          const iovec parts[] = {{piece.iov_base, third},
                                 {static_cast<char*>(piece.iov_base) + third, third},
                                 {static_cast<char*>(piece.iov_base) + 2 * third,
                                  piece.iov_len - 2 * third}};
          pair.client->lend(data_header(piece.iov_len, i), parts, 3);
        }
      }
    });
    pair.server_handler.frame_hook = [&](Flow&, const wire::FrameHeader&) {
      if (pair.server_handler.frames.size() == payloads.size()) pair.loop.stop();
      return Status();
    };
    pair.run();
    ASSERT_EQ(pair.server_handler.frames.size(), payloads.size());
    for (uint32_t i = 0; i < payloads.size(); ++i) {
      EXPECT_EQ(pair.server_handler.frames[i].header.round, i);
      EXPECT_EQ(pair.server_handler.frames[i].payload, payloads[i]) << "frame " << i;
    }
    EXPECT_EQ(pair.client->backlog(), 0u);
  }
}

// splice() has no MSG_NOSIGNAL. Without the loop's signal mask, SIGPIPE would end the process.
TEST(Flow, LendingToAConnectionThatBrokeIsAnError) {
  Pair pair(8192);
  const std::string memory = pattern(4 << 20, 5);
  pair.loop.post([&] {
    const iovec piece{const_cast<char*>(memory.data()), memory.size()};
    pair.client->lend(data_header(memory.size(), 0), &piece, 1);
  });
  pair.server_handler.header_hook = [&](Flow& flow, const wire::FrameHeader&, Destinations&) {
    flow.close({});
    return Status();
  };
  pair.client_handler.closed_hook = [&] { pair.loop.stop(); };
  pair.run();
  ASSERT_EQ(pair.client_handler.closed.size(), 1u);
  EXPECT_EQ(pair.client_handler.closed[0].code(), Code::kPeerLost);
}

// The owner uses the memory again, so the system must not send it any more.
TEST(Flow, WhatIsLentDoesNotLeaveOnceTheOtherSideIsRefused) {
  auto [near, far] = connected_pair(8192);
  EpollLoop loop;
  Recorder handler;
  TcpFlow flow(loop, std::move(near), handler, "rank 3");
  const std::string memory = pattern(4 << 20, 5);
  const auto readable = [&far]() -> size_t {
    int bytes = 0;
    EXPECT_EQ(::ioctl(far.get(), FIONREAD, &bytes), 0);
    return bytes;
  };
  // Sends nonsense when nothing more fits.
  const std::function<void(size_t, int)> when_full = [&](size_t before, int turns) {
    const size_t now = readable();
    turns = now > 0 && now == before ? turns + 1 : 0;
    if (turns < 1000) {
      loop.post([&when_full, now, turns] { when_full(now, turns); });
      return;
    }
    const std::string nonsense(wire::kHeaderBytes, 'x');
    EXPECT_EQ(::send(far.get(), nonsense.data(), nonsense.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(nonsense.size()));
  };
  size_t arrived = 0;
  handler.closed_hook = [&] {
    arrived = readable();
    loop.stop();
  };
  loop.post([&] {
    const iovec piece{const_cast<char*>(memory.data()), memory.size()};
    flow.lend(data_header(memory.size(), 0), &piece, 1);
    when_full(0, 0);
  });
  loop.run();
  EXPECT_GT(arrived, 0u);
  size_t read = 0;
  pollfd one{far.get(), POLLIN, 0};
  char some[4096];
  for (ssize_t n = 1; n > 0;) {
    ASSERT_EQ(::poll(&one, 1, 30'000), 1);
    n = ::recv(far.get(), some, sizeof(some), 0);
    if (n > 0) read += static_cast<size_t>(n);
  }
  EXPECT_EQ(read, arrived);
}

TEST(Flow, FramesOfOneIterationLeaveInOneCall) {
  Pair pair;
  pair.loop.post([&] {
    wire::FrameHeader control;
    control.type = wire::FrameType::kHeartbeat;
    for (int i = 0; i < 20; ++i) pair.client->send_owned(control, "");
  });
  pair.server_handler.frame_hook = [&](Flow&, const wire::FrameHeader&) {
    if (pair.server_handler.frames.size() == 20) pair.loop.stop();
    return Status();
  };
  pair.run();
  EXPECT_EQ(pair.client->counters().send_calls, 1u);
}

// ---- endings ----

TEST(Flow, TheOtherSidesEndIsReportedOnce) {
  Pair pair;
  pair.loop.post([&] { pair.client->close({}); });
  pair.server_handler.closed_hook = [&] { pair.loop.stop(); };
  pair.run();
  ASSERT_EQ(pair.server_handler.closed.size(), 1u);
  EXPECT_EQ(pair.server_handler.closed[0].code(), Code::kPeerLost);
  EXPECT_TRUE(pair.client_handler.closed.empty());
  EXPECT_TRUE(pair.server->closed());
  EXPECT_TRUE(pair.client->closed());
  // A closed flow drops what is sent.
  pair.client->send_owned({}, "late");
  EXPECT_EQ(pair.client->backlog(), 0u);
}

TEST(Flow, CloseWithAnErrorIsReportedFromTheLoop) {
  Pair pair;
  pair.loop.post([&] {
    pair.client->close({Code::kTimeout, "enough"});
    EXPECT_TRUE(pair.client_handler.closed.empty()) << "not from inside close()";
    pair.client->close({Code::kInternal, "again"});
  });
  pair.client_handler.closed_hook = [&] { pair.loop.stop(); };
  pair.run();
  ASSERT_EQ(pair.client_handler.closed.size(), 1u);
  EXPECT_EQ(pair.client_handler.closed[0].message(), "enough");
}

TEST(Flow, AFlowThatIsDestroyedAfterCloseReportsNothing) {
  Pair pair;
  pair.loop.post([&] {
    pair.client->send_owned({}, "");  // its flush is deferred, and must be cancelled
    pair.client->close({Code::kTimeout, "enough"});
    pair.client.reset();
    pair.loop.post([&] { pair.loop.stop(); });
  });
  pair.run();
  EXPECT_TRUE(pair.client_handler.closed.empty());
}

enum class Where { kHeader, kFrame, kSent };
void PrintTo(Where where, std::ostream* out) {
  *out << (where == Where::kHeader ? "header" : where == Where::kFrame ? "frame" : "sent");
}
class FlowEnd : public ::testing::TestWithParam<std::tuple<Where, bool>> {};

TEST_P(FlowEnd, CloseInsideACallbackEndsEverythingThere) {
  const auto [where, with_error] = GetParam();
  Pair pair;
  Recorder& handler = where == Where::kSent ? pair.client_handler : pair.server_handler;
  const Status why = with_error ? Status(Code::kMismatch, "on purpose") : Status();
  const auto act = [&](Flow& flow) {
    flow.close(why);
    pair.loop.post([&] { pair.loop.post([&] { pair.loop.stop(); }); });
  };
  if (where == Where::kHeader) {
    handler.header_hook = [&](Flow& flow, const wire::FrameHeader&, Destinations&) {
      act(flow);
      return Status();
    };
  } else if (where == Where::kFrame) {
    handler.frame_hook = [&](Flow& flow, const wire::FrameHeader&) {
      act(flow);
      return Status();
    };
  } else {
    handler.sent_hook = [&](Flow& flow, uint64_t) { act(flow); };
  }
  std::string payload = pattern(100, 1);
  pair.loop.post([&] {
    iovec piece{payload.data(), payload.size()};
    for (uint32_t i = 0; i < 3; ++i) pair.client->send(data_header(100, i), &piece, 1, i + 1);
  });
  pair.run();
  EXPECT_EQ(handler.closed.size(), with_error ? 1u : 0u);
  EXPECT_EQ(handler.frames.size(), where == Where::kFrame ? 1u : 0u);
  EXPECT_EQ(handler.tokens.size(), where == Where::kSent ? 1u : 0u);
}

INSTANTIATE_TEST_SUITE_P(Places, FlowEnd,
                         ::testing::Combine(::testing::Values(Where::kHeader, Where::kFrame,
                                                              Where::kSent),
                                            ::testing::Bool()));

TEST(Flow, AnErrorFromTheHandlerClosesTheFlow) {
  for (const bool in_header : {true, false}) {
    Pair pair;
    const Status why(Code::kMismatch, "not expected");
    if (in_header) {
      pair.server_handler.header_hook = [&](Flow&, const wire::FrameHeader&, Destinations&) {
        return why;
      };
    } else {
      pair.server_handler.frame_hook = [&](Flow&, const wire::FrameHeader&) { return why; };
    }
    pair.server_handler.closed_hook = [&] { pair.loop.stop(); };
    pair.loop.post([&] { pair.client->send_owned({}, ""); });
    pair.run();
    ASSERT_EQ(pair.server_handler.closed.size(), 1u);
    EXPECT_EQ(pair.server_handler.closed[0].message(), "not expected");
  }
}

TEST(Flow, APayloadWithoutItsPlaceClosesTheFlow) {
  for (const int pieces : {0, 1, 65}) {  // none, too small, more than allowed
    Pair pair;
    char place[4];
    pair.server_handler.header_hook = [&](Flow&, const wire::FrameHeader&, Destinations& out) {
      out.add(nullptr, 0);  // counts as a piece, so 64 more do not fit
      for (int i = 0; i < pieces; ++i) out.add(place, 1);
      return Status();
    };
    pair.server_handler.closed_hook = [&] { pair.loop.stop(); };
    wire::FrameHeader header;
    header.type = wire::FrameType::kAnnounce;
    pair.loop.post([&] { pair.client->send_owned(header, std::string(65, 'x')); });
    pair.run();
    ASSERT_EQ(pair.server_handler.closed.size(), 1u);
    EXPECT_EQ(pair.server_handler.closed[0].code(), Code::kInternal);
    EXPECT_TRUE(pair.server_handler.frames.empty());
  }
}

TEST(Flow, AnImplausibleHeaderClosesTheFlow) {
  Pair pair;
  pair.server_handler.closed_hook = [&] { pair.loop.stop(); };
  pair.loop.post([&] {
    wire::FrameHeader header;
    header.type = static_cast<wire::FrameType>(99);
    pair.client->send(header, nullptr, 0, 0);
  });
  pair.run();
  EXPECT_EQ(pair.server_handler.closed[0].code(), Code::kProtocol);
}

// A flow takes no frame that differs from what the other side has sent, wherever that happens, and
// none that comes twice or after one that is lost.
TEST(Flow, WhatWasNotSentEndsTheConnection) {
  const auto takes = [](const std::vector<std::pair<wire::FrameHeader, std::string>>& sent) {
    auto [writer, reader] = connected_pair();
    EpollLoop loop;
    Recorder handler;
    TcpFlow flow(loop, std::move(reader), handler, "rank 3");
    handler.closed_hook = [&] { loop.stop(); };
    for (const auto& [header, payload] : sent) {
      const std::string bytes =
          std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + payload;
      EXPECT_EQ(::send(writer.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(bytes.size()));
    }
    writer.reset();
    loop.run();
    EXPECT_EQ(handler.closed.size(), 1u);
    EXPECT_EQ(handler.closed.at(0).code(), Code::kPeerLost);
    const std::string why = handler.closed.at(0).message();
    const bool whole = handler.frames.size() == sent.size();
    EXPECT_EQ(why.find("rank 3 failed: what arrived is not what was sent") == std::string::npos,
              whole) << why;
    return handler.frames.size();
  };
  const std::string payload = pattern(100, 1);
  const auto frame = [&payload](uint64_t number) {
    return std::pair(data_header(payload.size(), static_cast<uint32_t>(number), number), payload);
  };
  EXPECT_EQ(takes({frame(1), frame(2), frame(3)}), 3u);
  EXPECT_EQ(takes({frame(1), frame(2), frame(2)}), 2u);
  EXPECT_EQ(takes({frame(1), frame(3)}), 1u);
  EXPECT_EQ(takes({frame(2)}), 0u);
  for (size_t bit = 0; bit < 8 * wire::kHeaderBytes; ++bit) {
    auto changed = frame(2);
    reinterpret_cast<char*>(&changed.first)[bit / 8] ^= static_cast<char>(1 << bit % 8);
    EXPECT_EQ(takes({frame(1), changed, frame(3)}), 1u) << bit;
  }
}

// finish() must deliver everything although the other side sends all the time. A plain close would
// reset the connection.
TEST(Flow, FinishLosesNothing) {
  Pair pair(4096);
  constexpr uint32_t kFrames = 50;
  std::string payload = pattern(10000, 9);
  const auto send = [&](Flow& flow, uint32_t i) {
    iovec piece{payload.data(), payload.size()};
    flow.send(data_header(payload.size(), i), &piece, 1, i + 1);
  };
  pair.server_handler.frame_hook = [&](Flow& flow, const wire::FrameHeader& header) {
    send(flow, header.round);  // the echo reaches a side that is closing
    return Status();
  };
  pair.loop.post([&] {
    for (uint32_t i = 0; i < kFrames; ++i) send(*pair.client, i);
    pair.client->finish();
    EXPECT_FALSE(pair.client->closed()) << "something is still to be written";
    pair.client->finish();
    send(*pair.client, 1000);  // too late, so it is dropped
  });
  pair.server_handler.closed_hook = [&] {
    pair.server->close({});
    pair.loop.post([&] { pair.loop.stop(); });
  };
  pair.run();
  EXPECT_EQ(pair.server_handler.frames.size(), kFrames);
  EXPECT_EQ(pair.client_handler.tokens.size(), kFrames);
  EXPECT_TRUE(pair.client_handler.closed.empty()) << "finish() ends without a report";
}

// The other side has sent data and closed with unread input, so its system resets the connection.
TEST(Flow, WhatHasComeIsReadAlthoughNothingCanBeWritten) {
  constexpr uint32_t kFrames = 20;
  const std::string payload = pattern(1000, 9);
  auto [gone, fd] = connected_pair();
  ASSERT_EQ(::send(fd.get(), "unread", 6, MSG_NOSIGNAL), 6);
  for (uint32_t i = 0; i < kFrames; ++i) {
    const auto header = data_header(payload.size(), i, i + 1);
    const iovec pieces[] = {{const_cast<wire::FrameHeader*>(&header), sizeof(header)},
                            {const_cast<char*>(payload.data()), payload.size()}};
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(pieces);
    message.msg_iovlen = 2;
    ASSERT_EQ(::sendmsg(gone.get(), &message, MSG_NOSIGNAL),
              static_cast<ssize_t>(sizeof(header) + payload.size()));
  }
  gone.reset();
  pollfd reset{fd.get(), 0, 0};
  ASSERT_EQ(::poll(&reset, 1, 30'000), 1);
  EpollLoop loop;
  Recorder handler;
  TcpFlow flow(loop, std::move(fd), handler, "the other side");
  handler.closed_hook = [&] { loop.stop(); };
  loop.post([&] { flow.send_owned({}, "nobody takes this"); });
  loop.post([&] { loop.call_after(30 * kSecond, [&] { loop.stop(); }); });
  flow.send_owned({}, "written before anything is read");
  loop.run();
  ASSERT_EQ(handler.frames.size(), kFrames);
  for (const auto& frame : handler.frames) EXPECT_EQ(frame.payload, payload);
  ASSERT_EQ(handler.closed.size(), 1u);
  EXPECT_EQ(handler.closed[0].code(), Code::kPeerLost);
}

TEST(Flow, BothSidesMayFinish) {
  Pair pair;
  pair.loop.post([&] {
    for (TcpFlow* flow : {pair.client.get(), pair.server.get()}) {
      flow->send_owned({}, "");
      flow->finish();
    }
  });
  std::function<void()> look = [&] {
    if (pair.client->closed() && pair.server->closed()) return pair.loop.stop();
    pair.loop.call_after(kMillisecond, look);
  };
  pair.loop.call_after(0, look);
  pair.run();
  EXPECT_TRUE(pair.client_handler.closed.empty());
  EXPECT_TRUE(pair.server_handler.closed.empty());
}

TEST(Flow, SendInsideCallbacksWorks) {
  Pair pair;
  // The two ends exchange growing frames, sent from on_frame and sometimes from on_sent.
  std::string payload = pattern(20000, 4);
  uint32_t next = 0;
  const auto send = [&](Flow& flow) {
    iovec piece{payload.data(), 200 * size_t{next}};
    flow.send(data_header(piece.iov_len, next), &piece, 1, 1);
    ++next;
  };
  for (Recorder* handler : {&pair.client_handler, &pair.server_handler}) {
    handler->frame_hook = [&](Flow& flow, const wire::FrameHeader& header) {
      if (header.round == 90) {
        pair.loop.stop();
      } else if (header.round % 3 != 0) {
        send(flow);
      }
      return Status();
    };
    handler->sent_hook = [&](Flow& flow, uint64_t) {
      if (next % 3 == 1 && next < 90) send(flow);  // after frames whose round is divisible by 3
    };
  }
  pair.loop.post([&] { send(*pair.client); });
  pair.run();
  EXPECT_GE(next, 90u);
}

TEST(Flow, ThePathTellsItsRoundTripTime) {
  Pair pair;
  EXPECT_GT(pair.client->path_info().rtt, 0);
  EXPECT_EQ(pair.client->path_info().retransmits, 0u);
  pair.client->close({});
  EXPECT_EQ(pair.client->path_info().rtt, 0);
}

}  // namespace
}  // namespace herring::transport::tcp
