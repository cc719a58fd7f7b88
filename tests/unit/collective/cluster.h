// Runs of all ranks in one process, and devices that hold their arrays.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "collective/run.h"

namespace herring::collective {

using transport::Destinations;

// A device that does its pieces only when told to. Sums and copies each keep their own order.
//
// Devices of near ranks have a second image, which the others read. Which messages are read there
// depends on the two ranks alone, and differs with the direction.
class FakeDevice : public DeviceSide {
 public:
  FakeDevice(const Task& task, uint32_t rank, uint32_t size, std::vector<char> array,
             const std::vector<uint32_t>& near = {})
      : task_(task),
        rank_(rank),
        size_(size),
        schedule_(make_schedule(task.algorithm, rank, size, task.count, size_of(task.dtype))),
        array_(std::move(array)),
        image_(array_.size(), 'x'),
        shown_(array_.size(), 'y') {
    for (const Operation& one : schedule_) {
      near_.push_back(one.is_message() && std::count(near.begin(), near.end(), one.peer) > 0);
    }
    pieces_ = cut(schedule_, array_.size(), task.reduction.prescale != 1.0, near_);
    uint32_t ins = 0;
    for (const Piece& piece : pieces_) {
      const bool out = piece.what == Piece::What::kOut;
      (out ? out_pieces_ : in_pieces_).push_back(piece);
      out ? before_.push_back(ins) : void(++ins);
    }
  }
  char* image() { return image_.data(); }
  const std::vector<char>& array() const { return array_; }
  size_t bytes_out() const { return bytes_out_; }

  bool has_work() const { return can_copy() || can_add(); }
  void work(bool rather_copies) { (rather_copies && can_copy()) || !can_add() ? copy() : add(); }

  const std::vector<Piece>& pieces() const override { return pieces_; }
  uint32_t outs() const override { return outs_; }
  uint32_t ins() const override { return ins_; }
  bool through() const override {
    return outs_ == out_pieces_.size() && ins_ == in_pieces_.size();
  }
  Status failure() const override { return {}; }
  void arrived(uint32_t ins) override { arrived_ = ins; }
  void on_progress(std::function<void()>) override {}
  std::string card_for(uint32_t) override {
    FakeDevice* const self = this;
    return {reinterpret_cast<const char*>(&self), sizeof self};
  }
  Result<Shown> meet(uint32_t peer, std::string_view card) override {
    FakeDevice* other = nullptr;  // of a rank whose array lies on the host
    if (!card.empty()) std::memcpy(&other, card.data(), sizeof other);
    met_[peer] = other;
    return Shown{other != nullptr && is_shown(rank_, peer),
                 other != nullptr && is_shown(peer, rank_)};
  }
  static bool is_shown(uint32_t from, uint32_t to) { return (from * 5 + to * 3) % 4 != 0; }

 private:
  bool can_copy() const {
    if (outs_ == out_pieces_.size() || before_[outs_] > ins_) return false;
    const uint32_t send = out_pieces_[outs_].operation;
    return !near_[send] || met_.contains(schedule_[send].peer);
  }
  bool can_add() const { return ins_ < arrived_; }
  void copy() {
    const Piece& piece = out_pieces_[outs_++];
    const Range range = piece.range;
    const uint32_t to = schedule_[piece.operation].peer;
    const bool shows = near_[piece.operation] && met_[to] != nullptr && is_shown(rank_, to);
    std::memcpy((shows ? shown_ : image_).data() + range.offset, array_.data() + range.offset,
                range.bytes);
    if (!shows) bytes_out_ += range.bytes;
  }
  void add() {
    const Piece& piece = in_pieces_[ins_++];
    char* const to = array_.data() + piece.range.offset;
    const uint32_t from = schedule_[piece.operation].peer;
    const bool reads = piece.what != Piece::What::kScale && near_[piece.operation] &&
                       met_[from] != nullptr && is_shown(from, rank_);
    char* const come = reads ? met_[from]->shown_.data() : image();
    const void* const sources[] = {to, come + piece.range.offset};
    const Reduction& reduction = task_.reduction;
    const bool last = piece.what == Piece::What::kFinish;
    const bool divides = last && reduction.op == ReduceOp::kAverage;
    reduce::Stage stage{task_.dtype, task_.dtype, reduction.op, 1.0, divides ? size_ : 1.0,
                        last ? reduction.postscale : 1.0};
    if (piece.what == Piece::What::kScale) stage.prescale = reduction.prescale;
    const size_t count = piece.range.bytes / size_of(task_.dtype);
    switch (piece.what) {
      case Piece::What::kCopy: reduce::combine(sources + 1, 1, to, count, stage); break;
      case Piece::What::kScale: reduce::combine(sources, 1, to, count, stage); break;
      default: reduce::combine(sources, 2, to, count, stage);
    }
  }

