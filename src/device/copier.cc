#include "device/copier.h"

#include <algorithm>

#include "base/log.h"
#include "device/kept.h"
#include "device/pin.h"

namespace herring::device {
namespace {

// Copies are cut into pieces, so that other copies get their turn.
constexpr size_t kPiece = size_t{4} << 20;

template <typename Queue>
Status in_pieces(const Copy& copy, const Queue& queue) {
  for (size_t at = 0; at < copy.bytes; at += kPiece) {
    const size_t bytes = std::min(kPiece, copy.bytes - at);
    HERRING_RETURN_IF_ERROR(queue(copy.device + at, copy.host + at, bytes));
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<Copier>> Copier::create(Flags& flags, Watcher& watcher) {
  HERRING_RETURN_IF_ERROR(flags.device().prepare_words());
  // The thread is started before anything is queued, because queued work cannot be taken back.
  watcher.start();
  // A callback may have the last share. The watcher's thread calls no driver, and would wait for
  // itself in settle().
  const auto end = [&watcher](Copier* copier) {
    if (!watcher.here()) return delete copier;
    leave_to_unmap([copier](Platform&) { delete copier; });
  };
  std::shared_ptr<Copier> copier(new Copier(flags, watcher), end);
  HERRING_RETURN_IF_ERROR(copier->open());
  return copier;
}

Status Copier::open() {
  HERRING_RETURN_IF_ERROR(device_.make_stream().move_to(out_));
  HERRING_RETURN_IF_ERROR(device_.make_stream().move_to(back_));
  for (Event* event : {&produced_, &consumed_, &returned_}) {
    HERRING_RETURN_IF_ERROR(device_.make_event().move_to(*event));
  }
  HERRING_RETURN_IF_ERROR(flags_.take().move_to(is_out_));
  HERRING_RETURN_IF_ERROR(flags_.take().move_to(is_back_));
  outs_ = is_out_.word->load();  // flags keep the value of their previous user
  backs_ = is_back_.word->load();
  return {};
}

Copier::~Copier() {
  const bool open = is_back_.word != nullptr;
  const Status lost = open ? drain(monotonic_now() + kPatience) : Status();
  if (lost.code() == Code::kTimeout) {
    log(LogLevel::kWarning, lost.message(), "; its streams are left to the driver");
    return;
  }
  for (const Stream stream : {out_, back_, sums_stream_, results_}) {
    if (stream != 0) device_.destroy_stream(stream);
  }
  for (const Event event : {produced_, consumed_, returned_, combined_}) {
    if (event != 0) device_.destroy_event(event);
  }
  // A device that is lost may still write to its flags, so nobody else gets them.
  for (const Flag& flag : {is_out_, is_back_, is_combined_, is_given_}) {
    if (flag.word != nullptr && lost.ok()) flags_.give_back(flag);
  }
}

// The caller holds the lock.
Status Copier::open_sums() {
  if (is_combined_.word != nullptr) return {};
  for (Stream* stream : {&sums_stream_, &results_}) {
    if (*stream == 0) HERRING_RETURN_IF_ERROR(device_.make_stream().move_to(*stream));
  }
  if (combined_ == 0) HERRING_RETURN_IF_ERROR(device_.make_event().move_to(combined_));
  HERRING_RETURN_IF_ERROR(flags_.take().move_to(is_combined_));
  sums_ = is_combined_.word->load();
  return {};
}

std::vector<Stream> Copier::streams() const {
  std::vector<Stream> all = {out_, back_, sums_stream_, results_};
  std::erase(all, Stream{0});
  return all;
}

std::vector<Flag> Copier::flags_in_use() const {
  std::vector<Flag> all = {is_out_, is_back_, is_combined_, is_given_};
  std::erase_if(all, [](const Flag& flag) { return flag.word == nullptr; });
  return all;
}

template <typename Owner>
Status Copier::give_up(Stream stream, const Status& why, Owner owner) {
  const auto idle = device_.empty_by(monotonic_now() + kPatienceAfterError, {stream});
  if (idle.ok() && !*idle) {  // a device in an error has no copies under way
    log(LogLevel::kWarning, "GPU ", device_.index(), " has not come to copies that were queued "
        "before an error (", why.message(), "); their memory is kept, as the GPU may still use it");
    keep_for_ever(std::move(owner));
  }
  return why;
}

Status Copier::out(const std::vector<Stream>& producers, const std::vector<Copy>& copies,
                   Watcher::Then then, const std::vector<Launch>& casts) {
  std::lock_guard lock(mutex_);
  Status refused;
  const Status queued = device_.together([&]() -> Status {
    for (const Stream producer : producers) {
      if (refused = device_.check_not_capturing(producer); !refused.ok()) return refused;
    }
    return queue_out(producers, copies, casts);
  });
  if (!refused.ok()) return refused;
  if (!queued.ok()) return give_up(out_, queued, std::move(then));
  watcher_.expect(is_out_, ++outs_, std::move(then));
  return {};
}

Status Copier::queue_out(const std::vector<Stream>& producers, const std::vector<Copy>& copies,
                         const std::vector<Launch>& casts) {
  // In the copies' own stream, a cast would wait for the copies before it, and the copies for it,
  // while the model's kernels occupy the device.
  if (!casts.empty()) HERRING_RETURN_IF_ERROR(launch(casts, producers.front()));
  for (const Stream producer : producers) {
    if (producer == out_) continue;
    HERRING_RETURN_IF_ERROR(device_.record(produced_, producer));
    HERRING_RETURN_IF_ERROR(device_.wait(out_, produced_));
  }
  HERRING_RETURN_IF_ERROR(queue_out(copies, out_));
  return device_.write_word(is_out_.address, outs_ + 1, out_);
}

Status Copier::queue_out(const std::vector<Copy>& copies, Stream stream) {
  for (const Copy& copy : copies) {
    HERRING_RETURN_IF_ERROR(in_pieces(copy, [&](Address from, char* to, size_t bytes) {
      return device_.copy_out(to, from, bytes, stream);
    }));
  }
  return {};
}

Status Copier::queue_back(const std::vector<Copy>& copies, Stream stream) {
  for (const Copy& copy : copies) {
    HERRING_RETURN_IF_ERROR(in_pieces(copy, [&](Address to, const char* from, size_t bytes) {
      return device_.copy_in(to, from, bytes, stream);
    }));
  }
  return {};
}

Status Copier::launch(const std::vector<Launch>& all, Stream stream) {
  for (const Launch& one : all) {
    HERRING_RETURN_IF_ERROR(device_.combine(one.kernel, one.what, one.blocks, stream));
  }
  return {};
}

Status Copier::back(const std::vector<Copy>& copies, std::shared_ptr<const void> owner) {
  std::lock_guard lock(mutex_);
  const Status queued = device_.together([&] { return queue_back(copies, back_); });
  return queued.ok() ? queued : give_up(back_, queued, std::move(owner));
}

Status Copier::when_back(Watcher::Then then) {
  std::lock_guard lock(mutex_);
  const Status queued = device_.write_word(is_back_.address, backs_ + 1, back_);
  if (!queued.ok()) return give_up(back_, queued, std::move(then));
  watcher_.expect(is_back_, ++backs_, std::move(then));
  return {};
}

Status Copier::back_when(Flag flag, uint32_t value, const std::vector<Copy>& copies) {
  std::lock_guard lock(mutex_);
  return device_.together([&]() -> Status {
    HERRING_RETURN_IF_ERROR(device_.wait_word(flag.address, value, back_));
    return queue_back(copies, back_);
  });
}

Status Copier::cast_back(const std::vector<Launch>& casts) {
  std::lock_guard lock(mutex_);
  return device_.together([&] { return launch(casts, back_); });
}

Status Copier::poison(const std::vector<Stretch>& memory) {
  constexpr unsigned char kAllBits = 0xff;
  std::lock_guard lock(mutex_);
  return device_.together([&]() -> Status {
    for (const Stream stream : streams()) {
      if (stream == back_) continue;
      HERRING_RETURN_IF_ERROR(device_.record(returned_, stream));
      HERRING_RETURN_IF_ERROR(device_.wait(back_, returned_));
    }
    for (const Stretch& one : memory) {
      HERRING_RETURN_IF_ERROR(device_.fill(one.address, kAllBits, one.bytes, back_));
    }
    return {};
  });
}

Status Copier::follow(Stream consumer, bool out_too) {
  std::lock_guard lock(mutex_);
  return device_.together([&]() -> Status {
    HERRING_RETURN_IF_ERROR(device_.check_not_capturing(consumer));
    HERRING_RETURN_IF_ERROR(device_.record(consumed_, consumer));
    if (out_too) HERRING_RETURN_IF_ERROR(device_.wait(out_, consumed_));
    return device_.wait(back_, consumed_);
  });
}

bool Copier::settle_out(Nanos deadline) {
  const Result<bool> idle = idle_by(deadline, {out_});
  if (idle.ok() && *idle) watcher_.settle(is_out_);
  return !idle.ok() || *idle;
}

Status Copier::join(Stream consumer) { return join(back_, consumer); }

Status Copier::join_out(Stream producer) { return join(out_, producer); }

Status Copier::join(Stream stream, Stream follower) {
  std::lock_guard lock(mutex_);
  return device_.together([&]() -> Status {
    HERRING_RETURN_IF_ERROR(device_.check_not_capturing(follower));
    HERRING_RETURN_IF_ERROR(device_.record(returned_, stream));
    return device_.wait(follower, returned_);
  });
}

Status Copier::combine_when(Flag flag, uint32_t value, const Sum& sum, Watcher::Then then) {
  std::lock_guard lock(mutex_);
  HERRING_RETURN_IF_ERROR(open_sums());
  const Status queued = device_.together([&] { return queue_sum(flag, value, sum); });
  if (queued.ok()) watcher_.expect(is_combined_, ++sums_, std::move(then));
  return queued;
}

// A separate stream for results lets one sum be copied in while another is copied out.
Status Copier::queue_sum(Flag flag, uint32_t value, const Sum& sum) {
  HERRING_RETURN_IF_ERROR(device_.wait_word(flag.address, value, sums_stream_));
  HERRING_RETURN_IF_ERROR(queue_back(sum.in, sums_stream_));
  HERRING_RETURN_IF_ERROR(launch({sum.launch}, sums_stream_));
  if (sum.out.empty()) return device_.write_word(is_combined_.address, sums_ + 1, sums_stream_);
  HERRING_RETURN_IF_ERROR(device_.record(combined_, sums_stream_));
  HERRING_RETURN_IF_ERROR(device_.wait(results_, combined_));
  HERRING_RETURN_IF_ERROR(queue_out(sum.out, results_));
  return device_.write_word(is_combined_.address, sums_ + 1, results_);
}

Status Copier::give_when(Flag flag, uint32_t value, const Sum& sum, Watcher::Then then) {
  std::lock_guard lock(mutex_);
  if (is_given_.word == nullptr) {
    HERRING_RETURN_IF_ERROR(flags_.take().move_to(is_given_));
    gifts_ = is_given_.word->load();
  }
  const Status queued = device_.together([&] { return queue_gift(flag, value, sum); });
  if (queued.ok()) watcher_.expect(is_given_, ++gifts_, std::move(then));
  return queued;
}

Status Copier::queue_gift(Flag flag, uint32_t value, const Sum& sum) {
  HERRING_RETURN_IF_ERROR(device_.wait_word(flag.address, value, back_));
  HERRING_RETURN_IF_ERROR(queue_back(sum.in, back_));
  HERRING_RETURN_IF_ERROR(launch({sum.launch}, back_));
  return device_.write_word(is_given_.address, gifts_ + 1, back_);
}

Status Copier::drain(Nanos deadline) {
  const Result<bool> idle = idle_by(deadline, all_streams());
  if (!idle.ok()) return idle.status();
  if (!*idle) {
    return {Code::kTimeout, concat("GPU ", device_.index(), " has not come to copies that were "
                                   "queued: a kernel before them does not end, or waits for "
                                   "another rank")};
  }
  std::vector<Flag> flags;
  {
    std::lock_guard lock(mutex_);
    flags = flags_in_use();
  }
  for (const Flag& flag : flags) watcher_.settle(flag);
  return {};
}

Status Copier::check() {
  Status lost;
  {
    std::lock_guard lock(mutex_);
    for (const Stream stream : streams()) {
      if (auto idle = device_.idle(stream); !idle.ok() && lost.ok()) lost = idle.status();
    }
  }
  return lost.ok() ? lost : lose(lost);
}

void Copier::while_idle(const std::function<void()>& call) {
  std::lock_guard lock(mutex_);
  const Result<bool> idle = device_.empty_by(0, streams());
  if (idle.ok() && *idle) call();
}

bool Copier::await_idle(Nanos deadline) {
  const Result<bool> idle = idle_by(deadline, all_streams());
  return !idle.ok() || *idle;
}

Result<bool> Copier::idle_by(Nanos deadline, const std::vector<Stream>& streams) {
  Result<bool> idle = device_.empty_by(deadline, streams);
  return idle.ok() ? idle : lose(idle.status());
}

Status Copier::lose(const Status& why) {
  std::vector<Flag> flags;
  {
    std::lock_guard lock(mutex_);
    flags = flags_in_use();
  }
  for (const Flag& flag : flags) watcher_.give_up(flag, why);
  return why;
}

std::vector<Stream> Copier::all_streams() {
  std::lock_guard lock(mutex_);
  return streams();
}

}  // namespace herring::device
