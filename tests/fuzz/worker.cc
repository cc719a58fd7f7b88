// Fuzzes a worker's engine with operations in flight. Servers answer anything in any order: results
// of what was or was not pushed, replies, tickets, errors and rounds. The engine must not crash,
// and every operation must be over when the engine has stopped.
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "tests/fuzz/input.h"
#include "wire/partial.h"
#include "wire/settled.h"
#include "worker/engine.h"
#include "rounds/partial.h"
#include "rounds/planned.h"
#include "transport/tcp/transport.h"

using namespace herring;          // NOLINT: a fuzz target
using namespace herring::fuzz;    // NOLINT
using namespace herring::calls;   // NOLINT
using namespace herring::rounds;  // NOLINT
using namespace herring::worker;  // NOLINT

namespace {

constexpr size_t kSegment = 1024;
constexpr uint32_t kServers = 2;

control::Cluster some_cluster() {
  control::Cluster cluster;
  cluster.nodes = cluster.size = 2;
  cluster.workers = {{0, 0, 0, "a", 1, ""}, {1, 1, 0, "b", 2, ""}};
  cluster.servers = {{0, true, ~0u, "c:1", 0.5}, {1, true, ~0u, "c:2", 0.5}};
  return cluster;
}

void append(std::string& out, wire::FrameHeader header, const std::string& payload) {
  header.payload = static_cast<uint32_t>(payload.size());
  if (!wire::plausible(header)) return;
  out.append(reinterpret_cast<const char*>(&header), sizeof(header));
  out += payload;
  count_frames(1);
}

// Appends one frame of a server.
void answer(Input& in, std::string& out) {
  wire::FrameHeader header;
  header.stream = in.below(6) + (in.seldom() ? wire::kPartialStreams : 0);
  header.round = in.below(3);
  header.buffer = in.below(3);
  wire::Go go;
  go.id = 1 + in.below(10);
  switch (in.below(11)) {
    case 0:
    case 1:
    case 2: {
      header.type = wire::FrameType::kResult;
      header.segments = in.seldom() ? in.byte() + 1 : 1 + in.below(2);
      header.first_segment = in.below(3);
      header.credit = in.byte();
      header.workers = in.below(3);
      header.signals = in.byte();
      header.flags = in.byte() & (wire::kFlagEmpty | wire::kFlagLent);
      if (in.seldom()) header.flags |= wire::kFlagCalledOff;
      if (in.seldom()) header.group = in.below(3);
      const size_t bytes = in.pick<size_t>({kSegment, 2 * kSegment, 512, 0});
      return append(out, header, std::string(header.flags & wire::kFlagEmpty ? 0 : bytes, 'r'));
    }
    case 3:
    case 4: {
      header.type = wire::FrameType::kGo;
      header.stream = in.below(kServers);
      // An honest server gives these counts. The engine believes what it says about others' sizes,
      // within bounds.
      if (in.flag()) go.counts = {in.below(4) * 256, in.below(4) * 256};
      if (in.seldom()) go.counts = {in.any(), in.any(), in.any(), in.any()};
      if (in.flag()) go.counts.resize(4);
      if (in.below(4) > 0) return append(out, header, encode(go));
      // A rank that has joined gets the call itself with its ticket.
      header.round = in.below(8);
      wire::Announce call;
      call.name = "o0";
      call.what = wire::AllReduce{{static_cast<ReduceOp>(in.below(kNumReduceOps))}};
      if (in.seldom()) call.what = wire::Barrier{};
      call.listed = in.flag();
      for (uint32_t i = 0; i < (call.listed ? in.below(3) : 1); ++i) {
        call.arrays.push_back({static_cast<DType>(in.below(kNumDTypes)),
                               {in.seldom() ? in.any() : in.below(2048)}});
      }
      return append(out, header, encode(wire::Go{}) + encode(call));
    }
    case 5: {
      header.type = wire::FrameType::kReply;
      return append(out, header, encode(go) + std::string(in.pick<size_t>({0, 16, 64, 4096}), 'p'));
    }
    case 6: {
      header.type = wire::FrameType::kOpError;
      const uint64_t id = in.seldom() ? 0 : go.id;
      return append(out, header,
                    encode(wire::OpError{id, static_cast<Code>(1 + in.below(8)), "why"}));
    }
    case 7: {
      header.type = wire::FrameType::kRound;
      wire::RoundMessage round;
      round.id = wire::series_id(in.flag() ? "s" : "t");
      round.round = in.below(3);
      round.attempt = in.below(2);
      round.last = in.seldom();
      round.contributors = {{0, 1 + in.below(2), 0, true, 0}};
      if (in.flag()) round.contributors.push_back({in.seldom() ? 9u : 1u, 1, 0, true, 0});
      const bool rides = round.id == wire::series_id("s");
      return append(out, header, encode(round) + std::string(rides ? 64 : 0, 'q'));
    }
    case 8: {
      header.type = wire::FrameType::kCommit;
      return append(out, header, encode(wire::RoundMark{wire::series_id("t"), in.below(3),
                                                        in.below(2), true}));
    }
    case 9: {
      header.type = wire::FrameType::kSettled;
      const auto kind = static_cast<wire::Subject::Kind>(in.below(in.seldom() ? 4 : 3));
      return append(out, header, encode(std::vector<wire::Settled>(
                                     in.below(3), {{kind, in.below(4)}, in.below(4)})));
    }
    default: {
      header.type = in.seldom() ? wire::FrameType::kOpen : wire::FrameType::kHeartbeat;
      if (!in.seldom()) return;
      return append(out, header, "nonsense");
    }
  }
}

struct InFlight {
  std::vector<char> array;
  std::shared_ptr<Operation> operation;
  std::vector<size_t> row_bytes;  // for a list whose results are taken later
};

// Submits every kind of operation, with and without an inline payload. Submits nothing else if the
// rank joins.
std::vector<InFlight> submit_some(Engine& engine, bool joins) {
  const wire::Collective kinds[] = {
      wire::AllReduce{},          wire::Broadcast{},      wire::AllGather{},
      wire::ReduceScatter{},      wire::AllToAll{},       wire::Barrier{},
      wire::FormGroup{{0, 1}},    wire::Send{1, 3},       wire::Receive{1, 3},
      wire::AllReduce{},          wire::AllGather{},      wire::ReduceScatter{},
  };
  constexpr size_t kFirstList = 9;
  std::vector<InFlight> calls(std::size(kinds));
  for (size_t i = 0; i < calls.size(); ++i) {
    InFlight& one = calls[i];
    Call call;
    call.what = kinds[i];
    call.name = concat("o", i);
    if (joins && i + 1 == calls.size()) {
      call.what = wire::Join{};
      call.name = wire::kJoinName;
    }
    const uint64_t elements = i < 4 || i > kFirstList ? 768 : 16;
    one.array.resize(4096);
    call.list = i >= kFirstList && !wire::is<wire::Join>(call.what);
    const bool none = wire::is<wire::Barrier>(call.what) || wire::is<wire::FormGroup>(call.what) ||
                      wire::is<wire::Join>(call.what);
    if (auto* alltoall = std::get_if<wire::AllToAll>(&call.what)) {
      alltoall->rows = {elements / 2, elements - elements / 2};
    }
    if (!none) {
      call.buffers = {{{DType::kFloat32, {elements}}, one.array.data(), one.array.data()}};
    }
    // Results that do not go in place are taken later.
    if (call.list && !wire::is<wire::AllReduce>(call.what)) call.buffers[0].receive = nullptr;
    if (call.list) call.buffers.push_back({{DType::kInt32, {8, 2}}, one.array.data()});
    if (call.list && call.buffers[0].receive != nullptr) {
      call.buffers[1].receive = one.array.data() + 256;
    }
    for (const Buffer& buffer : call.buffers) {
      const bool later = call.list && call.buffers[0].receive == nullptr;
      if (later) one.row_bytes.push_back(buffer.array.row_bytes());
    }
    auto submitted = engine.submit(std::move(call));
    if (submitted.ok()) one.operation = std::move(*submitted);
  }
  return calls;
}

void take_results(const InFlight& call) {
  if (call.row_bytes.empty() || !call.operation->status().ok()) return;
  std::vector<std::vector<char>> results;
  std::vector<char*> places;
  for (size_t i = 0; i < call.row_bytes.size(); ++i) {
    results.emplace_back(call.operation->result_rows()[i] * call.row_bytes[i]);
    places.push_back(results.back().data());
  }
  call.operation->take(places);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  be_quiet();
  Input in(data, size);
  EngineOptions options;
  options.links.segment_bytes = kSegment;
  options.links.credit_initial = 4;
  options.links.steers = true;
  options.mesh.size = 2;
  options.small_bytes = 64;
  std::vector<ServerFlow> flows;
  std::vector<UniqueFd> servers;
  std::vector<uint64_t> frames(kServers);
  for (uint32_t s = 0; s < kServers; ++s) {
    int ends[2];
    expect(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    flows.push_back({s, transport::tcp::make_connection(GuardedFd(UniqueFd(ends[0])), "server")});
    servers.emplace_back(ends[1]);
  }
  auto bus = LocalBus::listen();
  expect(bus.ok());
  expect((*bus)->connect(0, {(*bus)->address()}, monotonic_now() + kSecond).ok());
  std::vector<InFlight> calls;
  std::vector<std::shared_ptr<Partial>> series;
  {
    Engine engine(some_cluster(), options, transport::tcp::transport(), std::move(*bus),
                  std::move(flows));
    calls = submit_some(engine, in.flag());
    for (const char* name : {"s", "t"}) {
      PartialOptions partial;
      partial.name = name;
      partial.op = ReduceOp::kSum;
      partial.elements = name[0] == 's' ? 16 : 768;
      partial.quorum = 2;
      auto made = Partial::create(engine.series(), partial);
      if (!made.ok()) continue;
      series.push_back(std::move(*made));
      const std::vector<char> zeros(series.back()->bytes());
      static_cast<void>(series.back()->contribute(zeros.data(), true, false));
    }
    PlannedOptions noted;
    noted.note_bytes = 100;
    auto planned = Planned::create(engine.rounds(),
                                   {{600, DType::kFloat32}, {300, DType::kFloat32}}, noted);
    if (planned.ok() && (*planned)->begin(true).ok()) {
      static_cast<void>((*planned)->note(std::string(100, '\1')));
      static_cast<void>((*planned)->ready(0));
      static_cast<void>((*planned)->ready(1));
    }
    uint64_t sent = 0;
    while (!in.empty() && engine.failure().ok()) {
      const uint32_t s = in.below(kServers);
      std::string out;
      for (uint32_t n = 1 + in.below(16); n > 0 && !in.empty(); --n) answer(in, out);
      seal(out, frames[s]);
      for (size_t at = 0; at < out.size();) {
        const ssize_t n =
            ::send(servers[s].get(), out.data() + at, out.size() - at, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN) break;
        at += n > 0 ? static_cast<size_t>(n) : 0;
        sent += n > 0 ? static_cast<uint64_t>(n) : 0;
        char sink[65536];
        while (::recv(servers[s].get(), sink, sizeof(sink), 0) > 0) {
        }
      }
    }
    // Waits until the engine has read everything or has failed.
    while (engine.failure().ok()) {
      const Engine::Counters counters = engine.counters();
      uint64_t received = 0;
      for (const auto& one : counters.servers) received += one.bytes_received;
      if (received >= sent) break;
    }
    engine.fail({Code::kPeerLost, "enough"});
    planned = Status(Code::kShutdown, "");
    for (const InFlight& call : calls) {
      if (call.operation == nullptr) continue;
      while (!call.operation->wait_for(kSecond)) {
      }
      take_results(call);
    }
    series.clear();
  }
  return 0;
}

std::vector<std::string> seeds() {
  std::string all;
  for (int i = 0; i < 400; ++i) all += static_cast<char>(i * 3 + i / 64);
  return {all};
}
