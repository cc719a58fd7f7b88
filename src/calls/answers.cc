#include "calls/answers.h"

#include <utility>

namespace herring::calls {

Status Answers::receive(uint64_t number) {
  if (joined_) return {};
  if (number <= highest_) {
    if (holes_.erase(number) == 0) return breach("a server gave answer ", number, " twice");
    return {};
  }
  if (number - highest_ - 1 > wire::kMostHoles - holes_.size()) {
    return breach("a server gave answer ", number, " after answer ", highest_);
  }
  while (++highest_ < number) holes_.insert(holes_.end(), highest_);
  return {};
}

void Answers::keep(wire::KeptAnswer answer) {
  AnswerStore& kept = answer.type == wire::FrameType::kOpError ? errors_ : results_;
  kept.bytes += answer.bytes();
  kept.answers.push_back(std::move(answer));
  while (kept.answers.size() > wire::kMostKept || kept.bytes > wire::kMostKeptBytes) {
    kept.bytes -= kept.answers.front().bytes();
    kept.answers.pop_front();
  }
}

void Answers::settle(uint64_t number) {
  for (AnswerStore* kept : {&results_, &errors_}) {
    std::erase_if(kept->answers, [&](const wire::KeptAnswer& one) {
      if (one.number > number) return false;
      kept->bytes -= one.bytes();
      return true;
    });
  }
}

void Answers::all_joined(uint64_t number) {
  joined_ = false;
  highest_ = number;
  holes_.clear();
}

wire::Handover Answers::tell() const {
  wire::Handover handover;
  handover.joined = joined_;
  handover.highest = highest_;
  handover.holes = {holes_.begin(), holes_.end()};
  for (const AnswerStore* kept : {&results_, &errors_}) {
    handover.kept.insert(handover.kept.end(), kept->answers.begin(), kept->answers.end());
  }
  return handover;
}

}  // namespace herring::calls
