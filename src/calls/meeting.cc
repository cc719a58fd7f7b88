#include "calls/meeting.h"

#include <array>
#include <cstring>
#include <vector>

#include "base/log.h"
#include "calls/calls.h"

namespace herring::calls {

using wire::kMaxAddress;

Result<std::string> Meeting::own_address() {
  if (own_address_.empty()) {
    HERRING_ASSIGN_OR_RETURN(auto& own, core_.executor->listen());
    if (own.size() > kMaxAddress) return defect("the address '", own, "' is too long");
    own_address_ = own;
  }
  return own_address_;
}

void Meeting::when_met(Underway& operation, Key key) {
  const std::shared_ptr<Group>& group = operation.call.group;
  if (!std::exchange(group->meets, true)) begin(group);
  if (group->met) return calls_.mover().start_schedule(operation, key);
  waiting_.emplace(group->id(), Waiting{operation.id, key, core_.loop->now()});
}

void Meeting::check_deadlines(Nanos now) {
  for (const auto& [number, one] : waiting_) {
    const auto operation = calls_.find(one.operation);
    if (!operation) continue;
    const Deadline deadline = core_.deadline(operation->call.timeout);
    if (!deadline.passed(now, one.since, one.since)) continue;
    return core_.ending.fail_now(
        {Code::kTimeout,
         concat(Calls::title(*operation), " has waited ", in_seconds(now - one.since),
                " for the addresses of the other ranks, which all ranks of a group exchange before "
                "its first schedule",
                core_.states.describe(operation->call.group->members().ranks()))});
  }
}

// Schedules always wait for their own group to meet, even if other groups have already told the
// addresses. Otherwise the group's address exchange could still be in flight when the operation
// that needed it is over.
void Meeting::met(const std::shared_ptr<Group>& group) {
  group->met = true;
  std::vector<Waiting> waiting;
  const auto [from, to] = waiting_.equal_range(group->id());
  for (auto one = from; one != to; ++one) waiting.push_back(one->second);
  waiting_.erase(from, to);
  for (const Waiting& one : waiting) {
    const auto operation = calls_.find(one.operation);
    if (operation) calls_.mover().start_schedule(*operation, one.key);
  }
}

// A rank that cannot listen announces an empty address.
void Meeting::begin(const std::shared_ptr<Group>& group) {
  if (auto own = own_address(); !own.ok()) {
    log(LogLevel::kError, "cannot listen for other workers: ", own.status().message());
  }
  auto place = std::make_shared<std::array<char, kMaxAddress>>();
  std::copy(own_address_.begin(), own_address_.end(), place->begin());
  Call call;
  call.group = group;
  call.what = wire::AllGather{};
  call.name = wire::kMeetingName;
  call.buffers = {{{DType::kUInt8, {kMaxAddress}}, place->data()}};
  auto operation = calls_.make(std::move(call));
  if (!operation.ok()) return core_.ending.fail_now(operation.status());
  const Operation* const gathered = (*operation)->handle.get();
  (*operation)->then = [this, place, group, gathered](const Status& status) {
    if (status.ok()) return on_addresses(group, *gathered);
    // If the group is called off, that fails the group's own operations.
    if (core_.ending.begun()) return;
    if (group->called_off().ok()) core_.groups.call_off(group, status);
    met(group);
  };
  calls_.start(*operation);
}

void Meeting::on_addresses(const std::shared_ptr<Group>& group, const Operation& gathered) {
  if (gathered.result_bytes != group->size() * kMaxAddress) {
    return core_.ending.fail_now(breach("the addresses of the workers have ", gathered.result_bytes,
                                   " bytes in all"));
  }
  std::vector<std::string> addresses;
  for (uint32_t index = 0; index < group->size(); ++index) {
    const char* text = gathered.result.get() + index * kMaxAddress;
    addresses.emplace_back(text, strnlen(text, kMaxAddress));
    if (addresses.back().empty()) {
      return core_.ending.fail_now({Code::kConfiguration,
                               concat(core_.cluster.describe_rank(group->rank(index)),
                                      " cannot listen for other workers; its log says why")});
    }
  }
  const Status could = core_.executor->meet(group->members().ranks(), addresses);
  if (!could.ok()) return core_.ending.fail_now(could);
  met(group);
}

}  // namespace herring::calls
