// Fuzzes a whole server behind flows in memory. Members send any sequence of well-formed frames.
// Some sequences make sense, so that slots fill, operations complete and series close. A member may
// end its job, but never the process. Nothing is reserved for data that was not announced.
#include <cstdint>
#include <future>
#include <string>
#include <vector>

#include "server/server.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/memory_flow.h"
#include "wire/handover.h"
#include "wire/partial.h"
#include "wire/settled.h"
#include "transport/tcp/transport.h"

using namespace herring;        // NOLINT: a fuzz target
using namespace herring::fuzz;  // NOLINT

namespace {

constexpr size_t kSegment = 1024;

control::Cluster some_cluster(uint32_t nodes, uint32_t per_node) {
  control::Cluster cluster;
  cluster.nodes = nodes;
  cluster.size = nodes * per_node;
  for (uint32_t rank = 0; rank < cluster.size; ++rank) {
    cluster.workers.push_back({rank, rank / per_node, rank % per_node, "a", 1, ""});
  }
  cluster.servers.push_back({0, true, ~0u, "c:1", 1.0});
  return cluster;
}

// Makes frames like a member's from the input.
class Member {
 public:
  explicit Member(uint32_t size) : size_(size) {}

  wire::FrameHeader header(Input& in, wire::FrameType type) const {
    wire::FrameHeader header;
    header.type = type;
    header.stream = in.below(3) + (in.seldom() ? wire::kPartialStreams : 0);
    header.round = in.below(3);
    header.buffer = in.below(2);
    return header;
  }

