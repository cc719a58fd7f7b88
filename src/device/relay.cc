#include "device/relay.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <new>
#include <utility>

#include "base/log.h"
#include "device/kept.h"
#include "device/pin.h"

namespace herring::device {
namespace {

// A kernel that reads host memory is limited by the link. About 100 kB must be in flight, at 16
// bytes per thread, so few of the device's multiprocessors suffice.
constexpr uint32_t kMostBlocks = 32;
constexpr uint64_t kElementsPerBlock = Device::kThreads * 4;

constexpr uint32_t kAllSources = ~0u;

// Kernels that have not begun read it.
void forbid(const Flag& line) {
  auto* const command = reinterpret_cast<Command*>(line.word);
  std::atomic_ref<uint32_t>(command->stop).store(1, std::memory_order_release);
}

static_assert(offsetof(Command, stop) == 0 && sizeof(Command) <= 64, "a command is a flag's line");

}  // namespace

Result<std::shared_ptr<Relay>> Relay::create(Flags& flags, Watcher& watcher) {
  HERRING_RETURN_IF_ERROR(flags.device().prepare_words());
  watcher.start();
  std::shared_ptr<Relay> relay(new Relay(flags, watcher));
  HERRING_RETURN_IF_ERROR(relay->open());
  return relay;
}

Status Relay::open() {
  HERRING_RETURN_IF_ERROR(device_.make_stream().move_to(outs_stream_));
  HERRING_RETURN_IF_ERROR(device_.make_stream().move_to(ins_stream_));
  HERRING_RETURN_IF_ERROR(device_.make_event().move_to(event_));
  HERRING_RETURN_IF_ERROR(device_.allocate(2 * sizeof(Command)).move_to(command_));
  for (Flag* flag : {&outs_, &ins_, &arrived_, &commands_[0], &commands_[1]}) {
    HERRING_RETURN_IF_ERROR(flags_.take().move_to(*flag));
  }
  first_out_ = outs_.word->load();  // flags keep the value of their previous user
  first_in_ = ins_.word->load();
  first_arrived_ = arrived_.word->load();
  return {};
}

Relay::~Relay() {
  for (const Stream stream : {outs_stream_, ins_stream_}) {
    if (stream != 0) device_.destroy_stream(stream);
  }
  if (event_ != 0) device_.destroy_event(event_);
  if (command_ != 0) {
    leave_to_unmap([&device = device_, command = command_](Platform&) { device.free(command); });
  }
  std::vector<Flag> words = spare_, commands = {commands_[0], commands_[1]};
  words.insert(words.end(), {outs_, ins_, arrived_});
  for (const PieceRoute& way : ways_) {
    words.push_back(way.chosen);
    commands.insert(commands.end(), {way.to_image, way.to_host, way.in});
  }
  for (Flag& line : commands) {
    if (line.word != nullptr) line.word = new (line.word) std::atomic<uint32_t>(0);
  }
  words.insert(words.end(), commands.begin(), commands.end());
  // A device that is lost may still write to its flags and its image, so nobody else gets them.
  for (const Flag& flag : words) {
    if (flag.word != nullptr && !lost_.load()) flags_.give_back(flag);
  }
  if (lost_.load()) static_cast<void>(image_.release());
}

void Relay::tell_commands(double divisor, const std::vector<Piece>& pieces) {
  for (size_t i = 0; i < commands_.size(); ++i) {
    new (commands_[i].word) Command{0, kAllSources, i == 0 ? 1.0 : divisor};
  }
  for (PieceRoute& way : ways_) {
    way.value = way.chosen.word->load() + 1;
    for (const Flag& line : {way.to_image, way.to_host, way.in}) {
      new (line.word) Command{0, kAllSources, 1.0};
    }
  }
  for (const Piece& piece : pieces) {
    if (piece.way == kOneWay || piece.out || !piece.divides) continue;
    reinterpret_cast<Command*>(ways_[piece.way].in.word)->divisor = divisor;
  }
}

Status Relay::queue(const std::vector<Stream>& producers, Kernel kernel, double divisor,
                    const std::vector<Piece>& pieces, const Watcher::Then& moved) {
  std::lock_guard lock(mutex_);
  queued_.store(false);
  first_out_ = outs_.word->load();
  first_in_ = ins_.word->load();
  first_arrived_ = arrived_.word->load();
  const auto all_outs = static_cast<uint32_t>(
      std::count_if(pieces.begin(), pieces.end(), [](const Piece& one) { return one.out; }));
  all_ins_ = static_cast<uint32_t>(pieces.size()) - all_outs;
  tell_commands(divisor, pieces);
  const Status queued =
      device_.together([&] { return queue_pieces(producers, kernel, pieces); });
  if (!queued.ok()) {
    stop();
    give_up(monotonic_now() + Copier::kPatienceAfterError, queued, moved);
    return queued;
  }
  queued_.store(true);
  for (uint32_t k = 1; k <= all_outs; ++k) watcher_.expect(outs_, first_out_ + k, moved);
  for (uint32_t k = 1; k <= all_ins_ + 1; ++k) watcher_.expect(ins_, first_in_ + k, moved);
  return {};
}

Status Relay::queue_pieces(const std::vector<Stream>& producers, Kernel kernel,
                           const std::vector<Piece>& pieces) {
  for (const Stream producer : producers) {
    HERRING_RETURN_IF_ERROR(device_.record(event_, producer));
    HERRING_RETURN_IF_ERROR(device_.wait(outs_stream_, event_));
    HERRING_RETURN_IF_ERROR(device_.wait(ins_stream_, event_));
  }
  uint32_t outs = 0, ins = 0;
  bool follows = true;  // whether copies out wait for all sums that are queued
  for (const Piece& piece : pieces) {
    if (piece.out) {
      if (!std::exchange(follows, true)) {
        HERRING_RETURN_IF_ERROR(device_.record(event_, ins_stream_));
        HERRING_RETURN_IF_ERROR(device_.wait(outs_stream_, event_));
      }
      HERRING_RETURN_IF_ERROR(queue_out(kernel, piece, ++outs));
      continue;
    }
    ++ins;
    const bool one_way = piece.way == kOneWay;
    const Flag& line = one_way ? commands_[piece.divides ? 1 : 0] : ways_[piece.way].in;
    HERRING_RETURN_IF_ERROR(
        device_.wait_word(arrived_.address, first_arrived_ + ins, ins_stream_));
    HERRING_RETURN_IF_ERROR(
        queue_kernel(kernel, piece, piece.sum, line, command_, ins_stream_));
    HERRING_RETURN_IF_ERROR(device_.write_word(ins_.address, first_in_ + ins, ins_stream_));
    follows = false;
  }
  // A last word tells that both streams are through.
  HERRING_RETURN_IF_ERROR(device_.record(event_, outs_stream_));
  HERRING_RETURN_IF_ERROR(device_.wait(ins_stream_, event_));
  return device_.write_word(ins_.address, first_in_ + all_ins_ + 1, ins_stream_);
}

Status Relay::queue_out(Kernel kernel, const Piece& piece, uint32_t outs) {
  if (piece.way == kOneWay) {
    const Copy& copy = piece.copy;
    HERRING_RETURN_IF_ERROR(device_.copy_out(copy.host, copy.device, copy.bytes, outs_stream_));
  } else {
    const PieceRoute& way = ways_[piece.way];
    const Address command = command_ + sizeof(Command);
    HERRING_RETURN_IF_ERROR(device_.wait_word(way.chosen.address, way.value, outs_stream_));
    HERRING_RETURN_IF_ERROR(
        queue_kernel(kernel, piece, piece.sum, way.to_image, command, outs_stream_));
    HERRING_RETURN_IF_ERROR(
        queue_kernel(kernel, piece, piece.to_host, way.to_host, command, outs_stream_));
  }
  return device_.write_word(outs_.address, first_out_ + outs, outs_stream_);
}

// Blocks that read the same word of host memory would do so one after the other, so the command is
// copied to the device first.
Status Relay::queue_kernel(Kernel kernel, const Piece& piece, Combination what, const Flag& line,
                           Address command, Stream stream) {
  const auto few = static_cast<uint32_t>(
      std::clamp<uint64_t>(what.elements / kElementsPerBlock, 1, kMostBlocks));
  what.command = command;
  HERRING_RETURN_IF_ERROR(device_.copy_in(command, reinterpret_cast<const char*>(line.word),
                                          sizeof(Command), stream));
  return device_.combine(kernel, what, piece.blocks == 0 ? few : piece.blocks, stream);
}

bool Relay::through() const {
  return !queued_.load() || lost_.load() || ins() == all_ins_ + 1;
}

// The word never goes back, because stop() may have set it meanwhile.
void Relay::arrived(uint32_t ins) {
  const uint32_t value = first_arrived_ + ins;
  uint32_t word = arrived_.word->load(std::memory_order_relaxed);
  while (!reached(word, value) &&
         !arrived_.word->compare_exchange_weak(word, value, std::memory_order_release)) {
  }
}

void Relay::choose(uint32_t way, bool stays, uint32_t sources) {
  const PieceRoute& one = ways_[way];
  reinterpret_cast<Command*>(one.in.word)->active = sources;
  forbid(stays ? one.to_host : one.to_image);
  one.chosen.set(one.value);
}

void Relay::stop() {
  stopped_.store(true);
  for (const Flag& line : commands_) forbid(line);
  for (const PieceRoute& way : ways_) {
    for (const Flag& line : {way.to_image, way.to_host, way.in}) forbid(line);
  }
  for (const PieceRoute& way : ways_) way.chosen.set(way.value);
  arrived(all_ins_);
}

bool Relay::should_share(size_t bytes) const {
  return bytes < refused_ && (image() == nullptr || image_->bytes() < bytes);
}

Status Relay::share(size_t bytes) {
  while (spare_.size() < 4 * kMostWays - 4 * ways_.size()) {
    HERRING_ASSIGN_OR_RETURN(auto& flag, flags_.take());
    spare_.push_back(flag);
  }
  for (; !spare_.empty(); spare_.resize(spare_.size() - 4)) {
    const Flag* const four = &spare_[spare_.size() - 4];
    ways_.push_back({four[0], 0, four[1], four[2], four[3]});
  }
  if (stopped_.exchange(false) && image_ != nullptr) {
    Neighbours::instance().keep_for_a_while(std::move(image_));
  }
  auto image = Image::make(device_, bytes);
  if (!image.ok()) refused_ = bytes;
  if (!image.ok()) return image.status();
  image_ = std::move(*image);
  return {};
}

Status Relay::try_kernel(Kernel kernel) {
  tell_commands(1.0, {});
  Combination nothing;
  nothing.command = commands_[0].address;
  HERRING_RETURN_IF_ERROR(device_.combine(kernel, nothing, 1, ins_stream_));
  const Nanos deadline = monotonic_now() + Copier::kPatience;
  HERRING_ASSIGN_OR_RETURN(const auto& idle, device_.empty_by(deadline, {ins_stream_}));
  if (idle) return {};
  const Status why(Code::kConfiguration, concat("GPU ", device_.index(), " has not run a kernel "
                                                "without elements in 5 s: it is occupied"));
  give_up(deadline, why, nullptr);
  return why;
}

void Relay::give_up(Nanos deadline, const Status& why, Watcher::Then owner) {
  const auto idle = device_.empty_by(deadline, {outs_stream_, ins_stream_});
  if (idle.ok() && *idle) return;
  lost_.store(true);
  if (!idle.ok()) return;
  log(LogLevel::kWarning, "GPU ", device_.index(), " has not come to work that was queued before "
      "an error (", why.message(), "); its memory is kept, as the GPU may still use it");
  keep_for_ever(std::pair(shared_from_this(), std::move(owner)));
}

Status Relay::check() {
  Status lost;
  {
    std::lock_guard lock(mutex_);
    for (const Stream stream : {outs_stream_, ins_stream_}) {
      if (auto idle = device_.idle(stream); !idle.ok() && lost.ok()) lost = idle.status();
    }
    if (lost.ok()) return lost;
    lost_.store(true);
    stop();
  }
  for (const Flag& flag : {outs_, ins_}) watcher_.give_up(flag, lost);
  return lost;
}

void Relay::while_idle(const std::function<void()>& call) {
  std::lock_guard lock(mutex_);
  const Result<bool> idle = device_.empty_by(0, {outs_stream_, ins_stream_});
  if (idle.ok() && *idle) call();
}

}  // namespace herring::device
