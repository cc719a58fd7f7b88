// Fuzzes the state machines behind the messages of partial all-reduces. The input is a program.
// Either members say well-formed things to the table of a server, in any order, or a server says
// them to a worker's ledger. The worker keeps to the rules. Neither side may crash or keep more
// than its bounds. What the table tells the workers must be a series of rounds.
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "partial/ledger.h"
#include "server/series.h"
#include "wire/partial.h"

using namespace herring;        // NOLINT: a fuzz target
using namespace herring::wire;  // NOLINT

namespace {

constexpr uint32_t kRanks = 3;
constexpr size_t kElements = 4;

void expect(bool sound) {
  if (!sound) std::abort();
}

class Program {
 public:
  Program(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}
  bool more() const { return at_ < end_; }
  uint8_t byte() { return more() ? *at_++ : 0; }
  uint32_t below(uint32_t n) { return byte() % n; }
  // Returns a number that is mostly near `around`, and sometimes at the end of its range.
  template <typename T>
  T near(T around) {
    const uint8_t how = byte();
    if (how >= 0xfa) return static_cast<T>(how == 0xfa ? T{1} << (sizeof(T) * 8 - 1) : ~T{0});
    return static_cast<T>(around + how % 8 - 3);
  }

 private:
  const uint8_t* at_;
  const uint8_t* end_;
};

Enlist some_enlist(const char* name, bool inlined, bool replays) {
  Enlist enlist;
  enlist.name = name;
  enlist.replays = replays;
  enlist.inline_payload = inlined;
  enlist.elements = kElements;
  enlist.quorum = 2;
  enlist.staleness = 2;
  enlist.warn_ms = 1;
  enlist.timeout_ms = 2;
  return enlist;
}

control::Cluster some_cluster() {
  control::Cluster cluster;
  cluster.size = cluster.nodes = kRanks;
  for (uint32_t r = 0; r < kRanks; ++r) cluster.workers.push_back({r, r, 0, "a", r + 1, ""});
  cluster.servers = {{0, true, ~0u, "c:1", 1.0}};
  return cluster;
}

class TableOfMembers {
 public:
  TableOfMembers() {
    uint32_t i = 0;
    for (const char* name : {"inlined", "pushed", "replayed", "pushed and replayed"}) {
      enlists_.push_back(some_enlist(name, i % 2 == 0, i >= 2));
      ++i;
    }
  }

  void run(Program& program) {
    if (program.below(8) != 0) {  // otherwise the program decides who enlists
      std::vector<server::Answer> none;
      for (uint32_t rank = 0; rank < kRanks; ++rank) {
        for (const Enlist& one : enlists_) {
          expect(table_.enlist(rank, 0, {}, encode(one), 1, none).ok());
        }
      }
      expect(none.empty());
    }
    for (Nanos now = 1; program.more(); now += 1 + program.byte() % 4 * kMillisecond) {
      const uint32_t rank = program.below(kRanks);
      Enlist enlist = enlists_[program.below(4)];
      const uint64_t id = series_id(enlist.name);
      Known& known = known_[id];
      Status status;
      std::vector<server::Answer> answers;
      switch (program.below(10)) {
        case 0:
          if (program.below(16) == 0) enlist.grace = program.near<Nanos>(3);
          if (program.below(16) == 0) enlist.staleness = program.near<uint32_t>(3);
          if (program.below(16) == 0) enlist.quorum = program.near<uint32_t>(2);
          if (program.below(32) == 0) enlist.name += static_cast<char>(program.byte());
          status = table_.enlist(rank, 0, {}, encode(enlist), now, answers);
          break;
        case 1:
          table_.tick(now, answers);
          expect(table_.wake_at() == 0 || table_.wake_at() > 0);
          break;
        case 2: table_.overdue(now, answers); break;
        case 3:
          if (program.below(8) == 0) table_.lost(rank, now, answers);
          break;
        case 4:
        case 5: {
          RoundMark mark{id, program.near<uint32_t>(known.round), program.below(2),
                         program.below(4) != 0};
          if (program.below(2)) mark.round = known.round;
          status = table_.received(rank, encode(mark), now, answers);
          break;
        }
        default: {
          JoinMessage join;
          join.id = id;
          uint64_t& upto = known.uptos[rank];
          join.upto = program.below(4) ? upto + 1 : program.near<uint64_t>(upto);
          join.base = program.below(4) ? known.next() + 1 : program.near<uint32_t>(known.next());
          join.last = program.below(6) == 0;
          if (join.last && program.below(2)) join.upto = upto;
          if (enlist.replays) {
            join.round = program.near<uint32_t>(known.next());
            join.contributors = program.near<uint32_t>(2);
          }
          join.digest_round = program.below(4) ? 0 : program.near<uint32_t>(4);
          join.digest = program.below(2);
          const bool adds = enlist.inline_payload && (join.upto > upto || program.below(8) == 0);
          const std::string payload(adds ? kElements * size_of(enlist.dtype) : 0, '1');
          status = table_.join(rank, encode(join) + payload, now, answers);
          if (status.ok() && join.upto > upto) upto = join.upto;
        }
      }
      expect(status.ok() || !status.message().empty());
      for (const server::Answer& answer : answers) look(answer);
    }
  }

