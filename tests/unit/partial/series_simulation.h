// Simulates an owner and ledgers on a network that has random delays and repeats messages. Workers
// have random speeds and are killed at random, and so is the owner. Payloads are integers, so that
// sums can be compared exactly. The sum applied must be the sum produced, less what a killed worker
// had not counted.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <queue>
#include <random>
#include <set>

#include "partial/ledger.h"
#include "partial/round_owner.h"

namespace herring::partial {

inline constexpr size_t kElements = 3;
using Values = std::vector<int64_t>;

inline int64_t value_of(uint32_t rank, uint64_t number) {
  return static_cast<int64_t>((rank + 1) * 1'000'003 + number * number * 7919);
}

// Records the contributors of each round. Also records, by rank, how many results were taken before
// each contribution and whether the worker then waited.
struct Recording {
  std::vector<std::vector<Contributor>> rounds;
  std::vector<std::vector<std::pair<uint32_t, bool>>> steps;
};

struct Parameters {
  uint32_t workers = 4, quorum = 2, staleness = 2;
  Nanos grace = 0;
  bool pushes = true;
  bool takes_all = false;  // whether a worker takes all ready results before it produces
  uint32_t rounds = 40;
  bool own_steps = false;  // each worker flushes after its own number of steps, not after `rounds`
  int kills = 0;
  int owners_lost = 0;
  uint64_t seed = 1;
  const Recording* replay = nullptr;
};

class Series {
 public:
  explicit Series(const Parameters& p)
      : p_(p), random_(p.seed),
        quorum_{p.workers, p.quorum, p.grace, p.staleness, p.replay != nullptr},
        owner_(quorum_, p.pushes) {
    recording_.steps.resize(p.workers);
    known_.resize(p.workers);
    for (uint32_t r = 0; r < p_.workers; ++r) {
      steps_.push_back(p.replay != nullptr ? static_cast<uint32_t>(p.replay->steps[r].size()) - 1
                                           : draw(p_.rounds + 1));
    }
    for (uint32_t r = 0; r < p_.workers; ++r) {
      workers_.push_back(std::make_unique<Worker>(r, p_.workers, p_.pushes));
      compute(r);
    }
    for (int k = 0; k < p_.kills; ++k) {
      const uint32_t victim = 1 + draw(p_.workers - 1);
      at(draw(40'000), [this, victim] { kill(victim); });
    }
    for (int k = 0; k < p_.owners_lost; ++k) {
      // Often one is lost while the next one still hears from workers.
      const Nanos when = k % 2 == 0 ? draw(40'000) : lost_at_ + draw(2000);
      lost_at_ = when;
      at(when, [this] { lose_owner(); });
    }
  }

  void run() {
    while (!events_.empty()) {
      const auto event = events_.top();
      events_.pop();
      now_ = event.when;
      ASSERT_LT(now_, 100'000'000) << "nothing moves any more";
      event.what();
      if (testing::Test::HasFatalFailure()) return;
    }
  }

  void check() {
    for (auto& worker : workers_) {
      if (!worker->alive) continue;
      ASSERT_TRUE(worker->done) << "rank " << worker->rank << " never ended";
      ASSERT_EQ(worker->applied, workers_[first_alive()]->applied) << "rank " << worker->rank;
      EXPECT_EQ(worker->ledger.counted(), worker->ledger.produced());
      if (p_.own_steps) {
        EXPECT_EQ(worker->ledger.produced(), steps_[worker->rank] + 1);
      }
    }
    EXPECT_TRUE(owner_.ended());
    Values produced(kElements, 0);
    for (auto& worker : workers_) {
      const uint64_t counted = counted_[worker->rank];
      if (worker->alive) {
        ASSERT_EQ(counted, worker->ledger.produced());
      }
      for (uint64_t n = 1; n <= counted; ++n) {
        for (size_t i = 0; i < kElements; ++i) produced[i] += value_of(worker->rank, n) + i;
      }
    }
    Values applied(kElements, 0);
    for (const Values& result : workers_[first_alive()]->applied) {
      for (size_t i = 0; i < kElements; ++i) applied[i] += result[i];
    }
    EXPECT_EQ(applied, produced);
    for (const Lost& lost : owner_.losses()) {
      EXPECT_EQ(lost.counted, counted_[lost.rank]);
      EXPECT_GE(workers_[lost.rank]->ledger.produced(), lost.announced);
    }
  }

  uint32_t repeats() const { return repeats_; }
  uint32_t taken_over() const { return taken_over_; }
  // What members lacked when another server became the owner.
  uint32_t due() const { return due_; }
  // The number of rounds that a worker took after its flush had been counted, and of empty last
  // rounds.
  uint32_t followed() const { return followed_; }
  uint32_t empty() const { return empty_; }
  const Recording& recording() const { return recording_; }
  const std::vector<Values>& applied() const { return workers_[first_alive()]->applied; }

 private:
  struct Worker {
    Worker(uint32_t r, uint32_t workers, bool pushes)
        : rank(r), ledger(r, DType::kInt64, kElements, pushes),
          memory(r, workers, pushes, size_t{1} << 30) {}
    uint32_t rank;
    Ledger ledger;
    Memory memory;
    uint32_t follows = 0;  // the owner that it knows
    bool alive = true, waiting = false, ending = false, done = false;
    bool applying = false;  // whether it is applying a result after its flush
    bool held = false;  // a replay takes one more result before it produces
    uint32_t computed_on = 0;
    std::vector<uint32_t> bases;  // results taken before each contribution
    std::vector<Values> applied;
    Nanos last_sent = 0, last_heard = 0;  // keep the order of the channels
    bool transferred = false, committed = false;
  };
  struct Event {
    Nanos when;
    uint64_t order;
    std::function<void()> what;
    bool operator<(const Event& other) const {
      return std::tie(when, order) > std::tie(other.when, other.order);
    }
  };
  // One attempt at a round that is being pushed.
  struct Push {
    Closed closed;
    std::map<uint32_t, Values> from;    // from each contributor
    std::vector<uint32_t> arrived;      // members whose part, which may be empty, has arrived
    bool garbage = false;               // a contributor died before its part arrived
    bool finished = false;
  };

  uint32_t draw(uint32_t n) { return static_cast<uint32_t>(random_() % n); }
  void at(Nanos delay, std::function<void()> what) {
    events_.push({now_ + delay, order_++, std::move(what)});
  }
  uint32_t first_alive() const {
    uint32_t r = 0;
    while (!workers_[r]->alive) ++r;
    return r;
  }

  // Sends on an ordered channel to other servers, which sum.
  void to_server(uint32_t rank, std::function<void()> what) {
    Worker& worker = *workers_[rank];
    worker.last_sent = std::max(worker.last_sent, now_ + draw(300));
    at(worker.last_sent - now_, std::move(what));
  }
  // The same to the owner that the worker knows. What arrives after its loss is dropped.
  void to_owner(uint32_t rank, std::function<void()> what) {
    to_server(rank, [this, what, to = workers_[rank]->follows] {
      if (to == owners_) what();
    });
  }
  void from_server(uint32_t rank, std::function<void()> what) {
    Worker& worker = *workers_[rank];
    worker.last_heard = std::max(worker.last_heard, now_ + draw(300));
    at(worker.last_heard - now_, [this, rank, what] {
      if (workers_[rank]->alive) what();
    });
  }
  // Who knows of another owner does not listen to the one before.
  void to_worker(uint32_t rank, std::function<void()> what) {
    from_server(rank, [this, rank, what, from = owners_] {
      if (workers_[rank]->follows == from) what();
    });
  }

  void compute(uint32_t rank) {
    const bool straggles = draw(8) == 0;
    at(100 + draw(400) + (straggles ? draw(5000) : 0), [this, rank] {
      if (workers_[rank]->alive) produce(rank);
    });
  }

  void apply(Worker& worker) {
    const auto* data = reinterpret_cast<const int64_t*>(worker.ledger.front());
    worker.applied.emplace_back(data, data + kElements);
    if (const auto join = worker.ledger.take()) announce(worker.rank, *join, {});
  }

  // Returns where the recording counts a contribution.
  Place place_of(uint32_t rank, uint64_t number) const {
    for (uint32_t round = 0; round < p_.replay->rounds.size(); ++round) {
      const auto& contributors = p_.replay->rounds[round];
      for (const Contributor& one : contributors) {
        if (one.rank == rank && one.upto >= number) {
          return {round, static_cast<uint32_t>(contributors.size()), one.upto};
        }
      }
    }
    return {};
  }

  void produce(uint32_t rank) {
    Worker& worker = *workers_[rank];
    const uint64_t number = worker.ledger.produced() + 1;
    bool waits = true;
    Place place;
    if (p_.replay != nullptr) {
      const auto& [taken, waited] = p_.replay->steps[rank].at(number - 1);
      while (worker.ledger.taken() < taken && worker.ledger.ready() > 0) apply(worker);
      worker.held = worker.ledger.taken() < taken;
      if (worker.held) return;
      waits = waited;
      place = place_of(rank, number);
    } else {
      while (p_.takes_all && worker.ledger.ready() > 0) {
        apply(worker);
        waits = false;
      }
    }
    recording_.steps[rank].push_back({worker.ledger.taken(), waits});
    const bool last =
        p_.own_steps ? number > steps_[rank] : worker.ledger.taken() >= p_.rounds;
    worker.ending = last;
    Values values;
    for (size_t i = 0; i < kElements; ++i) values.push_back(value_of(rank, number) + i);
    const auto join = worker.ledger.produce(values.data(), waits, last, place);
    ASSERT_TRUE(join.ok()) << join.status().message();
    worker.bases.push_back(worker.computed_on);
    if (*join) announce(rank, **join, values);
    worker.waiting = true;
    if (!waits && !last) {
      worker.waiting = false;
      go_on(rank);
    } else {
      look(rank);
    }
  }

  void announce(uint32_t rank, const Join& join, Values values) {
    if (p_.replay != nullptr && join.contributors != 0) {
      const auto* data = reinterpret_cast<const int64_t*>(workers_[rank]->ledger.announced());
      values.assign(data, data + kElements);
    }
    std::string payload(reinterpret_cast<const char*>(values.data()),
                        p_.pushes ? 0 : values.size() * sizeof(int64_t));
    workers_[rank]->memory.announced({join, 0, 0, std::move(payload)});
    const auto say = [this, join, values] {
      if (known_[join.rank]) {
        known_[join.rank]->said = workers_[join.rank]->memory.known().said;
        return;
      }
      if (!owner_.member(join.rank)) return;
      const Status possible = owner_.check(join);
      ASSERT_TRUE(possible.ok()) << "rank " << join.rank << ": " << possible.message();
      const bool adds = join.upto > owner_.announced(join.rank);
      if (join.last) flushing_.insert(join.rank);
      if (owner_.join(join, now_) && adds && !p_.pushes) {
        Values& sum = held_[join.rank];
        sum.resize(kElements);
        for (size_t i = 0; i < kElements; ++i) sum[i] += values[i];
      }
      advance();
    };
    to_owner(rank, say);
    if (draw(4) == 0) to_owner(rank, say);
  }

  void go_on(uint32_t rank) {
    Worker& worker = *workers_[rank];
    worker.computed_on = worker.ledger.taken();
    compute(rank);
  }

  // The training thread checks whether the result that it waits for is ready.
  void look(uint32_t rank) {
    Worker& worker = *workers_[rank];
    if (worker.held && worker.ledger.ready() > 0) return produce(rank);
    if (worker.waiting && worker.ending) {
      if (worker.ledger.ready() == 0 || std::exchange(worker.applying, true)) return;
      return at(draw(8) == 0 ? draw(5000) : draw(50), [this, rank] {
        Worker& one = *workers_[rank];
        if (!one.alive) return;
        one.applying = false;
        apply(one);
        ++followed_;
        one.done = one.ledger.ended() && one.ledger.ready() == 0;
        one.waiting = !one.done;
        look(rank);
      });
    }
    while (worker.waiting && worker.ledger.ready() > 0) {
      apply(worker);
      worker.waiting = false;
      go_on(rank);
    }
  }

  void advance() {
    if (settling_) return;
    while (auto closed = owner_.close(now_)) {
      uint32_t contributing = 0, active = 0;
      for (const Contributor& one : closed->contributors) {
        active += one.active && !flushing_.contains(one.rank);
        EXPECT_LE(one.staleness, p_.staleness);
        // The staleness that the owner reports must be true of the oldest contribution in the sum.
        const Worker& worker = *workers_[one.rank];
        const uint64_t oldest = counted_[one.rank];
        ASSERT_LT(oldest, worker.bases.size());
        EXPECT_LE(closed->round - worker.bases[oldest], p_.staleness);
      }
      for (const uint32_t rank : closed->members) contributing += !flushing_.contains(rank);
      EXPECT_GE(active, std::min(p_.quorum, contributing));
      EXPECT_EQ(closed->last, contributing == 0);
      if (closed->contributors.empty()) {
        ++empty_;
        ASSERT_TRUE(closed->last && !owner_.losses().empty());
      }
      if (closed->attempt == 0) recording_.rounds.push_back(closed->contributors);
      if (closed->attempt > 0) ++repeats_;
      if (p_.pushes && !closed->contributors.empty()) {
        push(*closed);
      } else {
        commit(*closed, sum_inline(*closed));
      }
    }
    if (const Nanos wake = owner_.wake_at(); wake > now_) {
      at(wake - now_, [this] { advance(); });
    }
  }

  Values sum_inline(const Closed& closed) {
    Values sum(kElements, 0);
    for (const Contributor& one : closed.contributors) {
      Values& part = held_[one.rank];
      for (size_t i = 0; i < kElements; ++i) sum[i] += part[i];
      part.assign(kElements, 0);
    }
    return sum;
  }

  static uint64_t upto_of(const auto& closed, uint32_t rank) {
    for (const Contributor& one : closed.contributors) {
      if (one.rank == rank) return one.upto;
    }
    return 0;
  }

  void hand_out(uint32_t rank, const Values& sum) {
    Worker& worker = *workers_[rank];
    worker.memory.completed();
    std::memcpy(worker.ledger.result(), sum.data(), kElements * sizeof(int64_t));
    const auto join = worker.ledger.completed();
    EXPECT_LE(worker.ledger.ready(), p_.staleness + 1);
    // The ledger holds cells for contributions, one per result that may be missed, and one for the
    // result that is being taken.
    if (p_.replay == nullptr) {
      EXPECT_LE(worker.ledger.blocks(), 3u + 2 * std::max(p_.staleness, 1u));
    }
    if (join) announce(rank, *join, {});
    look(rank);
  }

  // A round as members hear of it. `text`: its result, or the number of its push.
  HeardRound heard_of(const Closed& closed, std::string text) const {
    return {closed.round,     closed.attempt, closed.last, closed.contributors,
            owner_.losses(), 0,              0,           std::move(text)};
  }

  void commit(const Closed& closed, const Values& sum) {
    for (const Contributor& one : closed.contributors) counted_[one.rank] = one.upto;
    if (p_.pushes && !closed.contributors.empty()) return;
    const HeardRound heard = heard_of(
        closed, {reinterpret_cast<const char*>(sum.data()), sum.size() * sizeof(int64_t)});
    for (uint32_t rank : closed.members) {
      to_worker(rank, [this, rank, heard] { hear_result(rank, heard); });
    }
  }

  void hear_result(uint32_t rank, const HeardRound& heard) {
    const char* data;
    Worker& worker = *workers_[rank];
    const Status status =
        worker.ledger.closed(heard.round, upto_of(heard, rank), heard.last, &data);
    ASSERT_TRUE(status.ok()) << status.message();
    worker.memory.heard(heard);
    Values sum(kElements);
    std::memcpy(sum.data(), heard.text.data(), kElements * sizeof(int64_t));
    hand_out(rank, sum);
  }

  void push(const Closed& closed) {
    auto push = std::make_shared<Push>();
    push->closed = closed;
    pushes_.push_back(push);
    const HeardRound heard = heard_of(closed, std::to_string(pushes_.size() - 1));
    for (uint32_t rank : closed.members) {
      to_worker(rank, [this, rank, heard] { hear_push(rank, heard); });
    }
  }

  void hear_push(uint32_t rank, const HeardRound& heard) {
    const auto push = pushes_[std::stoul(heard.text)];
    Worker& worker = *workers_[rank];
    worker.transferred = worker.committed = false;
    const char* data;
    const Status status =
        worker.ledger.closed(heard.round, upto_of(heard, rank), heard.last, &data);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(data != nullptr, upto_of(heard, rank) != 0);
    worker.memory.heard(heard);
    // The bytes leave later than they are handed over, so they must not change in between.
    to_server(rank, [this, rank, push, data] {
      if (!workers_[rank]->alive) return;
      if (data != nullptr) {
        const auto* values = reinterpret_cast<const int64_t*>(data);
        push->from[rank] = Values(values, values + kElements);
      }
      push->arrived.push_back(rank);
      complete(*push);
    });
  }

  void complete(Push& push) {
    if (push.finished) return;
    for (uint32_t rank : push.closed.members) {
      const bool here =
          std::find(push.arrived.begin(), push.arrived.end(), rank) != push.arrived.end();
      if (!here && workers_[rank]->alive) return;
      if (!here && upto_of(push.closed, rank) != 0) push.garbage = true;
    }
    push.finished = true;
    Values sum(kElements, 0);
    for (const auto& [rank, values] : push.from) {
      for (size_t i = 0; i < kElements; ++i) sum[i] += values[i];
    }
    for (uint32_t rank : push.closed.members) {
      if (!workers_[rank]->alive) continue;
      from_server(rank, [this, rank, closed = push.closed, sum, garbage = push.garbage] {
        workers_[rank]->transferred = true;
        workers_[rank]->memory.received(!garbage);
        arrived_[rank] = sum;
        to_owner(rank, [this, rank, closed, garbage] {
          if (known_[rank]) {
            known_[rank]->receive(!garbage);
            if (known_[rank]->committed && !garbage) known_[rank]->complete();
            return;
          }
          if (owner_.received(rank, closed.round, closed.attempt, !garbage)) {
            ASSERT_FALSE(garbage) << "a round without one of its contributors was committed";
            commit(closed, {});
            for (uint32_t member : closed.members) {
              to_worker(member, [this, member] { hear_commit(member); });
            }
          }
          advance();
        });
        settle(rank);
      });
    }
  }

  void hear_commit(uint32_t rank) {
    workers_[rank]->committed = true;
    workers_[rank]->memory.committed();
    settle(rank);
  }

  // Another server becomes the owner. Workers hear of it one after another.
  void lose_owner() {
    if (std::ranges::all_of(workers_, [](const auto& one) { return one->done || !one->alive; })) {
      return;
    }
    ++owners_;
    ++taken_over_;
    settling_ = true;
    known_.assign(p_.workers, {});
    told_.assign(p_.workers, false);
    owner_ = RoundOwner(quorum_, p_.pushes);
    for (uint32_t rank = 0; rank < p_.workers; ++rank) {
      at(draw(1000), [this, rank, owner = owners_] {
        Worker& worker = *workers_[rank];
        if (!worker.alive || worker.follows >= owner) return;
        worker.follows = owner;
        worker.memory.moves();
        to_owner(rank, [this, rank, known = worker.memory.known()] {
          known_[rank] = known;
          told_[rank] = true;
          take_over();
        });
      });
    }
    take_over();
  }

  // Becomes the owner if all have told what they know.
  void take_over() {
    if (!settling_) return;
    for (uint32_t rank = 0; rank < p_.workers; ++rank) {
      if (!told_[rank] && !gone_.contains(rank)) return;
    }
    settling_ = false;
    const auto known = std::exchange(known_, std::vector<std::optional<SeriesState>>(p_.workers));
    auto taken = RoundOwner::take_over(quorum_, p_.pushes, known, now_);
    ASSERT_TRUE(taken.ok()) << taken.status().message();
    owner_ = std::move(taken->owner);
    held_.clear();
    flushing_.clear();
    for (uint32_t rank = 0; rank < p_.workers; ++rank) {
      counted_[rank] = owner_.counted(rank);
      if (gone_.contains(rank)) owner_.lost(rank);
      if (!known[rank]) continue;
      for (const SentJoin& said : known[rank]->said) {
        if (said.join.last) flushing_.insert(rank);
        if (said.join.upto <= owner_.counted(rank) || p_.pushes) continue;
        ASSERT_EQ(said.payload.size(), kElements * sizeof(int64_t));
        Values& sum = held_[rank];
        sum.resize(kElements);
        int64_t values[kElements];
        std::memcpy(values, said.payload.data(), sizeof(values));
        for (size_t i = 0; i < kElements; ++i) sum[i] += values[i];
      }
    }
    for (const Due& due : taken->due) {
      if (gone_.contains(due.rank)) continue;
      ++due_;
      to_worker(due.rank, [this, due, heard = *due.round] {
        if (due.commit) return hear_commit(due.rank);
        p_.pushes && !heard.contributors.empty() ? hear_push(due.rank, heard)
                                                 : hear_result(due.rank, heard);
      });
    }
    advance();
  }

  void settle(uint32_t rank) {
    Worker& worker = *workers_[rank];
    if (!worker.transferred || !worker.committed) return;
    worker.transferred = worker.committed = false;
    hand_out(rank, arrived_[rank]);
  }

  void kill(uint32_t rank) {
    Worker& worker = *workers_[rank];
    if (!worker.alive || worker.done) return;
    uint32_t alive = 0;
    for (auto& one : workers_) alive += one->alive;
    if (alive == 1) return;
    worker.alive = false;
    at(draw(2000), [this, rank] {
      gone_.insert(rank);
      settling_ ? take_over() : owner_.lost(rank);
      for (auto& push : pushes_) complete(*push);
      advance();
    });
  }

  const Parameters p_;
  std::mt19937_64 random_;
  const Quorum quorum_;
  RoundOwner owner_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::priority_queue<Event> events_;
  std::vector<std::shared_ptr<Push>> pushes_;
  std::map<uint32_t, Values> held_, arrived_;
  std::map<uint32_t, uint64_t> counted_;
  Nanos now_ = 1;
  uint64_t order_ = 0;
  uint32_t repeats_ = 0, followed_ = 0, empty_ = 0;
  uint32_t owners_ = 0, taken_over_ = 0, due_ = 0;  // owners that were lost
  Nanos lost_at_ = 0;
  bool settling_ = false;           // not all workers have told the owner what they know
  std::vector<std::optional<SeriesState>> known_;  // by rank, what they have told so far
  std::vector<bool> told_;
  std::set<uint32_t> gone_;         // as servers know
  std::vector<uint32_t> steps_;     // steps of each worker before it flushes
  std::set<uint32_t> flushing_;     // ranks that are flushing, as far as the owner knows
  Recording recording_;
};

}  // namespace herring::partial