  wire::Open open(Input& in) const {
    wire::Open open;
    open.dtype = static_cast<DType>(in.below(kNumWireDTypes));
    open.reduction.op = static_cast<ReduceOp>(in.below(kNumReduceOps));
    open.participants = static_cast<wire::Participants>(in.below(3));
    open.workers = in.seldom() ? static_cast<uint32_t>(in.any()) : in.below(4);
    open.shard_bytes = bytes(in) / 8 * 8 + 8;
    if (in.seldom()) open.shard_bytes = in.any() / 8 * 8;
    if (in.seldom()) open.reduction.prescale = 0.5;
    const uint32_t patience = in.seldom() ? 1 : 60'000;
    open.deadline = {patience, patience, 60'000};
    open.pair_a = in.below(size_);
    open.pair_b = in.seldom() ? in.byte() : in.below(size_);
    open.name = "o";
    return open;
  }

  // Returns a size at or near the end of a segment, or one of a few others.
  static uint64_t bytes(Input& in) {
    return in.pick<uint64_t>(
        {0, 8, 1000, kSegment, kSegment + 8, 3 * kSegment, 9000, 40 * kSegment});
  }

  // Returns segments of a shard that was opened with `open`.
  static std::string data(Input& in, const wire::Open& open, wire::FrameHeader& header) {
    const uint64_t total = std::max<uint64_t>(1, (open.shard_bytes + kSegment - 1) / kSegment);
    header.type = wire::FrameType::kData;
    header.first_segment = static_cast<uint32_t>(in.byte() % (total + (in.seldom() ? 1 : 0)));
    const uint64_t first = std::min<uint64_t>(header.first_segment, total);
    const uint64_t most = std::min<uint64_t>(total - first,
                                             transport::Destinations::kMaxPieces);
    header.segments = static_cast<uint16_t>(std::max<uint64_t>(1, in.flag() ? most : 1));
    if (in.seldom()) header.segments = in.byte() + 1;
    header.flags = in.byte() & (wire::kFlagWant | wire::kFlagSteers);
    header.credit = in.byte();
    if (in.below(8) == 0) {
      header.flags |= wire::kFlagEmpty;
      return {};
    }
    const uint64_t begin = std::min<uint64_t>(header.first_segment * kSegment, open.shard_bytes);
    const uint64_t end = std::min<uint64_t>(begin + header.segments * kSegment, open.shard_bytes);
    return std::string(std::min<uint64_t>(end - begin, 64 * kSegment) + (in.seldom() ? 1 : 0), '1');
  }

  wire::Announce announce(Input& in) const {
    wire::Announce announce;
    announce.id = in.byte();
    announce.what = collective(in);
    announce.inline_payload = in.flag();
    announce.timeout_ms = in.seldom() ? 1 : 60'000;
    announce.warn_ms = 60'000;
    announce.name = std::string(1, static_cast<char>('a' + in.below(3)));
    const bool joins = wire::is<wire::Join>(announce.what);
    if (joins && !in.seldom()) announce.name = wire::kJoinName;
    if (in.seldom()) announce.agreement = std::string(1, static_cast<char>('a' + in.below(2)));
    if (wire::is_message(announce.what)) announce.address = "10.0.0.1:7";
    announce.listed = wire::reduction_of(announce.what) != nullptr && in.flag();
    const bool none = joins || wire::is<wire::Barrier>(announce.what) ||
                      wire::is<wire::FormGroup>(announce.what);
    const uint32_t arrays = in.seldom() ? in.below(4) : announce.listed ? 1 + in.below(2) : !none;
    for (uint32_t i = 0; i < arrays; ++i) {
      wire::Array& array = announce.arrays.emplace_back();
      array.dtype = static_cast<DType>(in.below(kNumDTypes));
      array.shape = {in.below(9)};
      if (in.flag()) array.shape.push_back(in.below(4));
      if (in.seldom()) array.shape.push_back(in.any());
    }
    std::vector<uint64_t>* rows = nullptr;
    if (auto* alltoall = std::get_if<wire::AllToAll>(&announce.what)) rows = &alltoall->rows;
    auto* scatter = std::get_if<wire::ReduceScatter>(&announce.what);
    if (scatter != nullptr && in.flag()) rows = &scatter->rows;
    for (const wire::Array& array : announce.arrays) {
      if (rows == nullptr) break;
      uint64_t left = array.rows();
      for (uint32_t rank = 0; rank < size_; ++rank) {
        const uint64_t some = rank + 1 == size_ ? left : in.byte() % (left + 1);
        rows->push_back(some);
        left -= some;
      }
      if (in.seldom()) (*rows)[in.below(size_)] = in.any();
      if (in.seldom()) rows->pop_back();
    }
    return announce;
  }

  wire::Collective collective(Input& in) const {
    Reduction reduction;
    reduction.op = static_cast<ReduceOp>(in.below(kNumReduceOps));
    if (in.seldom()) reduction.postscale = 0.25;
    const uint32_t rank = in.seldom() ? in.byte() : in.below(size_);
    switch (in.below(std::variant_size_v<wire::Collective>)) {
      case 0: return wire::AllReduce{reduction, in.seldom() ? wire::Algorithm::kRing
                                                            : wire::Algorithm::kHerring};
      case 1: return wire::Broadcast{rank};
      case 2: return wire::AllGather{};
      case 3: return wire::ReduceScatter{reduction, {}};
      case 4: return wire::AllToAll{};
      case 5: return wire::Barrier{};
      case 6:
        return wire::FormGroup{ranks<uint32_t>(in), 1 + in.below(2), in.seldom() ? in.byte() : 0u};
      case 7: return wire::Send{rank, in.below(2)};
      case 8: return wire::Receive{in.below(4) == 0 ? std::nullopt : std::optional(rank),
                                   in.flag() ? std::nullopt : std::optional<uint64_t>(in.below(2))};
      default: return wire::Join{in.byte()};
    }
  }

  // Returns as many bytes as the call announces, or none: whether a kind has a payload depends on
  // who sends it.
  static std::string payload(Input& in, const wire::Announce& announce) {
    const uint64_t bytes = announce.bytes();
    if (!announce.inline_payload || bytes > 32768) return {};
    return std::string(in.below(8) == 0 ? 0 : bytes, '2');
  }

  std::vector<uint32_t> all() const {
    std::vector<uint32_t> ranks(size_);
    for (uint32_t rank = 0; rank < size_; ++rank) ranks[rank] = rank;
    return ranks;
  }

  // Returns ranks, which are ascending most of the time.
  template <typename Number>
  std::vector<Number> ranks(Input& in) const {
    std::vector<Number> ranks;
    for (uint32_t rank = 0; rank < size_; ++rank) {
      if (in.below(4) > 0) ranks.push_back(rank);
    }
    if (in.seldom()) ranks.push_back(static_cast<Number>(in.any()));
    return ranks;
  }

  wire::Enlist enlist(Input& in) const {
    wire::Enlist enlist;
    enlist.name = in.flag() ? "s" : "t";
    enlist.inline_payload = enlist.name == "s";
    enlist.elements = in.seldom() ? in.any() : 16;
    enlist.quorum = in.seldom() ? in.byte() : 1 + size_ / 2;
    enlist.staleness = 2;
    enlist.timeout_ms = enlist.warn_ms = 60'000;
    return enlist;
  }

  wire::JoinMessage join(Input& in) const {
    wire::JoinMessage join;
    join.id = wire::series_id(in.flag() ? "s" : "t");
    join.upto = 1 + in.below(4);
    join.base = in.below(4);
    join.last = in.below(8) == 0;
    if (in.seldom()) join.round = in.byte();
    if (in.seldom()) join.contributors = in.byte();
    if (in.seldom()) join.digest_round = in.byte();
    return join;
  }

 private:
  const uint32_t size_;
};

// The flows of the ranks of one proxy, and what is sent on them. Runs on the proxy's thread.
class Script {
 public:
  Script(server::Server& server, uint32_t size, uint32_t per_node)
      : server_(server), per_node_(per_node), member_(size) {}

