#include "collective/schedule.h"

#include <utility>

#include "plan/split.h"

namespace herring::collective {
namespace {

// Elements [first, last).
struct Elements {
  uint64_t first = 0, last = 0;
};

class Writer {
 public:
  explicit Writer(size_t item) : item_(item) {}

  void send(uint32_t to, Elements elements) { exchange(to, elements, kNobody, {}, {}); }
  void receive(uint32_t from, Elements elements, Combine combine) {
    exchange(kNobody, {}, from, elements, combine);
  }
  void exchange(uint32_t to, Elements out, uint32_t from, Elements in, Combine combine) {
    Step step;
    if (out.last > out.first) {
      step.to = to;
      step.send = range(out);
    }
    if (in.last > in.first) {
      step.from = from;
      step.receive = range(in);
      step.combine = combine;
    }
    schedule_.push_back(step);
  }
  Schedule take() { return std::move(schedule_); }

 private:
  Range range(Elements e) const { return {e.first * item_, (e.last - e.first) * item_}; }

  const size_t item_;
  Schedule schedule_;
};

void server(Writer& out, uint32_t rank, uint32_t size, Elements all) {
  if (rank != 0) {
    out.send(0, all);
    out.receive(0, all, Combine::kCopy);
    return;
  }
  for (uint32_t peer = 1; peer < size; ++peer) {
    out.receive(peer, all, peer + 1 == size ? Combine::kFinish : Combine::kReduce);
  }
  for (uint32_t peer = 1; peer < size; ++peer) out.send(peer, all);
}

void tree(Writer& out, uint32_t rank, uint32_t size, Elements all) {
  std::vector<uint32_t> children;  // the nearest first
  uint32_t bit = 1;
  for (; bit < size && (rank & bit) == 0; bit *= 2) {
    if (rank + bit < size) children.push_back(rank + bit);
  }
  for (size_t i = 0; i < children.size(); ++i) {
    const bool last = rank == 0 && i + 1 == children.size();
    out.receive(children[i], all, last ? Combine::kFinish : Combine::kReduce);
  }
  if (rank != 0) {
    out.send(rank - bit, all);
    out.receive(rank - bit, all, Combine::kCopy);
  }
  // Sends first to the child with the most ranks below it.
  for (size_t i = children.size(); i > 0; --i) out.send(children[i - 1], all);
}

void ring(Writer& out, uint32_t rank, uint32_t size, uint64_t count) {
  const uint32_t next = (rank + 1) % size, previous = (rank + size - 1) % size;
  const auto block = [&](uint32_t index) -> Elements {
    const plan::Part part = plan::even_split(count, size, index % size);
    return {part.first, part.first + part.count};
  };
  for (uint32_t s = 0; s + 1 < size; ++s) {
    out.exchange(next, block(rank + size - s), previous, block(rank + 2 * size - s - 1),
                 s + 2 == size ? Combine::kFinish : Combine::kReduce);
  }
  for (uint32_t s = 0; s + 1 < size; ++s) {
    out.exchange(next, block(rank + size + 1 - s), previous, block(rank + size - s),
                 Combine::kCopy);
  }
}

void butterfly(Writer& out, uint32_t rank, uint32_t size, Elements all) {
  uint32_t power = 1;
  while (power * 2 <= size) power *= 2;
  // The even ones among the first 2 * extra ranks are the surplus.
  const uint32_t extra = size - power;
  const bool folded = rank < 2 * extra;
  if (folded && rank % 2 == 0) {
    out.send(rank + 1, all);
    out.receive(rank + 1, all, Combine::kCopy);
    return;
  }
  if (folded) out.receive(rank - 1, all, Combine::kReduce);
  const uint32_t id = folded ? rank / 2 : rank - extra;
  const auto rank_of = [&](uint32_t other) {
    return other < extra ? 2 * other + 1 : other + extra;
  };

  struct Halving {
    uint32_t partner;
    Elements kept, given;
  };
  std::vector<Halving> halvings;
  Elements mine = all;
  for (uint32_t distance = power / 2; distance > 0; distance /= 2) {
    const uint64_t middle = mine.first + (mine.last - mine.first) / 2;
    Elements kept{mine.first, middle}, given{middle, mine.last};
    if (id & distance) std::swap(kept, given);
    const uint32_t partner = rank_of(id ^ distance);
    out.exchange(partner, given, partner, kept,
                 distance == 1 ? Combine::kFinish : Combine::kReduce);
    halvings.push_back({partner, kept, given});
    mine = kept;
  }
  for (size_t i = halvings.size(); i > 0; --i) {
    const Halving& step = halvings[i - 1];
    out.exchange(step.partner, step.kept, step.partner, step.given, Combine::kCopy);
  }
  if (folded) out.send(rank - 1, all);
}

}  // namespace

Schedule make_schedule(Algorithm algorithm, uint32_t rank, uint32_t size, uint64_t count,
                       size_t item) {
  Writer out(item);
  if (size < 2) return {};
  switch (algorithm) {
    case Algorithm::kHerring: break;
    case Algorithm::kServer: server(out, rank, size, {0, count}); break;
    case Algorithm::kTree: tree(out, rank, size, {0, count}); break;
    case Algorithm::kRing: ring(out, rank, size, count); break;
    case Algorithm::kButterfly: butterfly(out, rank, size, {0, count}); break;
  }
  return out.take();
}

Result<Choice> parse_algorithm(const std::string& name) {
  constexpr const char* kOnDevice = "cuda-butterfly";
  if (name == kOnDevice) return Choice{Algorithm::kButterfly, true};
  std::string all;
  for (int i = 0; i < wire::kNumAlgorithms; ++i) {
    const auto algorithm = static_cast<Algorithm>(i);
    if (name == wire::name_of(algorithm)) return Choice{algorithm};
    all += concat("'", wire::name_of(algorithm), "', ");
  }
  return Status(Code::kInvalidArgument,
                concat("algorithm '", name, "' does not exist; use one of ", all, "'", kOnDevice,
                       "'"));
}

}  // namespace herring::collective