  const Task task_;
  const uint32_t rank_, size_;
  const Schedule schedule_;
  std::vector<char> array_, image_, shown_;
  std::vector<bool> near_;  // by operation
  std::map<uint32_t, FakeDevice*> met_;
  std::vector<Piece> pieces_, out_pieces_, in_pieces_;
  std::vector<uint32_t> before_;
  uint32_t outs_ = 0, ins_ = 0, arrived_ = 0;
  size_t bytes_out_ = 0;
};

// Several runs in one process. Every pair of ranks has an ordered line in each direction. A random
// generator picks which line moves next, and by how much.
class Cluster {
 public:
  // `elsewhere` has, for each rank, the device that holds its array, or null. `arrays` then points
  // to that rank's image.
  Cluster(const Task& task, std::vector<char*> arrays, unsigned seed,
          std::vector<std::shared_ptr<FakeDevice>> elsewhere = {},
          const std::vector<std::vector<uint32_t>>& near = {},
          const std::function<void(uint32_t rank, Task& task)>& change = {})
      : lot_(seed), devices_(std::move(elsewhere)) {
    const auto size = static_cast<uint32_t>(arrays.size());
    for (uint32_t rank = 0; rank < size; ++rank) {
      Task own = task;
      own.data = arrays[rank];
      if (!devices_.empty()) own.elsewhere = devices_[rank];
      if (!near.empty()) own.near = near[rank];
      if (change) change(rank, own);
      wires_.push_back(std::make_unique<Port>(*this, rank));
      runs_.push_back(std::make_unique<Run>(own, rank, size, *wires_[rank]));
    }
    lines_.resize(size * size);
  }

  Run& run(uint32_t rank) { return *runs_[rank]; }

