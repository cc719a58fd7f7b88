// Plays the schedules of all ranks without bytes or time: in any order that the graphs allow.
// Elements are symbols, which say what was combined and how.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "collective/instance.h"

namespace herring::collective {

// What an element holds: which contributions, each at most once, combined in which order.
struct Symbol {
  uint64_t contributions = 0;  // a bit for each rank
  uint64_t expression = 0;
  bool finished = false;
  bool operator==(const Symbol&) const = default;
};

inline uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t h = a * 0x9e3779b97f4a7c15 + b;
  h ^= h >> 29;
  h *= 0xbf58476d1ce4e5b9;
  return h ^ h >> 32;
}

// An item of the array is one byte.
class Play {
 public:
  struct Event {
    uint32_t rank, operation;
  };

  explicit Play(std::vector<Schedule> schedules, uint64_t count)
      : schedules_(std::make_shared<const std::vector<Schedule>>(std::move(schedules))) {
    for (uint32_t rank = 0; rank < size(); ++rank) {
      instances_.emplace_back((*schedules_)[rank]);
      arrays_.emplace_back(count, Symbol{uint64_t{1} << rank, rank + 1});
      spaces_.emplace_back((*schedules_)[rank].space());
    }
  }
  uint32_t size() const { return static_cast<uint32_t>(schedules_->size()); }
  const Schedule& schedule(uint32_t rank) const { return (*schedules_)[rank]; }
  const Instance& instance(uint32_t rank) const { return instances_[rank]; }
  const std::string& broken() const { return broken_; }
  const std::vector<Symbol>& array(uint32_t rank) const { return arrays_[rank]; }
  // The operation will be set going at some time.
  void will_fire(uint32_t rank, uint32_t operation) { fires_.insert({rank, operation}); }

  // Returns whether the operation can run now.
  bool can_run(uint32_t rank, uint32_t number) const {
    const Operation& one = schedule(rank)[number];
    const Instance& instance = instances_[rank];
    if (!instance.is_free(number)) return false;
    if (one.kind != Operation::Kind::kReceive) {
      return one.kind != Operation::Kind::kSend || one.is_signal() || is_next(rank, number);
    }
    if (!is_there(rank, number)) return false;
    if (!one.sums() || one.kept) return true;
    const auto needs = schedule(rank).needs(one.half);
    return std::all_of(needs.begin(), needs.end(), [&](uint32_t earlier) {
      return earlier == number || instance.is_complete(earlier);
    });
  }
  std::vector<Event> events() const {
    std::vector<Event> all;
    for (uint32_t rank = 0; rank < size(); ++rank) events_of(rank, all);
    return all;
  }
  void events_of(uint32_t rank, std::vector<Event>& all) const {
    for (const uint32_t number : instances_[rank].open()) {
      if (can_run(rank, number)) all.push_back({rank, number});
    }
    for (const auto& [whose, number] : fires_) {
      if (whose == rank) all.push_back({rank, number});
    }
  }
  void run(const Event& event) {
    const auto [rank, number] = event;
    const Operation& one = schedule(rank)[number];
    if (fires_.erase({rank, number}) > 0) return instances_[rank].fire(number);
    if (!ran_.insert({rank, number}).second) broken_ = "an operation ran twice";
    std::vector<Symbol>& array = arrays_[rank];
    const auto first = array.begin() + static_cast<ptrdiff_t>(one.range.offset);
    const auto last = first + static_cast<ptrdiff_t>(one.range.bytes);
    const auto place = spaces_[rank].begin() + static_cast<ptrdiff_t>(one.place);
    const std::pair<uint32_t, uint32_t> to{rank, one.peer}, from{one.peer, rank};
    switch (one.kind) {
      case Operation::Kind::kNop: break;
      case Operation::Kind::kSend:
        one.is_signal() ? signals_[to].push_back(0)
                        : void(letters_[to].emplace_back(first, last));
        if (!one.is_signal()) ++sent_[to];
        break;
      case Operation::Kind::kReceive: {
        if (one.is_signal()) {
          signals_[from].pop_front();
          break;
        }
        ++received_[from];
        const std::vector<Symbol> letter = std::move(letters_[from].front());
        letters_[from].pop_front();
        if (letter.size() != one.range.bytes) broken_ = "a message has another length";
        if (one.sums() && one.kept) {
          std::copy(letter.begin(), letter.end(), place);
        } else if (one.sums()) {
          instances_[rank].complete(number);
          ran_.insert({rank, one.half});
          sum(rank, one.half, letter.data());
          instances_[rank].complete(one.half);
          return;
        } else {
          for (const Symbol& symbol : letter) {
            if (!symbol.finished) broken_ = "a result is not finished";
          }
          std::copy(letter.begin(), letter.end(), first);
        }
        break;
      }
      case Operation::Kind::kCompute:
        sum(rank, number, &spaces_[rank][schedule(rank)[one.half].place]);
        break;
    }
    instances_[rank].complete(number);
  }
  bool done() const {
    return std::all_of(instances_.begin(), instances_.end(),
                       [](const Instance& instance) { return instance.done(); });
  }
  // Returns whether nothing is on its way. Signals may come when nobody needs them.
  bool is_empty() const {
    return std::all_of(letters_.begin(), letters_.end(),
                       [](const auto& one) { return one.second.empty(); });
  }
  // Two plays with the same state go on in the same way.
  uint64_t state() const {
    uint64_t h = 1;
    for (const auto& [rank, number] : ran_) h = mix(h, mix(rank + 1, number));
    for (const auto& [rank, number] : fires_) h = mix(h, mix(rank + 100, number));
    for (const auto& array : arrays_) {
      for (const Symbol& one : array) h = mix(h, mix(one.contributions, one.expression));
    }
    for (const auto& [pair, box] : letters_) {
      for (const auto& letter : box) {
        for (const Symbol& one : letter) h = mix(h, mix(pair.second, one.expression));
      }
    }
    for (uint32_t rank = 0; rank < size(); ++rank) {
      for (uint32_t i = 0; i < schedule(rank).size(); ++i) {
        h = mix(h, instances_[rank].is_complete(i) ? 2 : instances_[rank].is_open(i) ? 1 : 0);
      }
    }
    return h;
  }

