#include "collective/activation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <queue>
#include <random>
#include <set>

#include "algorithms.h"
#include "play.h"

namespace herring::collective {
namespace {

std::vector<Activated> activated(Algorithm algorithm, uint32_t size, uint64_t count) {
  std::vector<Activated> all;
  for (uint32_t rank = 0; rank < size; ++rank) {
    all.push_back(activate(rank, size, make_schedule(algorithm, rank, size, count, 1)));
  }
  return all;
}

Play play_of(const std::vector<Activated>& all, uint64_t count) {
  std::vector<Schedule> schedules;
  for (const Activated& one : all) schedules.push_back(one.schedule);
  return Play(std::move(schedules), count);
}

// Ranks call at any time, together or long after they were activated by others. Among four, only
// the calls and signals come in every order. The collective's messages have no part in that, and
// come in every order in the tests of schedules.
TEST(Activation, EverySetOfInitiatorsOfUpToFourRanksRunsTheCollectiveOnce) {
  for (uint32_t size = 1; size <= 4; ++size) {
    const std::vector<Activated> all = activated(Algorithm::kDoubling, size, 1);
    for (uint32_t set = 1; set < 1u << size; ++set) {
      SCOPED_TRACE(concat(size, " ranks, initiators ", set));
      Play play = play_of(all, 1);
      for (uint32_t rank = 0; rank < size; ++rank) {
        if (set >> rank & 1) play.will_fire(rank, all[rank].initiate);
      }
      const auto belongs_to_the_collective = [&](const Play& one, const Play::Event& event) {
        const Operation& operation = one.schedule(event.rank)[event.operation];
        return size == 4 && operation.kind != Operation::Kind::kNop && !operation.is_signal();
      };
      size_t states = 0;
      ASSERT_EQ(play_all_orders(play, states, belongs_to_the_collective), "");
      EXPECT_GE(states, size) << states;
    }
  }
}

TEST(Activation, AnySetOfInitiatorsOfUpToSixtyFourRanksRunsAnyCollectiveOnce) {
  std::mt19937 lot(53);
  for (const Algorithm algorithm : kAlgorithms) {
    for (uint32_t size = 2; size <= 64; size += lot() % 5 + 1) {
      SCOPED_TRACE(concat(wire::name_of(algorithm), ", ", size, " ranks"));
      const uint64_t count = lot() % size + 1;
      const std::vector<Activated> all = activated(algorithm, size, count);
      Play play = play_of(all, count);
      const uint32_t some = lot() % 3 == 0 ? 1 : lot() % size + 1;
      for (uint32_t k = 0; k < some; ++k) {
        const uint32_t rank = lot() % size;
        play.will_fire(rank, all[rank].initiate);
      }
      ASSERT_EQ(play_at_random(play, lot), "");
    }
  }
}

TEST(Activation, WithoutAnInitiatorNothingIsSent) {
  for (uint32_t size = 2; size <= 9; ++size) {
    EXPECT_TRUE(play_of(activated(Algorithm::kRing, size, 9), 9).events().empty());
  }
}

// Messages between ranks in virtual time. The collective is recursive doubling of one number. Each
// rank contributes a number of its own, so that a sum has each of them once only if it is right.
class Virtual {
 public:
  Virtual(uint32_t size, uint32_t most_ahead, Persistent::Initiates (*initiates)(uint32_t rank),
          std::function<double()> latency)
      : latency_(std::move(latency)) {
    for (uint32_t rank = 0; rank < size; ++rank) {
      schedules_.push_back(
          activate(rank, size, make_schedule(Algorithm::kDoubling, rank, size, 1, 1)));
      total_ += number_of(rank);
    }
    for (uint32_t rank = 0; rank < size; ++rank) {
      const Schedule& schedule = schedules_[rank].schedule;
      ranks_.push_back({Persistent(schedules_[rank], most_ahead, initiates(rank)), {}, {}, {}});
      Rank& one = ranks_.back();
      for (uint32_t i = 0; i < schedule.size(); ++i) {
        if (schedule[i].kind == Operation::Kind::kReceive) {
          one.receives[{schedule[i].peer, schedule[i].is_signal()}].push_back(i);
        }
      }
      one.value = number_of(rank);
    }
  }
  void call_at(double time, uint32_t rank) { queue_.push({time, ++order_, rank, rank, 0, 0, 0}); }
  void play() {
    while (!queue_.empty()) {
      const Event event = queue_.top();
      queue_.pop();
      now = event.time;
      Rank& rank = ranks_[event.to];
      if (event.from == event.to) {
        rank.persistent.call();
      } else if (event.number == kSignal) {
        ++signals;
        const uint32_t receive = rank.receives.at({event.from, true}).at(0);
        const Status status = rank.persistent.on_signal(event.instance, receive);
        ASSERT_TRUE(status.ok()) << status.message();
      } else {
        rank.letters[{event.instance, rank.receives.at({event.from, false}).at(event.number)}] =
            event.value;
      }
      advance(event.to);
    }
  }
  Persistent& persistent(uint32_t rank) { return ranks_[rank].persistent; }
  // When each rank became active in each instance.
  const std::vector<double>& active(uint32_t rank) const { return ranks_[rank].active; }

