#include "collective/activation.h"

#include <algorithm>
#include <utility>

namespace herring::collective {

Activated activate(uint32_t rank, uint32_t size, const Schedule& collective) {
  using Kind = Operation::Kind;
  constexpr auto kAny = Operation::After::kAny;
  Activated all;
  Schedule& out = all.schedule;
  const PowerOfTwo ranks(size);
  all.initiate = out.add({.kind = Kind::kNop, .after = kAny});
  std::vector<uint32_t> causes = {all.initiate};  // of what comes next
  const auto send = [&](uint32_t to) {
    out.add({.kind = Kind::kSend, .after = kAny, .peer = to});
    for (const uint32_t cause : causes) out.need(cause);
  };
  const auto receive = [&](uint32_t from) {
    return out.add({.kind = Kind::kReceive, .peer = from});
  };
  if (size > 1 && ranks.is_surplus(rank)) {
    send(rank + 1);
    causes.push_back(receive(rank + 1));
  } else {
    const uint32_t id = ranks.id_of(rank);
    const bool has_surplus = ranks.has_surplus(rank);
    const uint32_t from_surplus = has_surplus ? receive(rank - 1) : kNoOperation;
    if (has_surplus) causes.push_back(from_surplus);
    for (uint32_t distance = 1; distance < ranks.power; distance *= 2) {
      const uint32_t partner = ranks.rank_of(id ^ distance);
      send(partner);
      causes.push_back(receive(partner));
    }
    if (has_surplus) {
      std::erase(causes, from_surplus);  // it is active
      send(rank - 1);
      causes.push_back(from_surplus);
    }
  }
  all.active = out.add({.kind = Kind::kNop, .after = kAny});
  for (const uint32_t cause : causes) out.need(cause);
  out.append(collective, all.active);
  if (collective.empty()) out.add({}, {all.active});
  return all;
}

uint32_t initiator_of(uint64_t seed, uint64_t round, uint32_t size) {
  // SplitMix64. The product's high half is as even as 64 bits allow for any size.
  uint64_t z = seed + (round + 1) * 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  z ^= z >> 31;
  return static_cast<uint32_t>((z >> 32) * size >> 32);
}

Persistent::Persistent(const Activated& schedule, uint32_t most_ahead, Initiates initiates)
    : schedule_(schedule), most_ahead_(most_ahead), initiates_(std::move(initiates)) {
  go_on();
}

bool Persistent::is_active() const {
  return instance_ != nullptr && instance_->is_complete(schedule_.active);
}

void Persistent::go_on() {
  for (;; ++number_, instance_.reset()) {
    if (instance_ == nullptr) {
      if (number_ >= calls_ + most_ahead_) return;
      instance_ = std::make_unique<Instance>(schedule_.schedule);
      for (const uint32_t receive : kept_[number_]) instance_->complete(receive);
      kept_.erase(number_);
    }
    if (calls_ > number_ && !is_active() && initiates_(number_)) {
      instance_->fire(schedule_.initiate);
    }
    if (!instance_->done()) return;
  }
}

void Persistent::call() {
  ++calls_;
  go_on();
}

Status Persistent::on_signal(uint64_t instance, uint32_t receive) {
  const Schedule& schedule = schedule_.schedule;
  if (receive >= schedule.size() || schedule[receive].kind != Operation::Kind::kReceive ||
      !schedule[receive].is_signal() || instance > number_ + 1) {
    return breach("a signal that cannot exist in instance ", number_, ": ", receive,
                  " of instance ", instance);
  }
  if (instance < number_) return {};
  if (instance > number_ || instance_ == nullptr) {
    std::vector<uint32_t>& kept = kept_[instance];
    if (std::find(kept.begin(), kept.end(), receive) != kept.end()) {
      return breach("signal ", receive, " of instance ", instance, " has come twice");
    }
    kept.push_back(receive);
    return {};
  }
  if (instance_->is_complete(receive)) {
    return breach("signal ", receive, " of instance ", instance, " has come twice");
  }
  instance_->complete(receive);
  return {};
}

void Persistent::complete(uint32_t operation) {
  instance_->complete(operation);
  go_on();
}

}  // namespace herring::collective