 private:
  void sum(uint32_t rank, uint32_t number, const Symbol* operands) {
    const Operation& one = schedule(rank)[number];
    for (size_t i = 0; i < one.range.bytes; ++i) {
      Symbol& a = arrays_[rank][one.range.offset + i];
      const Symbol& b = operands[i];
      if (a.finished || b.finished) broken_ = "a finished element is combined again";
      if (a.contributions & b.contributions) broken_ = "a contribution counts twice";
      // Commutative, but not associative.
      const auto [low, high] = std::minmax(a.expression, b.expression);
      a = {a.contributions | b.contributions, mix(low, high), one.finishes};
    }
  }
  // Returns whether the message is the next one that goes there.
  bool is_next(uint32_t rank, uint32_t number) const {
    return number_of(rank, number) == count_of(sent_, {rank, schedule(rank)[number].peer});
  }
  bool is_there(uint32_t rank, uint32_t number) const {
    const Operation& one = schedule(rank)[number];
    const std::pair<uint32_t, uint32_t> from{one.peer, rank};
    const auto signals = signals_.find(from);
    if (one.is_signal()) return signals != signals_.end() && !signals->second.empty();
    const auto box = letters_.find(from);
    return box != letters_.end() && !box->second.empty() &&
           number_of(rank, number) == count_of(received_, from);
  }
  uint32_t number_of(uint32_t rank, uint32_t number) const {
    const Schedule& all = schedule(rank);
    return static_cast<uint32_t>(
        std::count_if(all.begin(), all.begin() + number, [&](const Operation& other) {
          return other.kind == all[number].kind && other.peer == all[number].peer &&
                 !other.is_signal();
        }));
  }
  using Counts = std::map<std::pair<uint32_t, uint32_t>, uint32_t>;
  static uint32_t count_of(const Counts& counts, std::pair<uint32_t, uint32_t> pair) {
    const auto found = counts.find(pair);
    return found == counts.end() ? 0 : found->second;
  }

  std::shared_ptr<const std::vector<Schedule>> schedules_;
  std::vector<Instance> instances_;
  std::vector<std::vector<Symbol>> arrays_, spaces_;
  std::map<std::pair<uint32_t, uint32_t>, std::deque<std::vector<Symbol>>> letters_;
  std::map<std::pair<uint32_t, uint32_t>, std::deque<char>> signals_;
  Counts sent_, received_;
  std::set<std::pair<uint32_t, uint32_t>> ran_, fires_;
  std::string broken_;
};

// Returns what is wrong with the end of a play; empty if nothing is.
inline std::string verdict(const Play& play) {
  if (!play.broken().empty()) return play.broken();
  if (!play.done()) return "a rank is stuck";
  if (!play.is_empty()) return "a message was sent that nobody received";
  if (play.size() < 2) return {};
  const uint64_t all = play.size() == 64 ? ~uint64_t{0} : (uint64_t{1} << play.size()) - 1;
  for (uint32_t rank = 0; rank < play.size(); ++rank) {
    if (play.array(rank) != play.array(0)) return "results differ";
    for (const Symbol& one : play.array(rank)) {
      if (one.contributions != all) return "a contribution is missing";
      if (!one.finished) return "an element is not finished";
    }
  }
  return {};
}

// Plays all orders; returns the first that goes wrong. Counts the states. Events for which
// `at_once` is true run before all others, so only the orders of the others are played.
inline std::string play_all_orders(
    Play start, size_t& states,
    const std::function<bool(const Play&, const Play::Event&)>& at_once = {}) {
  const auto settle = [&](Play& play) {
    for (bool moved = bool(at_once); std::exchange(moved, false);) {
      for (const Play::Event& event : play.events()) {
        if (!at_once(play, event)) continue;
        play.run(event);
        moved = true;
        break;
      }
    }
  };
  settle(start);
  std::set<uint64_t> seen = {start.state()};
  std::vector<Play> left = {std::move(start)};
  while (!left.empty()) {
    const Play play = std::move(left.back());
    left.pop_back();
    const auto events = play.events();
    if (events.empty() || !play.broken().empty()) {
      if (std::string wrong = verdict(play); !wrong.empty()) return wrong;
      continue;
    }
    for (const Play::Event& event : events) {
      Play next = play;
      next.run(event);
      settle(next);
      if (seen.insert(next.state()).second) left.push_back(std::move(next));
    }
  }
  states = seen.size();
  return {};
}

// Plays one random order.
template <typename Random>
std::string play_at_random(Play play, Random& lot) {
  std::vector<uint32_t> ranks(play.size());
  for (uint32_t i = 0; i < ranks.size(); ++i) ranks[i] = i;
  std::vector<Play::Event> events;
  for (bool moved = true; moved && play.broken().empty();) {
    moved = false;
    std::shuffle(ranks.begin(), ranks.end(), lot);
    for (const uint32_t rank : ranks) {
      if (lot() % 3 == 0) {
        moved = true;  // perhaps
        continue;
      }
      events.clear();
      play.events_of(rank, events);
      if (events.empty()) continue;
      play.run(events[lot() % events.size()]);
      moved = true;
    }
    if (play.events().empty()) break;
  }
  return verdict(play);
}

}  // namespace herring::collective
