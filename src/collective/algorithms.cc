// The schedules of all algorithms.
#include <utility>
#include <vector>

#include "collective/schedule.h"
#include "plan/split.h"

namespace herring::collective {
namespace {

// Elements [first, last).
struct Elements {
  uint64_t first = 0, last = 0;
};

// Adds messages to a schedule. A message without elements is left out. Each function returns the
// operation after which the bytes are sent, there, or summed.
class Writer {
 public:
  using Needs = std::initializer_list<uint32_t>;

  explicit Writer(size_t item) : item_(item) { schedule_.reserve(16); }

  uint32_t send(uint32_t to, Elements elements, Needs needs = {}) {
    if (elements.first == elements.last) return kNoOperation;
    return schedule_.add(
        {.kind = Operation::Kind::kSend, .peer = to, .range = range(elements)}, needs);
  }
  uint32_t copy(uint32_t from, Elements elements, Needs needs = {}) {
    if (elements.first == elements.last) return kNoOperation;
    const uint32_t number = schedule_.add(
        {.kind = Operation::Kind::kReceive, .peer = from, .range = range(elements)}, needs);
    schedule_.need(paced(number));
    return number;
  }
  uint32_t sum(uint32_t from, Elements elements, bool finishes, Needs needs = {}) {
    if (elements.first == elements.last) return kNoOperation;
    const uint32_t receive = schedule_.add(
        {.kind = Operation::Kind::kReceive, .peer = from, .range = range(elements)});
    schedule_.need(paced(schedule_.size()));
    return compute(receive, finishes, needs);
  }
  // All of what is received has a place in the working space once `free` is complete there.
  uint32_t sum_kept(uint32_t from, Elements elements, bool finishes, size_t place, uint32_t free,
                    Needs needs) {
    if (elements.first == elements.last) return kNoOperation;
    const uint32_t receive = schedule_.add({.kind = Operation::Kind::kReceive,
                                            .kept = true,
                                            .peer = from,
                                            .range = range(elements),
                                            .place = place},
                                           {free});
    return compute(receive, finishes, needs);
  }
  void need(uint32_t earlier) { schedule_.need(earlier); }

  size_t bytes(Elements elements) const { return range(elements).bytes; }
  Schedule& schedule() { return schedule_; }

 private:
  Range range(Elements e) const { return {e.first * item_, (e.last - e.first) * item_}; }
  uint32_t compute(uint32_t receive, bool finishes, Needs needs) {
    return schedule_.add({.kind = Operation::Kind::kCompute,
                          .finishes = finishes,
                          .half = receive,
                          .range = schedule_[receive].range},
                         needs);
  }
  // Returns the operation that must come before the next receive, which is complete with `end`.
  uint32_t paced(uint32_t end) {
    ends_.push_back(end);
    return ends_.size() > kLookAhead + 1 ? ends_[ends_.size() - kLookAhead - 2] : kNoOperation;
  }