  void add(uint32_t rank, MemoryFlow* flow, transport::EventLoop& loop) {
    loop_ = &loop;
    members_.push_back({rank, flow, false});
  }
  bool empty() const { return members_.empty(); }

  // Sends some frames in each iteration of the loop. The promise is kept when the input is used up.
  void start(const uint8_t* data, size_t size) {
    in_ = Input(data, size);
    loop_->post([this] {
      for (Of& one : members_) define(one, kAll, member_.all());
      step();
    });
  }
  void wait() { done_.get_future().wait(); }

 private:
  static constexpr uint32_t kAll = 1;  // a group of all ranks

  struct Of {
    uint32_t rank;
    MemoryFlow* flow;
    bool gone = false;  // has left or died; the rendezvous reports this once
  };

  void step() {
    for (uint32_t n = 1 + in_.below(24); n > 0 && !in_.empty(); --n) act();
    for (Of& one : members_) one.flow->drain();
    if (in_.empty()) return done_.set_value();
    loop_->post([this] { step(); });
  }

  void act() {
    Of& one = members_[in_.below(static_cast<uint32_t>(members_.size()))];
    const size_t cut = in_.byte() * size_t{16};
    if (one.gone) return;
    if (one.flow->closed()) return reconnect(one);
    switch (in_.below(23)) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4:
      case 5: return whole_round(cut);
      case 6:
      case 7:
      case 8: {  // all members announce the same call
        wire::Announce announce = member_.announce(in_);
        announce.name += std::to_string(rounds_++);
        const uint32_t group = in_.flag() ? kAll : 0;
        const std::string payload = Member::payload(in_, announce);
        for (Of& each : members_) {
          control(each, wire::FrameType::kAnnounce, encode(announce) + payload, cut, group);
        }
        return;
      }
      case 9: {
        const wire::Announce announce = member_.announce(in_);
        return control(one, wire::FrameType::kAnnounce,
                       encode(announce) + Member::payload(in_, announce), cut, in_.below(4));
      }
      case 10: {
        const wire::Enlist enlist = member_.enlist(in_);
        for (Of& each : members_) control(each, wire::FrameType::kEnlist, encode(enlist), cut);
        return;
      }
      case 11: {
        const wire::JoinMessage join = member_.join(in_);
        const bool rides = join.id == wire::series_id("s");
        return control(one, wire::FrameType::kJoin,
                       encode(join) + std::string(rides ? 64 : 0, '3'), cut);
      }
      case 12: {
        const wire::RoundMark mark{wire::series_id("t"), in_.below(4), in_.below(2), in_.flag()};
        return control(one, wire::FrameType::kReceived, encode(mark), cut);
      }
      case 13: {
        wire::FrameHeader header;
        header.type = wire::FrameType::kTaken;
        header.taken = in_.seldom() ? in_.byte() : one.flow->take(in_.below(4));
        return one.flow->deliver(header, {}, 0);
      }
      case 14: return in_.flag() ? open(one, cut) : data(one, cut);
      case 15: return define(one, 1 + in_.below(4), member_.ranks<uint32_t>(in_));
      case 16: {
        wire::FrameHeader header;
        header.type = wire::FrameType::kLeaveGroup;
        header.group = 1 + in_.below(4);
        // This is rare, because nothing goes on in a group that is called off.
        if (in_.seldom()) header.flags = wire::kFlagCalledOff;
        if (header.group == kAll && !in_.seldom()) return;
        return one.flow->deliver(header, "why", cut);
      }
      case 17:
        return control(one, wire::FrameType::kWhereabouts,
                       std::string(in_.flag() ? in_.below(40) * 32 : 0, 'w'), cut);
      case 18: {
        wire::FrameHeader header;
        header.type = wire::FrameType::kReleased;
        return one.flow->deliver(header, in_.seldom() ? "more" : "", cut);
      }
      case 19: return hand_over(one, cut);
      case 20: return tell(one, cut);
      case 21: return settle(one, cut);
      default: return leave(one);
    }
  }