  double now = 0;
  uint64_t signals = 0, sums = 0;
  // Called when a rank becomes active.
  std::function<void(uint32_t rank, uint64_t instance)> on_active = [](uint32_t, uint64_t) {};

 private:
  static constexpr uint32_t kSignal = ~0u;
  struct Event {
    double time;
    uint64_t order;
    uint32_t from, to;
    uint64_t instance;
    uint32_t number;
    uint64_t value;
    bool operator<(const Event& other) const {
      return std::tie(other.time, other.order) < std::tie(time, order);
    }
  };
  struct Rank {
    Persistent persistent;
    std::map<std::pair<uint32_t, bool>, std::vector<uint32_t>> receives;
    std::map<std::pair<uint64_t, uint32_t>, uint64_t> letters;  // by instance and receive
    std::vector<double> active;
    std::map<uint32_t, uint32_t> sent;  // messages of the instance, by rank
    std::map<size_t, uint64_t> places;
    uint64_t value = 0;
  };

  static uint64_t number_of(uint32_t rank) { return mix(rank + 1, 7); }

  void advance(uint32_t number) {
    Rank& rank = ranks_[number];
    while (step(number, rank)) {
    }
  }
  bool step(uint32_t number, Rank& rank) {
    Persistent& persistent = rank.persistent;
    Instance* const instance = persistent.instance();
    if (instance == nullptr) return false;
    const uint64_t turn = persistent.number();
    if (persistent.is_active() && rank.active.size() == turn) {
      rank.active.push_back(now);
      on_active(number, turn);
    }
    const Schedule& schedule = schedules_[number].schedule;
    for (const uint32_t i : instance->open()) {
      const Operation& one = schedule[i];
      if (!instance->is_free(i)) continue;
      switch (one.kind) {
        case Operation::Kind::kNop: break;
        case Operation::Kind::kSend:
          queue_.push({now + latency_(), ++order_, number, one.peer, turn,
                       one.is_signal() ? kSignal : rank.sent[one.peer]++, rank.value});
          break;
        case Operation::Kind::kReceive: {
          if (one.is_signal()) continue;
          const auto letter = rank.letters.find({turn, i});
          if (letter == rank.letters.end()) continue;
          if (one.kept) {
            rank.places[one.place] = letter->second;
          } else {
            rank.value = one.sums() ? rank.value + letter->second : letter->second;
          }
          rank.letters.erase(letter);
          break;
        }
        case Operation::Kind::kCompute: {
          const Operation& half = schedule[one.half];
          if (half.kept) rank.value += rank.places.at(half.place);
          break;
        }
      }
      const uint64_t value = rank.value;
      persistent.complete(i);
      if (persistent.number() != turn) {
        EXPECT_EQ(value, total_) << "rank " << number << ", instance " << turn;
        ++sums;
        rank.value = number_of(number);
        rank.sent.clear();
      }
      return true;
    }
    return false;
  }