  const size_t item_;
  Schedule schedule_;
  std::vector<uint32_t> ends_;  // of all receives
};

void server(Writer& out, uint32_t rank, uint32_t size, Elements all) {
  if (rank != 0) {
    out.copy(0, all, {out.send(0, all)});
    return;
  }
  uint32_t sum = kNoOperation;
  for (uint32_t peer = 1; peer < size; ++peer) sum = out.sum(peer, all, peer + 1 == size, {sum});
  for (uint32_t peer = 1; peer < size; ++peer) out.send(peer, all, {sum});
}

void tree(Writer& out, uint32_t rank, uint32_t size, Elements all) {
  std::vector<uint32_t> children;  // the nearest first
  uint32_t bit = 1;
  for (; bit < size && (rank & bit) == 0; bit *= 2) {
    if (rank + bit < size) children.push_back(rank + bit);
  }
  uint32_t there = kNoOperation;
  for (size_t i = 0; i < children.size(); ++i) {
    there = out.sum(children[i], all, rank == 0 && i + 1 == children.size(), {there});
  }
  if (rank != 0) there = out.copy(rank - bit, all, {out.send(rank - bit, all, {there})});
  // Sends first to the child with the most ranks below it.
  for (size_t i = children.size(); i > 0; --i) out.send(children[i - 1], all, {there});
}

void ring(Writer& out, uint32_t rank, uint32_t size, uint64_t count) {
  const uint32_t next = (rank + 1) % size, previous = (rank + size - 1) % size;
  const auto block = [&](uint32_t index) -> Elements {
    const plan::Part part = plan::even_split(count, size, index % size);
    return {part.first, part.first + part.count};
  };
  out.schedule().reserve(size_t{5} * size);
  std::vector<uint32_t> sent;  // own blocks and sums
  uint32_t there = kNoOperation;
  for (uint32_t s = 0; s + 1 < size; ++s) {
    sent.push_back(out.send(next, block(rank + size - s), {there}));
    there = out.sum(previous, block(rank + 2 * size - s - 1), s + 2 == size);
  }
  for (uint32_t s = 0; s + 1 < size; ++s) {
    out.send(next, block(rank + size + 1 - s), {there});
    // The sum that this rank sent from there in step s is replaced by the result.
    there = out.copy(previous, block(rank + size - s), {sent[s]});
  }
}

// A surplus rank's part of a butterfly or of doubling.
void hand_over(Writer& out, uint32_t neighbour, Elements all) {
  out.copy(neighbour, all, {out.send(neighbour, all)});
}

void butterfly(Writer& out, uint32_t rank, uint32_t size, Elements all) {
  const PowerOfTwo ranks(size);
  if (ranks.is_surplus(rank)) return hand_over(out, rank + 1, all);
  uint32_t sum = kNoOperation;
  if (ranks.has_surplus(rank)) sum = out.sum(rank - 1, all, false);
  const uint32_t id = ranks.id_of(rank);

  struct Halving {
    uint32_t partner;
    Elements kept, given;
    uint32_t sent;
  };
  std::vector<Halving> halvings;
  Elements mine = all;
  for (uint32_t distance = ranks.power / 2; distance > 0; distance /= 2) {
    const uint64_t middle = mine.first + (mine.last - mine.first) / 2;
    Elements kept{mine.first, middle}, given{middle, mine.last};
    if (id & distance) std::swap(kept, given);
    const uint32_t partner = ranks.rank_of(id ^ distance);
    const uint32_t sent = out.send(partner, given, {sum});
    sum = out.sum(partner, kept, distance == 1, {sum});
    halvings.push_back({partner, kept, given, sent});
    mine = kept;
  }
  // Results that are there: the last sum and what has come since.
  std::vector<uint32_t> there = {sum};
  const auto send_all_there = [&](uint32_t to, Elements elements) {
    if (out.send(to, elements) == kNoOperation) return;
    for (const uint32_t part : there) out.need(part);
  };
  for (size_t i = halvings.size(); i > 0; --i) {
    const Halving& step = halvings[i - 1];
    send_all_there(step.partner, step.kept);
    there.push_back(out.copy(step.partner, step.given, {step.sent}));
  }
  if (ranks.has_surplus(rank)) send_all_there(rank - 1, all);
}

void doubling(Writer& out, uint32_t rank, uint32_t size, Elements all) {
  const PowerOfTwo ranks(size);
  if (ranks.is_surplus(rank)) return hand_over(out, rank + 1, all);
  uint32_t sum = kNoOperation;
  if (ranks.has_surplus(rank)) sum = out.sum(rank - 1, all, false);
  const uint32_t id = ranks.id_of(rank);
  // What partners send has two places in turn, so that it may come while this rank still makes its
  // own sum of the step before.
  uint32_t in_place[2] = {kNoOperation, kNoOperation};
  uint32_t turn = 0;
  for (uint32_t distance = 1; distance < ranks.power; distance *= 2, turn = 1 - turn) {
    const uint32_t partner = ranks.rank_of(id ^ distance);
    const uint32_t sent = out.send(partner, all, {sum});
    sum = out.sum_kept(partner, all, 2 * distance == ranks.power, turn * out.bytes(all),
                       in_place[turn], {sent});
    in_place[turn] = sum;
  }
  if (ranks.has_surplus(rank)) out.send(rank - 1, all, {sum});
}

}  // namespace

PowerOfTwo::PowerOfTwo(uint32_t size) {
  while (power <= size / 2) power *= 2;
  extra = size - power;
}

Schedule make_schedule(Algorithm algorithm, uint32_t rank, uint32_t size, uint64_t count,
                       size_t item) {
  if (size < 2 || algorithm == Algorithm::kHerring) return {};
  Writer out(item);
  switch (algorithm) {
    case Algorithm::kHerring: break;
    case Algorithm::kServer: server(out, rank, size, {0, count}); break;
    case Algorithm::kTree: tree(out, rank, size, {0, count}); break;
    case Algorithm::kRing: ring(out, rank, size, count); break;
    case Algorithm::kButterfly: butterfly(out, rank, size, {0, count}); break;
    case Algorithm::kDoubling: doubling(out, rank, size, {0, count}); break;
  }
  return std::move(out.schedule());
}

}  // namespace herring::collective