  // Lets one or all members say of what they lack nothing.
  void settle(Of& one, size_t cut) {
    wire::FrameHeader header;
    header.type = wire::FrameType::kSettled;
    header.group = in_.below(5);
    const auto kind = static_cast<wire::Subject::Kind>(in_.below(in_.seldom() ? 4 : 3));
    const std::vector<wire::Settled> all(in_.below(4), {{kind, in_.below(3)}, in_.below(4)});
    const bool everybody = in_.flag();
    for (Of& each : members_) {
      if (everybody || &each == &one) each.flow->deliver(header, encode(all), cut);
    }
  }

  // Lets members tell of a series in a later reign.
  void tell(Of& one, size_t cut) {
    wire::FrameHeader header;
    header.stream = in_.below(2);
    header.round = 1 + in_.below(2);
    for (Of& each : members_) {
      if (in_.seldom()) continue;
      const wire::Enlist enlist = member_.enlist(in_);
      const uint64_t id = wire::series_id(enlist.name, 0, enlist.number);
      header.type = wire::FrameType::kEnlist;
      each.flow->deliver(header, encode(enlist), cut);
      partial::SeriesState known;
      known.rounds = in_.below(4);
      known.received = in_.flag();
      known.whole = in_.flag();
      known.counts.resize(members_.size());
      header.type = wire::FrameType::kSeries;
      each.flow->deliver(header, wire::encode_known(id, known), cut);
      wire::RoundMessage round;
      round.id = id;
      round.round = in_.below(4);
      round.contributors = {{in_.below(4), in_.below(4)}};
      wire::FrameHeader of_round;
      of_round.type = wire::FrameType::kRound;
      const std::string result(enlist.inline_payload ? 64 : 0, '3');
      if (in_.flag()) each.flow->deliver(of_round, encode(round) + result, cut);
      if (!in_.seldom()) each.flow->deliver(header, "", cut);
    }
    const wire::JoinMessage join = member_.join(in_);
    control(one, wire::FrameType::kJoin, encode(join), cut);
  }

