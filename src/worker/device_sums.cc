#include "worker/device_sums.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "collective/schedule.h"

namespace herring::worker {
namespace {

using collective::Piece;

void say_once(const std::string& why) {
  static std::once_flag said;
  std::call_once(said, [&] {
    log(LogLevel::kWarning, "algorithm 'cuda-butterfly': arrays are copied to host memory, where "
        "processors do the sums, as with 'butterfly': ", why);
  });
}

}  // namespace

Result<std::shared_ptr<DeviceSums>> DeviceSums::create(
    const Call& call, const std::shared_ptr<SharedHeap>& heap,
    const std::shared_ptr<transport::EventLoop>& loop) {
  const auto& what = std::get<wire::AllReduce>(call.what);
  const wire::Array& array = call.buffers.front().array;
  const size_t bytes = array.bytes();
  device::Device& device = call.copier->device();
  const uint32_t size = call.group->size();
  if (size < 2 || bytes == 0) return std::shared_ptr<DeviceSums>();
  auto taken = device::take_relay(device.index(), array.dtype, what.reduction.op);
  if (!taken.ok() && taken.status().code() != Code::kConfiguration) return taken.status();
  if (!taken.ok()) say_once(taken.status().message());
  if (!taken.ok() || taken->relay == nullptr) return std::shared_ptr<DeviceSums>();
  std::shared_ptr<DeviceSums> sums(new DeviceSums(heap, loop));
  auto image = heap->allocate(bytes, Use::devices_at(call.copier->memory_node()));
  if (!image.ok()) return image.status();
  sums->image_ = static_cast<char*>(*image);
  auto address = device.address_of(sums->image_);
  if (!address.ok()) {
    say_once(concat("the GPU cannot read host memory: ", address.status().message()));
    return std::shared_ptr<DeviceSums>();
  }
  sums->image_on_device_ = *address;
  sums->kernel_ = taken->kernel;
  sums->relay_ = std::move(taken->relay);
  const auto schedule = collective::make_schedule(what.algorithm, call.group->index(), size,
                                                  array.elements(), size_of(array.dtype));
  sums->pieces_ = collective::cut(schedule, bytes, what.reduction.prescale != 1.0);
  sums->all_outs_ = static_cast<uint32_t>(std::count_if(
      sums->pieces_.begin(), sums->pieces_.end(),
      [](const Piece& piece) { return piece.what == Piece::What::kOut; }));
  sums->all_ins_ = static_cast<uint32_t>(sums->pieces_.size()) - sums->all_outs_;
  return sums;
}

DeviceSums::~DeviceSums() {
  if (image_ != nullptr) heap_->free(image_);
}

// Uses the order of operands that Run uses: first the data that is here, then the data that
// arrived.
device::Relay::Piece DeviceSums::piece_of(const Call& call, const Piece& piece) const {
  const Reduction& reduction = std::get<wire::AllReduce>(call.what).reduction;
  const worker::Buffer& buffer = call.buffers.front();
  const device::Address there = buffer.on_device + piece.range.offset;
  const device::Address come = image_on_device_ + piece.range.offset;
  device::Relay::Piece queued;
  device::Combination& sum = queued.sum;
  sum.elements = piece.range.bytes / size_of(buffer.array.dtype);
  sum.targets[0] = there;
  sum.number_of_targets = 1;
  switch (piece.what) {
    case Piece::What::kOut:
      queued.out = true;
      queued.copy = {there, image_ + piece.range.offset, piece.range.bytes};
      break;
    case Piece::What::kScale:
      sum.prescale = reduction.prescale;
      sum.sources[0] = there;
      sum.number_of_sources = 1;
      break;
    case Piece::What::kCopy:
      sum.sources[0] = come;
      sum.number_of_sources = 1;
      break;
    case Piece::What::kFinish:
      queued.divides = reduction.op == ReduceOp::kAverage;
      sum.postscale = reduction.postscale;
      [[fallthrough]];
    case Piece::What::kReduce:
      sum.sources[0] = there;
      sum.sources[1] = come;
      sum.number_of_sources = 2;
      break;
  }
  return queued;
}

Status DeviceSums::queue(const Call& call) {
  std::vector<device::Relay::Piece> queued;
  for (const Piece& piece : pieces_) queued.push_back(piece_of(call, piece));
  through_.store(false);
  // The queued work owns a share of this object, and thereby of the image, until all of it is done.
  const Status status = relay()->queue(
      call.streams, kernel_, call.group->size(), queued,
      [self = shared_from_this()](const Status& moved) { self->moved(moved); });
  if (!status.ok()) moved(status);
  return status;
}

std::shared_ptr<device::Relay> DeviceSums::relay() const {
  std::lock_guard lock(mutex_);
  return relay_;
}

// Runs on the thread of the watcher, or on one that found the device lost.
void DeviceSums::moved(const Status& status) {
  {
    std::lock_guard lock(mutex_);
    if (!status.ok() && failure_.ok()) failure_ = status;
    // Another operation may use the relay from now on.
    if (relay_ != nullptr && relay_->through()) {
      last_outs_ = relay_->outs();
      last_ins_ = std::min(relay_->ins(), all_ins_);
      relay_.reset();
      through_.store(true);
    }
  }
  loop_->post([self = shared_from_this()] {
    if (self->on_progress_) self->on_progress_();
  });
}

Status DeviceSums::check() {
  const auto relay = this->relay();
  return relay == nullptr ? Status() : relay->check();
}

void DeviceSums::end(const Status& why) {
  if (why.ok()) return;
  if (const auto relay = this->relay()) relay->stop();
}

Status DeviceSums::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

uint32_t DeviceSums::outs() const {
  std::lock_guard lock(mutex_);
  return relay_ == nullptr ? last_outs_ : relay_->outs();
}

uint32_t DeviceSums::ins() const {
  std::lock_guard lock(mutex_);
  return relay_ == nullptr ? last_ins_ : std::min(relay_->ins(), all_ins_);
}

void DeviceSums::arrived(uint32_t ins) {
  if (const auto relay = this->relay()) relay->arrived(ins);
}

}  // namespace herring::worker
