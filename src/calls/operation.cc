#include "calls/operation.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/clock.h"
#include "base/log.h"
#include "device/kept.h"

namespace herring::calls {
namespace {

constexpr size_t kResultAlignment = 64;  // in host memory

size_t aligned(size_t bytes) {
  return (bytes + kResultAlignment - 1) / kResultAlignment * kResultAlignment;
}

}  // namespace

// Results on their way to a device.
struct Operation::Return {
  explicit Return(std::shared_ptr<SharedHeap> heap) : heap(std::move(heap)) {}
  ~Return() {
    if (memory != nullptr) heap->free(memory);
  }
  Return(const Return&) = delete;
  Return& operator=(const Return&) = delete;

  bool is_pinned() const {
    return copies.empty() || heap->is_pinned(copies.front().host);
  }

  const std::shared_ptr<SharedHeap> heap;
  device::Flag flag;                 // the copies begin when it has the value
  uint32_t value = 0;
  std::vector<device::Copy> copies;
  char* memory = nullptr;            // null: the copies come from the staging
  std::vector<char*> results;        // in the memory, by array
};

Operation::Operation(Call call, std::shared_ptr<transport::EventLoop> loop,
                     std::shared_ptr<SharedHeap> heap, EndJob end_job)
    : Future(std::move(loop)), end_job_(std::move(end_job)), call_(std::move(call)),
      staging_(std::move(heap)) {}

std::string Operation::where() const {
  return concat(call_.title(), call_.group->members().suffix(),
                goes_out_.load() ? concat(", which GPU ", copier()->device().index(),
                                          " has not reached")
                                 : "");
}

Status Operation::prepare(const std::function<NearMembers(const Call&)>& near, bool joined) {
  // Checked first, because everything below would break a stream capture.
  for (const device::Stream stream : call_.streams) {
    HERRING_RETURN_IF_ERROR(copier()->device().check_not_capturing(stream));
  }
  if (call_.list) {
    return pack(!joined && wire::gives_data(call_.what, call_.group->index()));
  }
  if (call_.buffers.empty()) return {};
  const Buffer& one = call_.buffers.front();
  if (!on_device()) {
    bundles_.push_back({one.array, one.send, one.receive});
    return {};
  }
  if (call_.device_sums) {
    HERRING_RETURN_IF_ERROR(
        DeviceSums::create(call_, near(call_), staging_.heap(), loop_of()).move_to(sums_));
  }
  if (sums_ != nullptr) {
    bundles_.push_back({one.array, sums_->image(), sums_->image()});
    return {};
  }
  Status why;
  char* const staged = stage(one.array.bytes(), why);
  bundles_.push_back({one.array, staged, staged});
  return why;
}

char* Operation::stage(size_t bytes, Status& why) {
  why = staging_.allocate(
      bytes, on_device() ? Use::devices_at(copier()->memory_node()) : Use::kHost);
  return why.ok() ? staging_.memory() : nullptr;
}

std::vector<device::Copy> Operation::device_copies() {
  std::vector<device::Copy> copies;
  if (!list_) {
    const Buffer& one = call_.buffers.front();
    copies.push_back({one.on_device, staging_.memory(), one.array.bytes()});
    return copies;
  }
  list_->pack(staging_.memory(), [&](char* staged, uint32_t i, size_t first, size_t bytes) {
    copies.push_back({call_.buffers[i].on_device + first, staged, bytes});
  });
  return copies;
}

Status Operation::bring_out(device::Watcher::Then then) {
  const bool gives = wire::gives_data(call_.what, call_.group->index());
  goes_out_.store(true);
  const Status queued = call_.copier->out(
      call_.streams, gives ? device_copies() : std::vector<device::Copy>(),
      [this, then = std::move(then)](const Status& out) {  // copies own a share of this
        gone_out();
        then(out);
      });
  if (!queued.ok()) gone_out();
  return queued;
}

void Operation::gone_out() {
  std::function<void()> then;
  {
    std::lock_guard lock(going_out_);
    goes_out_.store(false);
    then = std::exchange(after_out_, nullptr);
  }
  if (then) then();
}

void Operation::when_out(std::function<void()> then) {
  {
    std::lock_guard lock(going_out_);
    if (goes_out_.load()) return void(after_out_ = std::move(then));
  }
  then();
}

Status Operation::check_device() {
  if (sums_ != nullptr) return end_if_lost(sums_->check());
  return on_device() ? end_if_lost(copier()->check()) : Status();
}

Status Operation::end_if_lost(const Status& why) {
  if (why.code() != Code::kDevice || copier()->check().ok()) return why;
  // The task runs only as long as the loop does, and the engine lives longer.
  loop_of()->post([self = shared_from_this(), why] { self->end_job_(why); });
  return why;
}

Status Operation::take_back(const std::vector<device::Stream>& streams) {
  std::lock_guard lock(taking_back_);
  const Status taken = [&]() -> Status {
    if (taken_back_ == nullptr) HERRING_RETURN_IF_ERROR(queue_back(streams));
    for (const device::Stream stream : streams) HERRING_RETURN_IF_ERROR(copier()->join(stream));
    return {};
  }();
  return end_if_lost(taken);
}

Status Operation::queue_back(const std::vector<device::Stream>& streams) {
  auto taken = std::make_shared<Future>(loop_of());
  taken->continue_from(*this);
  device::Copier& copier = *call_.copier;
  for (const device::Stream stream : streams) HERRING_RETURN_IF_ERROR(copier.follow(stream));
  HERRING_RETURN_IF_ERROR(copier.back(device_copies(), shared_from_this()));
  // The callback keeps the staging memory until the device is done with it.
  HERRING_RETURN_IF_ERROR(
      copier.when_back([self = shared_from_this(), taken](const Status& status) {
        self->drop_staging();
        taken->set(status);
      }));
  taken_back_ = std::move(taken);
  return {};
}

Status Operation::return_to(std::vector<Place> places, const std::vector<device::Stream>& streams,
                            std::function<void()> failed, device::Watcher::Then then) {
  if (done()) HERRING_RETURN_IF_ERROR(status());
  HERRING_ASSIGN_OR_RETURN(const std::shared_ptr<Return> returned, plan_return(places));
  // A copy of memory that is not pinned may block this thread until the flag is set.
  const bool waits = !returned->is_pinned();
  Status queued = waits ? complete_here() : Status();
  if (waits && queued.ok()) fill(*returned, failed);
  if (queued.ok()) queued = queue_return(returned, streams, std::move(then));
  if (!queued.ok()) {
    returned->flag.set(returned->value);  // no stream waits for it any more
    if (copier()->await_idle(monotonic_now() + device::Copier::kPatienceAfterError)) {
      staging_.let_go();
      copier()->flags().give_back(returned->flag);
    } else {
      log(LogLevel::kWarning, "'", call_.name, "': GPU ", copier()->device().index(),
          " may still read the memory of its results, which is kept for ever");
      device::keep_for_ever(std::pair(shared_from_this(), returned));
    }
    return end_if_lost(queued);
  }
  if (waits) return {};
  const auto fills = [self = shared_from_this(), returned, failed = std::move(failed)] {
    if (self->status().ok()) return self->fill(*returned, failed);
    // The arrays may go out to the memory from which the results come back.
    self->when_out([self, returned, failed] { self->fill(*returned, failed); });
  };
  Future::then(returned->memory == nullptr ? Where::kEngine : Where::kThread, fills);
  return {};
}

Status Operation::complete_here() {
  while (!done()) {
    static_cast<void>(wait_for(100 * kMillisecond));
    static_cast<void>(check_device());
  }
  return status();
}

Result<std::shared_ptr<Operation::Return>> Operation::plan_return(
    const std::vector<Place>& places) {
  const bool moved =
      wire::is<wire::AllReduce>(call_.what) || wire::is<wire::Broadcast>(call_.what);
  auto returned = std::make_shared<Return>(staging_.heap());
  HERRING_ASSIGN_OR_RETURN(auto& flag, copier()->flags().take());
  returned->flag = flag;
  returned->value = flag.word->load() + 1;
  if (moved && staging_.hold()) {  // else it has just failed
    list_->pack(staging_.memory(), [&](char* staged, uint32_t i, size_t first, size_t bytes) {
      returned->copies.push_back({places[i].address + first, staged, bytes});
    });
    return returned;
  }
  size_t bytes = 0;
  for (const Place& place : places) bytes += aligned(place.bytes);
  auto memory = staging_.heap()->allocate(bytes, Use::devices_at(copier()->memory_node()));
  if (!memory.ok()) {
    copier()->flags().give_back(flag);
    return memory.status();
  }
  char* at = returned->memory = static_cast<char*>(*memory);
  for (const Place& place : places) {
    returned->results.push_back(at);
    returned->copies.push_back({place.address, at, place.bytes});
    at += aligned(place.bytes);
  }
  return returned;
}

Status Operation::queue_return(const std::shared_ptr<Return>& returned,
                               const std::vector<device::Stream>& streams,
                               device::Watcher::Then then) {
  device::Copier& copier = *call_.copier;
  for (const device::Stream stream : streams) HERRING_RETURN_IF_ERROR(copier.follow(stream));
  HERRING_RETURN_IF_ERROR(copier.back_when(returned->flag, returned->value, returned->copies));
  for (const device::Stream stream : streams) HERRING_RETURN_IF_ERROR(copier.join(stream));
  return copier.when_back([self = shared_from_this(), returned,
                           then = std::move(then)](const Status& there) {
    // The flag of a device that is lost is never used again.
    if (there.ok()) self->copier()->flags().give_back(returned->flag);
    self->staging_.let_go();
    then(there);
  });
}

void Operation::fill(Return& returned, const std::function<void()>& failed) {
  if (!status().ok()) failed();
  if (status().ok() && returned.memory != nullptr) take(returned.results);
  for (const device::Copy& copy : returned.copies) {
    if (!status().ok()) std::memset(copy.host, 0xff, copy.bytes);
  }
  returned.flag.set(returned.value);
}

Status Operation::pack(bool gives) {
  std::vector<wire::Array> arrays;
  for (const Buffer& one : call_.buffers) arrays.push_back(one.array);
  list_.emplace(call_.what, std::move(arrays), call_.group->index(), call_.group->size());
  if (Status fits = list_->check(); !fits.ok()) {
    return {fits.code(), concat("'", call_.name, "', ", fits.message())};
  }
  if (call_.agreement.empty()) call_.agreement = list_->describe();
  if (auto* scatter = std::get_if<wire::ReduceScatter>(&call_.what)) {
    scatter->rows = list_->splits();
  }
  Status why;
  char* const staged = stage(list_->staging_bytes(), why);
  HERRING_RETURN_IF_ERROR(why);
  if (gives && !on_device()) list_->pack(call_.buffers, staged);
  for (const List::Bundle& one : list_->bundles()) {
    bundles_.push_back({one.array, staged + one.offset, staged + one.offset});
  }
  return {};
}

size_t Operation::bytes() const {
  size_t all = 0;
  for (const Bundle& bundle : bundles_) all += bundle.array.bytes();
  return all;
}

char* Operation::place_result(size_t bytes) {
  if (!call_.list) {
    const Buffer& one = call_.buffers.front();
    placed = one.receive != nullptr && one.receive_bytes == bytes;
    if (placed) return one.receive;
  }
  result_bytes = bytes;
  result.reset(new (std::nothrow) char[std::max<size_t>(bytes, 1)]);
  return result.get();
}

Status Operation::unpack() {
  HERRING_RETURN_IF_ERROR(
      list_->read(result ? result.get() : staging_.memory(), result_bytes, counts));
  if (call_.buffers.empty() || call_.buffers.front().receive == nullptr) return {};
  std::vector<char*> to;
  for (const Buffer& one : call_.buffers) to.push_back(one.receive);
  take(to);
  return {};
}

void Operation::take(const std::vector<char*>& to) {
  list_->unpack(result ? result.get() : staging_.memory(), to);
  result.reset();
  drop_staging();
}

}  // namespace herring::calls