  // Announces a call in a later reign and lets some or all members hand over.
  void hand_over(Of& one, size_t cut) {
    wire::FrameHeader header;
    header.group = in_.flag() ? kAll : 0;
    header.stream = in_.below(2);
    header.round = 1 + in_.below(2);
    wire::Announce announce = member_.announce(in_);
    header.type = wire::FrameType::kAnnounce;
    one.flow->deliver(header, encode(announce) + Member::payload(in_, announce), cut);
    header.type = wire::FrameType::kHandOver;
    for (Of& each : members_) {
      wire::Handover handover;
      handover.joined = in_.below(4) == 0;
      handover.highest = in_.below(6);
      if (handover.highest > 2 && in_.flag()) handover.holes = {1 + in_.below(2)};
      for (uint64_t number = 1; number <= handover.highest; ++number) {
        if (!handover.has(number) || in_.seldom()) continue;
        const bool error = in_.flag();
        const std::string text =
            error ? encode(wire::OpError{0, Code::kTimeout, "late"}) : encode(wire::Go{});
        handover.kept.push_back({number,
                                 error ? wire::FrameType::kOpError : wire::FrameType::kReply,
                                 !in_.seldom(), 0, announce.name,
                                 in_.seldom() ? "" : text.substr(sizeof(uint64_t)), {},
                                 in_.seldom() ? encode(announce) : ""});
      }
      if (in_.flag()) {
        handover.met.push_back({in_.byte(), in_.below(3), announce.id,
                                in_.flag() ? wire::FrameType::kGo : wire::FrameType::kOpError,
                                in_.below(4), in_.below(3), "text"});
      }
      if (!in_.seldom()) each.flow->deliver(header, encode(handover), cut);
    }
  }

  // Does what honest members do: all participants open the same operation and send all of it, in
  // frames of some segments. With several proxies, the others' scripts do the same from the same
  // input.
  void whole_round(size_t cut) {
    wire::FrameHeader header = member_.header(in_, wire::FrameType::kOpen);
    header.round = 16 + rounds_++;
    header.group = in_.flag() ? kAll : 0;
    const wire::Open open = member_.open(in_);
    const auto segments = static_cast<uint32_t>((open.shard_bytes + kSegment - 1) / kSegment);
    const uint32_t each_frame = 1 + in_.below(8);
    const uint8_t flags = in_.byte() & (wire::kFlagWant | wire::kFlagEmpty);
    for (uint32_t first = 0; first < std::min(segments, 64u); first += each_frame) {
      for (Of& one : members_) {
        const bool pair = open.participants == wire::Participants::kPair;
        if (pair && one.rank != open.pair_a && one.rank != open.pair_b) continue;
        if (open.participants == wire::Participants::kNodes && one.rank % per_node_ != 0) continue;
        if (first == 0) {
          header.type = wire::FrameType::kOpen;
          header.segments = 0;
          header.flags = 0;
          one.flow->deliver(header, encode(open), cut);
        }
        header.type = wire::FrameType::kData;
        header.flags = flags;
        header.first_segment = first;
        header.segments = static_cast<uint16_t>(std::min(each_frame, segments - first));
        const uint64_t end = std::min<uint64_t>((first + header.segments) * kSegment,
                                                open.shard_bytes);
        header.taken = one.flow->take(1);
        one.flow->deliver(
            header, std::string(flags & wire::kFlagEmpty ? 0 : end - first * kSegment, '1'), cut);
        header.taken = 0;
      }
    }
  }

  // A dropped member sometimes reconnects.
  void reconnect(Of& one) {
    if (in_.below(4) > 0) return;
    server_.connect(one.rank, 0,
                    [&one](transport::EventLoop& loop, transport::FlowHandler& handler) {
                      auto flow = std::make_unique<MemoryFlow>(loop, handler);
                      one.flow = flow.get();
                      return flow;
                    });
  }

