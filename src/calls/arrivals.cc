#include "calls/arrivals.h"

#include <algorithm>

#include "base/log.h"
#include "calls/calls.h"

namespace herring::calls {
namespace {

constexpr const char* kHint =
    "a kernel queued before the call has not finished, or waits for another rank";

}  // namespace

void Arrivals::expect(const std::shared_ptr<Underway>& operation) {
  if (operation->came) return;
  const Group& group = *operation->call.group;
  Status why = core_.ending.failure();
  if (why.ok()) why = group.called_off();
  if (!why.ok()) return calls_.drop(*operation, why);
  expected_.emplace(operation, false);
}

void Arrivals::come(const std::shared_ptr<Underway>& operation, const Status& out) {
  operation->came = true;
  if (operation->handle->done()) return;
  expected_.erase(operation);
  if (!out.ok()) return refuse(*operation, out.message(), out);
  or_tell([&](const Status& why) { operation->handle->set(why); },
          [&] { calls_.start(operation); });
}

void Arrivals::refuse(Underway& operation, const std::string& why, const Status& told) {
  const Call& call = operation.call;
  calls_.refuse(call.group, call.what, call.name, why);
  calls_.drop(operation, told);
}

void Arrivals::check_deadlines(Nanos now) {
  std::vector<std::shared_ptr<Underway>> overdue;
  for (auto& [operation, warned] : expected_) {
    const Nanos waited = now - operation->started;
    if (waited > core_.timeout_ms(operation->call.timeout) * kMillisecond) {
      overdue.push_back(operation);
    } else if (!warned && waited > core_.warn_ms() * kMillisecond) {
      warned = true;
      log(LogLevel::kWarning, Calls::title(*operation), ": GPU ",
          operation->handle->copier()->device().index(), " has not reached the call after ",
          in_seconds(waited), ": ", kHint);
    }
  }
  for (const auto& operation : overdue) {
    expected_.erase(operation);
    const std::string why =
        concat("GPU ", operation->handle->copier()->device().index(),
               " has not reached the call after ", in_seconds(now - operation->started), ": ",
               kHint,
               ". Check the kernels launched before the call, or pass a longer timeout");
    refuse(*operation, why,
           {Code::kTimeout, concat(Calls::title(*operation), ": ", why)});
  }
}

bool Arrivals::any(const Group& group) const {
  return std::any_of(expected_.begin(), expected_.end(), [&group](const auto& one) {
    return one.first->call.group.get() == &group;
  });
}

void Arrivals::call_off(const Group& group, const Status& why) {
  std::vector<std::shared_ptr<Underway>> ended;
  for (const auto& [operation, warned] : expected_) {
    if (operation->call.group.get() == &group) ended.push_back(operation);
  }
  for (const auto& operation : ended) {
    expected_.erase(operation);
    calls_.drop(*operation, why);
  }
}

void Arrivals::fail_all(const Status& why) {
  while (!expected_.empty()) calls_.drop(*expected_.extract(expected_.begin()).key(), why);
}

}  // namespace herring::calls
