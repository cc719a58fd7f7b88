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

void Ledger::add(Cell& cell, const void* data) {
  if (!cell.data) cell.data = take_block();
  if (cell.upto == 0) {
    std::memcpy(cell.data.get(), data, bytes_);
    return;
  }
  const void* sources[] = {cell.data.get(), data};
  reduce::combine(sources, 2, cell.data.get(), elements_, {dtype_, dtype_, ReduceOp::kSum});
}

Result<std::optional<Join>> Ledger::produce(const void* data, bool waits, bool last) {
  if (owed_ || last_) {
    return Status(Code::kInvalidArgument,
                  last_ ? "a contribution after the last one"
                        : "a contribution before the result of the one before was taken");
  }
  ++produced_;
  owed_ = waits;
  last_ = last;
  base_ = waits ? taken_ + 1 : taken_;
  if (!pushes_) return std::optional(join_of(produced_));
  Cell& cell = first_.upto == 0 ? first_ : second_;
  add(cell, data);
  cell.upto = produced_;
  if (&cell == &second_ && !((waits || last) && ready_ == taken_)) return std::optional<Join>();
  cell.announced = true;
  return std::optional(join_of(produced_));
}

Status Ledger::closed(uint32_t round, uint64_t upto, const char** push) {
  *push = nullptr;
  // A repeated round closes again before it was completed.
  if (round != closed_ && !(round + 1 == closed_ && ready_ == round)) {
    return {Code::kInternal, concat("round ", round, " has closed, expected is ", closed_)};
  }
  closed_ = round + 1;
  closing_ = upto;
  if (!pushes_) {
    if (upto > produced_ || (upto != 0 && upto <= counted_)) {
      return {Code::kInternal, concat("round ", round, " counts contribution ", upto, " of ",
                                      produced_, " produced, ", counted_, " counted before")};
    }
    return {};
  }
  if (upto != 0 && second_.announced && upto == second_.upto) merge();
  if (upto == 0) return {};
  if (upto != first_.upto || !first_.announced) {
    return {Code::kInternal, concat("round ", round, " counts contribution ", upto,
                                    ", announced was ", first_.upto)};
  }
  *push = first_.data.get();
  return {};
}

void Ledger::merge() {
  add(first_, second_.data.get());
  first_.upto = std::exchange(second_.upto, 0);
  second_.announced = false;
}

char* Ledger::result() {
  if (queue_.size() == ready_ - taken_) queue_.push_back(take_block());
  return queue_.back().get();
}

std::optional<Join> Ledger::completed() {
  result();  // one with nothing in it has its place, too
  ++ready_;
  if (closing_ == 0) {
    // The owner knows of both before it closes the next round: from now on they go together.
    if (second_.announced) merge();
    return {};
  }
  counted_ = std::exchange(closing_, 0);
  if (!pushes_) return {};
  first_.upto = 0;
  first_.announced = false;
  if (second_.upto == 0) return {};
  std::swap(first_, second_);
  if (std::exchange(first_.announced, true)) return {};
  return join_of(first_.upto);
}

void Ledger::take() {
  free_.push_back(std::move(queue_.front()));
  queue_.pop_front();
  ++taken_;
  owed_ = false;
}

}  // namespace herring::partial
