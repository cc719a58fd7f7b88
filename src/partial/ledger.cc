#include "partial/ledger.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "reduce/reduce.h"

namespace herring::partial {

Ledger::Ledger(uint32_t rank, DType dtype, size_t elements, bool pushes)
    : rank_(rank), dtype_(dtype), elements_(elements), bytes_(elements * size_of(dtype)),
      pushes_(pushes) {}

Ledger::Block Ledger::take_block() {
  if (free_.empty()) {
    ++blocks_;
    return Block(new char[std::max<size_t>(bytes_, 1)]);
  }
  Block block = std::move(free_.back());
  free_.pop_back();
  return block;
}

// Adds the second cell to the first. Contributions are summed one after the other in the order of
// production, no matter when they were announced. So the bits of a result depend only on the list
// of contributors.
void Ledger::fold() {
  char* sum = cells_[0].data.get();
  const void* sources[] = {sum, cells_[1].data.get()};
  reduce::combine(sources, 2, sum, elements_, {dtype_, dtype_, ReduceOp::kSum});
  free_.push_back(std::exchange(cells_[1].data, std::move(cells_[0].data)));
  cells_[1].announced = cells_[0].announced;
  cells_[0] = std::move(cells_[1]);
  cells_.erase(cells_.begin() + 1);
}

Join Ledger::announce() {
  for (Cell& cell : cells_) cell.announced = true;
  return {rank_, produced_, last_ ? taken_ + 1 : base_, last_};
}

std::optional<Join> Ledger::announce_recorded() {
  if (cells_.front().announced) return {};
  while (cells_.size() > 1 && cells_.front().upto < cells_.front().place.upto) fold();
  Cell& first = cells_.front();
  if (first.upto != first.place.upto) return {};
  first.announced = true;
  return Join{rank_, first.upto, first.last ? taken_ + 1 : first.base, first.last,
              first.place.round, first.place.contributors};
}

Result<std::optional<Join>> Ledger::produce(const void* data, bool waits, bool last,
                                            const Place& place) {
  if (last_ || (owed_ && !last)) {
    return Status(Code::kInvalidArgument,
                  last_ ? "a contribution after its flush; begin another series"
                        : "a contribution before the previous result was taken");
  }
  if (place.contributors != 0 && place.upto <= produced_) {
    return Status(Code::kInvalidArgument,
                  concat("contribution ", produced_ + 1, " in a round that counts only up to ",
                         place.upto));
  }
  ++produced_;
  owed_ = waits;
  last_ = last;
  base_ = waits ? taken_ + 1 : taken_;
  const bool recorded = place.contributors != 0;
  if (!pushes_ && !recorded) return std::optional(announce());
  cells_.push_back({take_block(), produced_, false, base_, last, place});
  std::memcpy(cells_.back().data.get(), data, bytes_);
  if (recorded) return announce_recorded();
  // A worker that flushes produces nothing more with which this could be announced later.
  const bool blocked = last || (waits && ready_ == taken_);
  if (cells_.size() > 1 && !blocked) return std::optional<Join>();
  return std::optional(announce());
}

Status Ledger::closed(uint32_t round, uint64_t upto, bool last, const char** push) {
  *push = nullptr;
  // A repeated round closes again before it is completed. No round follows the last one.
  if (round != ready_ || (ended_ && (!last || round == closed_))) {
    return breach("round ", round, " has closed, but the next one should be ", ready_,
                  ended_ ? ", and the last round is already known" : "");
  }
  if (last && (!last_ || (upto != produced_ && (upto != 0 || counted_ != produced_)))) {
    return breach("round ", round, " is announced as the last one and counts contribution ", upto,
                  " of ", produced_, " produced", last_ ? "" : ", but more will follow");
  }
  closed_ = round + 1;
  closing_ = upto;
  ended_ = last;
  if (!pushes_ && cells_.empty()) {
    if (upto > produced_ || (upto != 0 && upto <= counted_)) {
      return breach("round ", round, " counts contribution ", upto, " of ", produced_,
                    " produced, ", counted_, " counted before");
    }
    return {};
  }
  if (upto == 0) return {};
  while (cells_.size() > 1 && cells_[0].upto < upto && cells_[1].announced) fold();
  if (cells_.empty() || cells_.front().upto != upto || !cells_.front().announced) {
    return breach("round ", round, " counts contribution ", upto, " of ", produced_, " produced, ",
                  counted_, " counted before");
  }
  *push = cells_.front().data.get();
  return {};
}

char* Ledger::result() {
  if (queue_.size() == ready_ - taken_) queue_.push_back(take_block());
  return queue_.back().get();
}

std::optional<Join> Ledger::completed() {
  result();  // a round without contributors has a result, too
  ++ready_;
  if (closing_ == 0) return {};
  counted_ = std::exchange(closing_, 0);
  if (cells_.empty()) return {};  // the contribution was sent with its announcement
  free_.push_back(std::move(cells_.front().data));
  cells_.pop_front();
  if (cells_.empty() || cells_.front().announced) return {};
  if (cells_.front().place.contributors != 0) return announce_recorded();
  while (cells_.size() > 1) fold();
  return announce();
}

std::optional<Join> Ledger::take() {
  free_.push_back(std::move(queue_.front()));
  queue_.pop_front();
  ++taken_;
  owed_ = false;
  if (!last_ || ended_ || (!cells_.empty() && !cells_.back().announced)) return {};
  return Join{rank_, produced_, taken_ + 1, true};
}

}  // namespace herring::partial