  const std::function<double()> latency_;
  std::vector<Activated> schedules_;
  std::vector<Rank> ranks_;
  std::priority_queue<Event> queue_;
  uint64_t order_ = 0, total_ = 0;
};

Persistent::Initiates always(uint32_t) {
  return [](uint64_t) { return true; };
}
constexpr uint64_t kSeed = 20;
Persistent::Initiates if_drawn_of_16(uint32_t rank) {
  return [rank](uint64_t instance) { return initiator_of(kSeed, instance, 16) == rank; };
}

void reaches_all_from(uint32_t root, uint32_t size) {
  SCOPED_TRACE(concat("from ", root, " of ", size));
  Virtual ranks(size, 1, always, [] { return 1.0; });
  ranks.call_at(0, root);
  ranks.play();
  const PowerOfTwo power(size);
  double latest = 0;
  for (uint32_t rank = 0; rank < size; ++rank) {
    ASSERT_EQ(ranks.active(rank).size(), 1u) << rank;
    latest = std::max(latest, ranks.active(rank)[0]);
  }
  const bool at_root = power.is_surplus(root);
  EXPECT_LE(latest, floor_log2(size) + (power.extra > 0) + at_root);
  if (power.extra == 0) {
    EXPECT_EQ(latest, floor_log2(size));
    EXPECT_EQ(ranks.signals, size - 1) << "each rank hears of it once";
  }
  EXPECT_EQ(ranks.sums, size);
}

TEST(Activation, TheFarthestRankIsALogarithmOfSignalsAway) {
  for (uint32_t size = 2; size <= 33; ++size) {
    for (uint32_t root = 0; root < size; ++root) reaches_all_from(root, size);
  }
  for (const uint32_t size : {1000u, 4095u, 4096u}) {
    for (const uint32_t root : {0u, 1u, 777u, size - 1}) reaches_all_from(root, size);
  }
}

TEST(Activation, ManyOfThousandsOfRanksInitiateAtOnce) {
  std::mt19937 lot(1);
  for (const uint32_t size : {64u, 1023u, 4096u}) {
    std::exponential_distribution<double> latency(1.0);
    Virtual ranks(size, 1, always, [&] { return latency(lot); });
    for (uint32_t rank = 0; rank < size; ++rank) {
      if (lot() % 8 == 0 || rank == 5) ranks.call_at(lot() % 4, rank);
    }
    ranks.play();
    EXPECT_EQ(ranks.sums, size);
    EXPECT_LE(ranks.signals, uint64_t{size} * (floor_log2(size) + 1));
  }
}

// Callers come at random times, each as often as every other. Instances follow one another on all
// ranks, with or without a rank's caller, but never too far ahead of it.
TEST(Persistent, RunsEveryInstanceOnceAndAtMostSoFarAheadOfACaller) {
  std::mt19937 lot(2);
  for (uint32_t size = 1; size <= 64; size += size < 9 ? 1 : 11) {
    for (const uint32_t most_ahead : {1u, 2u, 5u}) {
      SCOPED_TRACE(concat(size, " ranks, ", most_ahead));
      std::exponential_distribution<double> latency(1.0), pause(0.1);
      Virtual ranks(size, most_ahead, always, [&] { return latency(lot); });
      constexpr uint64_t kCalls = 20;
      for (uint32_t rank = 0; rank < size; ++rank) {
        double time = 0;
        for (uint64_t k = 0; k < kCalls; ++k) ranks.call_at(time += pause(lot), rank);
      }
      uint64_t before_caller = 0;
      ranks.on_active = [&](uint32_t rank, uint64_t instance) {
        EXPECT_LT(instance, ranks.persistent(rank).calls() + most_ahead);
        before_caller += instance >= ranks.persistent(rank).calls();
      };
      ranks.play();
      for (uint32_t rank = 0; rank < size; ++rank) {
        EXPECT_GE(ranks.persistent(rank).number(), kCalls);
        EXPECT_EQ(ranks.persistent(rank).number(), ranks.persistent(0).number());
      }
      if (size > 2) {
        EXPECT_GT(before_caller, 0u);
      }
    }
  }
}

TEST(Persistent, KeepsSignalsOfTheNextInstanceAndRefusesOthers) {
  const Activated schedule =
      activate(0, 2, make_schedule(Algorithm::kDoubling, 0, 2, 1, 1));
  uint32_t signal = 0;
  while (schedule.schedule[signal].kind != Operation::Kind::kReceive) ++signal;
  Persistent one(schedule, 1, [](uint64_t) { return true; });
  EXPECT_FALSE(one.is_active());
  EXPECT_TRUE(one.on_signal(1, signal).ok()) << "the other rank is ahead";
  EXPECT_FALSE(one.on_signal(1, signal).ok()) << "twice";
  EXPECT_FALSE(one.on_signal(2, signal).ok()) << "nobody can be so far ahead";
  EXPECT_FALSE(one.on_signal(0, schedule.active).ok());
  EXPECT_FALSE(one.on_signal(0, 99).ok());
  EXPECT_TRUE(one.on_signal(0, signal).ok());
  EXPECT_TRUE(one.is_active()) << "without its caller";
  EXPECT_FALSE(one.on_signal(0, signal).ok()) << "twice";
  const auto finish = [&] {
    for (const uint64_t number = one.number(); one.number() == number;) {
      const auto& open = one.instance()->open();
      const auto free = std::find_if(open.begin(), open.end(), [&](uint32_t i) {
        return one.instance()->is_free(i) && !(schedule.schedule[i].is_signal() && i == signal);
      });
      ASSERT_NE(free, open.end());
      one.complete(*free);
    }
  };
  finish();
  EXPECT_EQ(one.number(), 1u);
  EXPECT_EQ(one.instance(), nullptr) << "the caller has not come to instance 0";
  EXPECT_TRUE(one.on_signal(0, signal).ok()) << "late, and of no use";
  one.call();
  EXPECT_TRUE(one.is_active()) << "by the signal that was kept";
  finish();
  EXPECT_EQ(one.number(), 2u);
}

// A majority's initiator is drawn, so it is any of the order in which ranks come: on average, half
// of them are there when it comes (4.2).
TEST(Majority, HalfOfTheRanksAreThereOnAverage) {
  constexpr uint32_t kSize = 16;
  constexpr int kRounds = 10'000;
  std::mt19937 lot(3);
  std::uniform_real_distribution<double> when(0, 1);
  double time = 0;
  Virtual ranks(kSize, 1, if_drawn_of_16, [] { return 1e-6; });
  std::vector<uint64_t> come(kRounds);
  ranks.on_active = [&](uint32_t rank, uint64_t instance) {
    come[instance] += ranks.persistent(rank).calls() > instance;
  };
  for (int round = 0; round < kRounds; ++round, time += 2) {
    for (uint32_t rank = 0; rank < kSize; ++rank) ranks.call_at(time + when(lot), rank);
  }
  ranks.play();
  EXPECT_EQ(ranks.sums, uint64_t{kRounds} * kSize);
  double sum = 0, squares = 0;
  for (const uint64_t one : come) {
    sum += static_cast<double>(one);
    squares += static_cast<double>(one * one);
  }
  const double mean = sum / kRounds;
  const double deviation = std::sqrt(squares / kRounds - mean * mean);
  // The initiator's place is even among 1 ... P, and it counts itself. Three standard errors.
  const double of_one = std::sqrt((kSize * kSize - 1) / 12.0);
  EXPECT_NEAR(mean, (kSize + 1) / 2.0, 3 * of_one / std::sqrt(kRounds));  // 8.5, 0.14
  EXPECT_NEAR(deviation, of_one, 0.02 * of_one);
  RecordProperty("mean", std::to_string(mean));
}

TEST(Majority, TheInitiatorIsDrawnEvenlyAndBySeed) {
  for (const uint32_t size : {1u, 2u, 3u, 7u, 64u}) {
    std::vector<int> drawn(size);
    const int rounds = 1000 * static_cast<int>(size);
    for (int round = 0; round < rounds; ++round) {
      ++drawn[initiator_of(7, static_cast<uint64_t>(round), size)];
    }
    // Chi squared: its mean is size - 1, its deviation the root of twice as much.
    double chi = 0;
    for (const int one : drawn) chi += (one - 1000.0) * (one - 1000.0) / 1000.0;
    EXPECT_LE(chi, size - 1 + 4 * std::sqrt(2.0 * size)) << size;
  }
  EXPECT_EQ(initiator_of(1, 5, 1000), initiator_of(1, 5, 1000));
  int equal = 0;
  for (uint64_t round = 0; round < 100; ++round) {
    equal += initiator_of(1, round, 1000) == initiator_of(2, round, 1000);
  }
  EXPECT_LT(equal, 5);
}

}  // namespace
}  // namespace herring::collective