 private:
  struct Known {
    uint32_t round = 0;  // the round that was closed last
    bool any = false, last = false;
    std::map<uint32_t, uint64_t> uptos;
    uint32_t next() const { return any ? round + 1 : 0; }
  };

  void look(const server::Answer& answer) {
    expect(answer.rank < kRanks);
    if (answer.header.type != FrameType::kRound) return;
    const auto round = decode_round(answer.payload);
    expect(round.ok());
    Known& known = known_[round->id];
    if (known.last && round->round == 0) known = {};  // another series of the same name
    expect(round->round == known.round || round->round == known.next());
    known.round = round->round;
    known.any = true;
    known.last = round->last;
    expect(round->last || !round->contributors.empty());
    for (size_t i = 0; i < round->contributors.size(); ++i) {
      expect(round->contributors[i].rank < kRanks && round->contributors[i].upto > 0);
      expect(i == 0 || round->contributors[i - 1].rank < round->contributors[i].rank);
    }
    if (known.last) known.uptos.clear();
  }

  const control::Cluster cluster_ = some_cluster();
  server::GroupTable groups_{cluster_};
  const observe::RankStates states_;
  const server::Whereabouts whereabouts_{kRanks, states_};
  server::SeriesTable table_{cluster_, groups_, 0, whereabouts_};
  std::vector<Enlist> enlists_;
  std::map<uint64_t, Known> known_;
};

// Drives a ledger as rounds::Partial does.
void run_ledger(Program& program) {
  const bool pushes = program.below(2), replays = program.below(2);
  partial::Ledger ledger(1, DType::kInt32, kElements, pushes);
  const int32_t values[kElements] = {1, 2, 3, 4};
  bool transferring = false;
  uint32_t rounds = 0;
  while (program.more()) {
    switch (program.below(4)) {
      case 0: {
        partial::Place place;
        if (replays) {
          place = {program.near<uint32_t>(rounds), 1 + program.below(3),
                   program.near<uint64_t>(ledger.produced() + 2)};
        }
        // A worker that never waits for results may use any number of cells.
        const bool waits = ledger.blocks() > 64 || program.below(4) != 0;
        auto join = ledger.produce(values, waits, program.below(16) == 0, place);
        if (join.ok() && *join) {
          expect((*join)->upto <= ledger.produced() && (*join)->base <= ledger.taken() + 1);
          if (replays) expect(ledger.announced() != nullptr);
        }
        break;
      }
      case 1: {
        if (transferring || ledger.ready() > 4) break;
        const uint32_t round = program.below(8) ? rounds : program.near<uint32_t>(rounds);
        uint64_t upto = program.near<uint64_t>(ledger.produced());
        if (program.below(4) == 0) upto = 0;
        const bool last = program.below(8) == 0;
        const char* push = nullptr;
        if (!ledger.closed(round, upto, last, &push).ok()) return;  // the job has failed
        expect(round == rounds && (push == nullptr || upto != 0));
        if (push != nullptr) expect(push[0] != 0);
        ledger.result()[kElements * sizeof(int32_t) - 1] = 1;
        transferring = true;
        break;
      }
      case 2:
        if (!transferring || (pushes && program.below(4) == 0)) break;
        transferring = false;
        ++rounds;
        if (const auto join = ledger.completed()) expect(join->upto <= ledger.produced());
        break;
      default:
        if (ledger.ready() == 0) break;
        expect(ledger.front() != nullptr);
        if (const auto join = ledger.take()) {
          expect(join->last && join->upto == ledger.produced());
          expect(join->base == ledger.taken() + 1);
        }
    }
    expect(ledger.counted() <= ledger.produced() && ledger.taken() <= rounds);
    expect(ledger.blocks() <= 128);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Program program(data, size);
  if (program.below(4) == 0) {
    run_ledger(program);
  } else {
    TableOfMembers().run(program);
  }
  return 0;
}

std::vector<std::string> seeds() {
  std::vector<std::string> programs;
  for (uint32_t n = 1; n <= 16; ++n) {
    std::string program;
    uint32_t state = n;
    for (int i = 0; i < 400; ++i) program += static_cast<char>((state = state * 1664525 + 1) >> 23);
    programs.push_back(program);
  }
  return programs;
}