  void define(Of& one, uint32_t group, std::vector<uint32_t> ranks) {
    control(one, wire::FrameType::kGroup, encode(wire::GroupMessage{1, "g", std::move(ranks)}), 0,
            group);
  }

  void control(Of& one, wire::FrameType type, const std::string& payload, size_t cut,
               uint32_t group = 0) {
    wire::FrameHeader header;
    header.type = type;
    header.group = group;
    one.flow->deliver(header, payload, cut);
  }

  void open(Of& one, size_t cut) {
    key_ = member_.header(in_, wire::FrameType::kOpen);
    opened_ = member_.open(in_);
    one.flow->deliver(key_, encode(opened_), cut);
  }

  void data(Of& one, size_t cut) {
    wire::FrameHeader header = in_.flag() ? key_ : member_.header(in_, wire::FrameType::kData);
    const std::string payload = Member::data(in_, opened_, header);
    header.taken = one.flow->take(in_.below(2));
    one.flow->deliver(header, payload, cut);
  }

  // A departure is rare, because nothing goes on afterwards.
  void leave(Of& one) {
    if (!in_.seldom()) return;
    const uint32_t how = in_.below(8);
    if (how < 6) return one.flow->fail({Code::kPeerLost, "the connection was closed"});
    one.gone = true;
    server_.lost({.left = how == 6, .index = one.rank});
  }

  server::Server& server_;
  const uint32_t per_node_;
  const Member member_;
  uint32_t rounds_ = 0;
  transport::EventLoop* loop_ = nullptr;
  std::vector<Of> members_;
  Input in_{nullptr, 0};
  wire::Open opened_;
  wire::FrameHeader key_;
  std::promise<void> done_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  be_quiet();
  if (size < 4) return 0;
  Input in(data, size);
  const uint32_t nodes = 1 + in.below(4), per_node = 1 + in.below(2);
  const control::Cluster cluster = some_cluster(nodes, per_node);
  server::DataPlaneOptions options;
  options.segment_bytes = kSegment;
  options.proxies = 1 + in.below(2);
  options.credit_max = kSegment * in.pick<size_t>({1, 8, 128});
  options.small_bytes = 4096;
  auto started = server::Server::start({"127.0.0.1", 0, {"secret", wire::job_id("job")}},
                                       transport::tcp::transport());
  expect(started.ok());
  server::Server& server = **started;
  server.attach(cluster, 0, options);
  // There is one script per loop, because proxies own contiguous blocks of nodes.
  std::map<transport::EventLoop*, std::unique_ptr<Script>> scripts;
  for (uint32_t rank = 0; rank < cluster.size; ++rank) {
    std::promise<std::pair<transport::EventLoop*, MemoryFlow*>> made;
    server.connect(rank, 0, [&](transport::EventLoop& loop, transport::FlowHandler& handler) {
      auto flow = std::make_unique<MemoryFlow>(loop, handler);
      made.set_value({&loop, flow.get()});
      return flow;
    });
    const auto [loop, flow] = made.get_future().get();
    auto& script = scripts[loop];
    if (script == nullptr) script = std::make_unique<Script>(server, cluster.size, per_node);
    script->add(rank, flow, *loop);
  }
  for (auto& [loop, script] : scripts) script->start(data + size - in.left(), in.left());
  for (auto& [loop, script] : scripts) script->wait();
  server.stop();
  return 0;
}

std::vector<std::string> seeds() {
  std::string some = std::string("\1\0\0\1", 4);
  for (int i = 0; i < 400; ++i) some += static_cast<char>(i * 7 + i / 16);
  std::string rounds = std::string("\2\0\0\2", 4);
  for (int i = 0; i < 60; ++i) rounds += std::string("\20\0\0\5\0\0\0\0\0\1\5\0\1\2\1", 15);
  return {some, rounds};
}
