#include "device/copier.h"

#include <algorithm>

namespace herring::device {
namespace {

// So that a stream's other copies, and those of other streams, get their turn.
constexpr size_t kPiece = size_t{2} << 20;

template <typename Queue>
Status in_pieces(const Copy& copy, const Queue& queue) {
  for (size_t at = 0; at < copy.bytes; at += kPiece) {
    const size_t bytes = std::min(kPiece, copy.bytes - at);
    HERRING_RETURN_IF_ERROR(queue(copy.device + at, copy.host + at, bytes));
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<Copier>> Copier::create(Platform& platform, Device& device,
                                               Watcher& watcher) {
  if (!device.properties().stream_memory) {
    return Status(Code::kConfiguration,
                  concat("GPU ", device.index(), " (", device.properties().name,
                         ") has no memory operations on streams"));
  }
  // Before anything is queued: what has been could not be taken back.
  watcher.start();
  std::shared_ptr<Copier> copier(new Copier(platform, device, watcher));
  HERRING_RETURN_IF_ERROR(copier->open());
  return copier;
}

Status Copier::open() {
  for (Stream* stream : {&out_, &back_}) {
    auto made = device_.make_stream();
    if (!made.ok()) return made.status();
    *stream = *made;
  }
  for (Event* event : {&produced_, &consumed_, &returned_}) {
    auto made = device_.make_event();
    if (!made.ok()) return made.status();
    *event = *made;
  }
  for (Flag* flag : {&is_out_, &is_back_}) {
    auto taken = flags_.take();
    if (!taken.ok()) return taken.status();
    *flag = *taken;
  }
  return {};
}

Copier::~Copier() {
  // Memory that copies still reach goes after this.
  for (const Stream stream : {out_, back_}) {
    if (stream == 0) continue;
    static_cast<void>(device_.synchronize(stream));
    device_.destroy_stream(stream);
  }
  const Status ended(Code::kShutdown, concat("the copies of GPU ", device_.index(), " have ended"));
  for (const Flag& flag : {is_out_, is_back_}) {
    if (flag.word != nullptr) watcher_.give_up(flag, ended);
  }
  for (const Event event : {produced_, consumed_, returned_}) {
    if (event != 0) device_.destroy_event(event);
  }
}

Status Copier::give_up(Stream stream, const Status& why) {
  static_cast<void>(device_.synchronize(stream));
  return why;
}

Status Copier::out(const std::vector<Stream>& producers, const std::vector<Copy>& copies,
                   Watcher::Then then) {
  for (const Stream producer : producers) {
    HERRING_RETURN_IF_ERROR(device_.check_not_capturing(producer));
  }
  std::lock_guard lock(mutex_);
  const Status queued = device_.together([&] { return queue_out(producers, copies); });
  if (!queued.ok()) return give_up(out_, queued);
  watcher_.expect(is_out_, ++outs_, std::move(then));
  return {};
}

Status Copier::queue_out(const std::vector<Stream>& producers, const std::vector<Copy>& copies) {
  for (const Stream producer : producers) {
    if (producer == out_) continue;
    HERRING_RETURN_IF_ERROR(device_.record(produced_, producer));
    HERRING_RETURN_IF_ERROR(device_.wait(out_, produced_));
  }
  for (const Copy& copy : copies) {
    HERRING_RETURN_IF_ERROR(in_pieces(copy, [&](Address from, char* to, size_t bytes) {
      counters_.bytes_out += bytes;
      ++counters_.copies_out;
      return device_.copy_out(to, from, bytes, out_);
    }));
  }
  return device_.write_word(is_out_.address, outs_ + 1, out_);
}

Status Copier::queue_back(const std::vector<Copy>& copies) {
  for (const Copy& copy : copies) {
    HERRING_RETURN_IF_ERROR(in_pieces(copy, [&](Address to, const char* from, size_t bytes) {
      counters_.bytes_back += bytes;
      ++counters_.copies_back;
      return device_.copy_in(to, from, bytes, back_);
    }));
  }
  return {};
}

Status Copier::back(const std::vector<Copy>& copies) {
  std::lock_guard lock(mutex_);
  const Status queued = device_.together([&] { return queue_back(copies); });
  return queued.ok() ? queued : give_up(back_, queued);
}

Status Copier::when_back(Watcher::Then then) {
  std::lock_guard lock(mutex_);
  const Status queued = device_.write_word(is_back_.address, backs_ + 1, back_);
  if (!queued.ok()) return give_up(back_, queued);
  watcher_.expect(is_back_, ++backs_, std::move(then));
  return {};
}

Status Copier::back_when(Flag flag, uint32_t value, const std::vector<Copy>& copies) {
  std::lock_guard lock(mutex_);
  return device_.together([&]() -> Status {
    HERRING_RETURN_IF_ERROR(device_.wait_word(flag.address, value, back_));
    return queue_back(copies);
  });
}

Status Copier::follow(Stream consumer) {
  HERRING_RETURN_IF_ERROR(device_.check_not_capturing(consumer));
  std::lock_guard lock(mutex_);
  HERRING_RETURN_IF_ERROR(device_.record(consumed_, consumer));
  return device_.wait(back_, consumed_);
}

Status Copier::join(Stream consumer) {
  HERRING_RETURN_IF_ERROR(device_.check_not_capturing(consumer));
  std::lock_guard lock(mutex_);
  HERRING_RETURN_IF_ERROR(device_.record(returned_, back_));
  return device_.wait(consumer, returned_);
}

void Copier::drain() {
  for (const Stream stream : {out_, back_}) static_cast<void>(device_.synchronize(stream));
  if (!check().ok()) return;
  for (const Flag& flag : {is_out_, is_back_}) watcher_.settle(flag);
}

Status Copier::check() {
  Status lost;
  {
    std::lock_guard lock(mutex_);
    for (const Stream stream : {out_, back_}) {
      if (auto idle = device_.idle(stream); !idle.ok() && lost.ok()) lost = idle.status();
    }
  }
  if (lost.ok()) return lost;
  for (const Flag& flag : {is_out_, is_back_}) watcher_.give_up(flag, lost);
  return lost;
}

Copier::Counters Copier::counters() const {
  std::lock_guard lock(mutex_);
  return counters_;
}

}  // namespace herring::device
