#include "collective/schedule.h"

#include <algorithm>

namespace herring::collective {

void Schedule::reserve(size_t operations) {
  operations_.reserve(operations);
  first_.reserve(operations);
  needs_.reserve(2 * operations);
}

uint32_t Schedule::add(Operation operation, std::initializer_list<uint32_t> needs) {
  const uint32_t number = size();
  operations_.push_back(operation);
  first_.push_back(static_cast<uint32_t>(needs_.size()));
  if (operation.half != kNoOperation) {
    Operation& receive = operations_[operation.half];
    receive.half = number;
    need(operation.half);
  }
  for (const uint32_t earlier : needs) need(earlier);
  if (operation.kept) space_ = std::max(space_, operation.place + operation.range.bytes);
  return number;
}

void Schedule::need(uint32_t earlier) {
  if (earlier != kNoOperation) needs_.push_back(earlier);
}

void Schedule::append(const Schedule& other, uint32_t first) {
  const uint32_t before = size();
  for (uint32_t i = 0; i < other.size(); ++i) {
    Operation operation = other[i];
    if (operation.half != kNoOperation) operation.half += before;
    operations_.push_back(operation);
    first_.push_back(static_cast<uint32_t>(needs_.size()));
    for (const uint32_t earlier : other.needs(i)) need(earlier + before);
    if (other.needs(i).empty() && operation.after == Operation::After::kAll) need(first);
  }
  space_ = std::max(space_, other.space_);
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
