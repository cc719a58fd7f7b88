#include "engine/ending.h"

#include <utility>

#include "engine/core.h"

namespace herring::engine {
namespace {

// For so long servers and neighbours may read what is theirs to read, before the callers have their
// memory back. Those that are alive need a few milliseconds.
constexpr Nanos kLongestReading = 500 * kMillisecond, kReadingPoll = kMillisecond;

}  // namespace

Status Ending::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

Status Ending::incomplete(const Group& group) const {
  {
    std::lock_guard lock(mutex_);
    if (stopped_) {
      return {Code::kShutdown, "shutdown() has ended the job that this belongs to; after another "
                               "init(), make it anew (wrap the model again)"};
    }
    if (!failure_.ok()) return failure_;
  }
  return group.failure();
}

bool Ending::stop() {
  std::lock_guard lock(mutex_);
  return !std::exchange(stopped_, true);
}

bool Ending::stopped() const {
  std::lock_guard lock(mutex_);
  return stopped_;
}

void Ending::fail(const Status& status) {
  core_.loop->post([this, status] { fail_now(status); });
}

void Ending::abort(const Status& status) {
  fail(status);
  core_.options.abort(status.message());
}

void Ending::fail_now(const Status& status, bool leaves) {
  if (begun()) return;
  why_ = status;
  leaves_ = leaves;
  core_.links->stop();
  core_.node_stage->stop();
  end_when_read(core_.loop->now() + kLongestReading);
}

// If a caller changed memory that a server or a neighbour has yet to read, the other ranks might
// take what these make of it for a result, before they hear that the job has failed.
void Ending::end_when_read(Nanos until) {
  const bool read = !core_.links->lends() && !core_.node_stage->is_seen();
  if (read || core_.loop->now() >= until) return end();
  core_.loop->call_after(kReadingPoll, [this, until] { end_when_read(until); });
}

void Ending::end() {
  {
    std::lock_guard lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = why_;
  }
  if (why_.code() != Code::kShutdown) core_.options.failed(why_);
  failing_ = true;
  end_all();
}

void Ending::end_after_loop(const Status& left) {
  if (!begun()) {
    why_ = left;
    leaves_ = true;
  }
  end();
}

void Ending::on_exhausted(const Status& why) {
  failing_ ? end_all() : begun() ? end() : fail_now(why);
}

// If a step lacks memory, this function is called again and continues where it stopped.
void Ending::end_all() {
  const Status status = failure();
  // First, nothing here may access callers' memory any more; then the callers are told. Neighbours
  // may still access it for a moment, so memory that they know is not reused.
  leaves_ ? core_.links->finish() : core_.links->clear();
  core_.heap->retire_all();
  leaves_ ? core_.executor->finish() : core_.executor->clear();
  core_.node_stage->clear();
  for (Carrier* carrier : core_.carriers) carrier->fail_all(status);
  // Only this process knows of the fault; without abort() the other ranks would wait for it.
  if (status.is_fault()) core_.options.abort(status.message());
  // Servers and neighbours tell a missed deadline at most to those who wait already.
  if (status.code() == Code::kTimeout) core_.options.end_part(status);
  // Rank 0 hosts the rendezvous, without which only these connections tell neighbours. Servers see
  // that those to them have ended.
  if (!leaves_ && core_.presence.has_left(0)) core_.bus->end_sending();
  failing_ = false;
}

}  // namespace herring::engine