  // Returns false if a run is stuck.
  bool play() {
    // The runs start in random order. Messages of the first are delivered only when all have
    // started.
    std::vector<uint32_t> order(runs_.size());
    for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), lot_);
    for (const uint32_t rank : order) runs_[rank]->start();
    for (;;) {
      std::vector<size_t> busy;
      for (size_t i = 0; i < lines_.size(); ++i) {
        if (!lines_[i].empty()) busy.push_back(i);
      }
      std::vector<uint32_t> at_work;
      for (uint32_t rank = 0; rank < devices_.size(); ++rank) {
        if (devices_[rank] && devices_[rank]->has_work()) at_work.push_back(rank);
      }
      if (busy.empty() && at_work.empty()) {
        if (!late_.empty()) {
          for (const uint32_t rank : std::exchange(late_, {})) runs_[rank]->advance();
          continue;
        }
        break;
      }
      if (busy.empty() || (!at_work.empty() && lot_() % 2)) {
        const uint32_t rank = at_work[lot_() % at_work.size()];
        devices_[rank]->work(lot_() % 2);
        lot_() % 2 ? runs_[rank]->advance() : void(late_.insert(rank));
      } else {
        move(busy[lot_() % busy.size()]);
      }
    }
    bool done = true;
    for (const auto& run : runs_) done &= run->done();
    return done;
  }

 private:
  enum Kind { kGrant, kBlock, kCard, kShown, kRead };
  struct Letter {
    Kind kind;
    uint32_t message, frame;
    std::string bytes;  // copied when the frame leaves: later changes of the array do not count
    const char* data;
    size_t length;
    uint32_t operation;
    size_t arrived = 0;
  };

  class Port : public Run::Wire {
   public:
    Port(Cluster& cluster, uint32_t rank) : cluster_(cluster), rank_(rank) {}
    bool ready_for_grant(uint32_t) override { return true; }
    bool ready_for_block(uint32_t to) override {
      return std::count_if(line(to).begin(), line(to).end(),
                           [](const Letter& letter) { return letter.kind == kBlock; }) < 2;
    }
    void grant(uint32_t to, uint32_t message, uint32_t frames) override {
      line(to).push_back({kGrant, message, frames, {}, nullptr, 0, 0});
    }
    void card(uint32_t to, std::string text) override {
      line(to).push_back({kCard, 0, 0, std::move(text), nullptr, 0, 0});
    }
    void shown(uint32_t to, uint32_t message, uint32_t frames) override {
      line(to).push_back({kShown, message, frames, {}, nullptr, 0, 0});
    }
    void read(uint32_t to, uint32_t message) override {
      line(to).push_back({kRead, message, 0, {}, nullptr, 0, 0});
    }
    void block(uint32_t to, uint32_t message, uint32_t frame, const char* data, size_t bytes,
               uint32_t operation) override {
      line(to).push_back({kBlock, message, frame, {}, data, bytes, operation});
    }

   private:
    std::deque<Letter>& line(uint32_t to) {
      return cluster_.lines_[rank_ * cluster_.runs_.size() + to];
    }
    Cluster& cluster_;
    const uint32_t rank_;
  };

  void move(size_t index) {
    const auto from = static_cast<uint32_t>(index / runs_.size());
    const auto to = static_cast<uint32_t>(index % runs_.size());
    Letter& letter = lines_[index].front();
    Run& run = *runs_[to];
    if (letter.kind != kBlock) {
      const Letter one = letter;
      lines_[index].pop_front();
      const Status status = one.kind == kGrant   ? run.on_grant(from, one.message, one.frame)
                            : one.kind == kCard  ? run.on_card(from, one.bytes)
                            : one.kind == kShown ? run.on_shown(from, one.message, one.frame)
                                                 : run.on_read(from, one.message);
      ASSERT_TRUE(status.ok()) << status.message();
      run.advance();
      return;
    }
    if (letter.bytes.empty()) letter.bytes.assign(letter.data, letter.length);
    if (letter.arrived == 0) {
      Destinations out;
      const Status status = run.on_block(from, letter.message, letter.frame, letter.length,
                                         scratch(to, from), out);
      ASSERT_TRUE(status.ok()) << status.message();
      places_[index] = static_cast<char*>(out.pieces[0].iov_base);
    }
    const size_t left = letter.length - letter.arrived;
    const size_t some = lot_() % 2 ? left : std::min<size_t>(left, 1 + lot_() % 50'000);
    std::memcpy(places_[index] + letter.arrived, letter.bytes.data() + letter.arrived, some);
    letter.arrived += some;
    const size_t arrived = letter.arrived;
    const bool whole = arrived == letter.length;
    const uint32_t operation = letter.operation;
    const size_t length = letter.length;
    if (whole) lines_[index].pop_front();
    run.on_bytes(from, scratch(to, from), arrived);
    if (whole) runs_[from]->sent(operation, length);
  }

  // Each pair of ranks has its own scratch buffer, as each flow does.
  char* scratch(uint32_t to, uint32_t from) {
    auto& buffer = scratch_[to * runs_.size() + from];
    if (buffer.empty()) buffer.resize(kFrameBytes);
    return buffer.data();
  }

  std::mt19937 lot_;
  std::vector<std::shared_ptr<FakeDevice>> devices_;
  std::set<uint32_t> late_;  // ranks not yet told what their device has done
  std::vector<std::unique_ptr<Port>> wires_;
  std::vector<std::unique_ptr<Run>> runs_;
  std::map<size_t, std::vector<char>> scratch_;
  std::map<size_t, char*> places_;  // where the arriving frame goes, by line
  std::vector<std::deque<Letter>> lines_;
};

}  // namespace herring::collective
