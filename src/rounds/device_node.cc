#include "rounds/device_node.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "device/copiers.h"
#include "device/pin.h"

namespace herring::rounds {
namespace {

constexpr uint32_t kMagic = 0x44524748;  // "HGRD"
constexpr size_t kMostArenas = 10;       // one for each dtype
constexpr size_t kScratchAlignment = 256;
constexpr size_t kCommandBytes = sizeof(device::Command);

// If memory is not pinned, a copy to the device may block the host until earlier work in the stream
// is done. That work may wait for other ranks.
Status not_pinned() { return {Code::kConfiguration, "memory for copies cannot be pinned"}; }

}  // namespace

const char* name_of(DeviceNode::Level level) {
  return level == DeviceNode::kHost ? "host" : level == DeviceNode::kStaged ? "staged" : "ipc";
}

// The data that a rank gives about its GPU: in the first round its memory, in the second what it
// can reach.
struct DeviceNode::Card {
  uint32_t magic = 0;
  uint32_t level = kHost;
  uint32_t arenas = 0;
  uint32_t exported = 0;  // bits
  device::Exported memory[kMostArenas];

  static Card read(const std::vector<char>& cards, uint32_t place) {
    Card card;
    std::memcpy(&card, cards.data() + place * kCardBytes, sizeof card);
    return card;
  }
};

// What a kernel waits for, and what it then reads.
struct DeviceNode::Step {
  void take(device::Flag its_flag, std::shared_ptr<device::Command> its_command) {
    flag = its_flag;
    value = flag.word->load();
    command = std::move(its_command);
  }
  void start(uint32_t active, double divisor) {
    command->active = active;
    command->divisor = divisor;
    through.store(false);
    flag.set(value);
  }
  void forbid() { std::atomic_ref(command->stop).store(1); }

  device::Flag flag;
  uint32_t value = 0;  // that means the running round
  std::shared_ptr<device::Command> command;  // null if there is no such step
  std::atomic<bool> through{true};
};

// The adder of one buffer.
class DeviceNode::Adder : public SliceAdder {
 public:
  void start(uint32_t active, double divisor) override { sum.start(active, divisor); }
  bool gives() const override { return will_give; }
  void give() override { gift.start(1, 1.0); }
  // Kernels that wait behind the flags may run then; they read `stop` first.
  void stop() override {
    for (Step* step : steps()) step->forbid();
    for (Step* step : steps()) step->flag.set(step->value);
  }
  bool through() const override { return sum.through.load() && gift.through.load(); }

  std::vector<Step*> steps() {
    return gift.command ? std::vector<Step*>{&sum, &gift} : std::vector<Step*>{&sum};
  }

  Step sum;
  Step gift;  // only if there are other nodes
  bool will_give = false;
};

DeviceNode::~DeviceNode() { let_go(); }

void DeviceNode::let_go() {
  if (scratch_ != 0) {
    device::leave_to_unmap([&device = device_, scratch = scratch_](device::Platform&) {
      device.free(scratch);
    });
    scratch_ = 0;
  }
  for (std::vector<Part>& parts : parts_) {
    for (Part& part : parts) {
      if (!part.from) continue;
      device::leave_to_unmap([&device = device_, from = *part.from](device::Platform&) {
        device.close_import(from);
      });
      part.from.reset();
    }
  }
}

void DeviceNode::part_with_arenas() {
  if (level_ != kStaged) return;
  for (size_t i = 0; i < plan().arenas.size(); ++i) {
    planned_.heap->retire(planned_.arenas[i]);
  }
}

void DeviceNode::attach(PlanOnNode plan, std::vector<device::Address> arenas) {
  planned_ = std::move(plan);
  arenas_ = std::move(arenas);
  std::lock_guard lock(mutex_);
  parts_.resize(places());
  for (std::vector<Part>& parts : parts_) parts.resize(arenas_.size());
}

Status DeviceNode::usable() const {
  if (planned_.node_stage == "host") return {Code::kConfiguration, "node_stage is host"};
  if (places() > device::kMostSources) {
    return {Code::kConfiguration, concat("the node has ", places(), " ranks; GPUs add for up to ",
                                         device::kMostSources)};
  }
  if (planned_.narrow && !one_node()) {
    return {Code::kConfiguration, "data between nodes has another dtype"};
  }
  if (arenas_.size() > kMostArenas) return {Code::kConfiguration, "too many dtypes"};
  return {};
}

void DeviceNode::write_card(uint32_t round, char* to) {
  Card card;
  static_assert(sizeof card <= kCardBytes && std::is_trivially_copyable_v<Card>);
  if (round == 0 && usable().ok()) {
    card.magic = kMagic;
    card.arenas = static_cast<uint32_t>(arenas_.size());
    for (uint32_t i = 0; i < card.arenas; ++i) {
      auto memory = device_.export_memory(arenas_[i]);
      if (!memory.ok()) continue;
      card.memory[i] = *memory;
      card.exported |= 1u << i;
    }
  } else if (round == 1) {
    card.magic = kMagic;
    card.level = reached_;
  }
  std::memcpy(to, &card, sizeof card);
}

void DeviceNode::read_cards(const std::vector<char>& cards) {
  std::lock_guard lock(mutex_);
  cards_ = cards;
}

std::vector<char> DeviceNode::last_cards() {
  std::lock_guard lock(mutex_);
  return cards_;
}

void DeviceNode::learn(uint32_t buffer, std::vector<PostedMemory> memory) {
  const plan::Buffer& one = plan().buffers[buffer];
  std::lock_guard lock(mutex_);
  for (uint32_t place = 0; place < memory.size(); ++place) {
    if (!memory[place].region) continue;
    memory[place].offset -= one.range.offset;  // where the arena begins
    parts_[place][one.arena].host = std::move(memory[place]);
  }
}

void DeviceNode::prepare(uint32_t round) {
  if (places() == 1 || plan().buffers.empty()) return;
  if (round == 1) {
    auto reached = meet(last_cards());
    if (reached.ok()) {
      reached_ = *reached;
    } else {
      log(LogLevel::kInfo, "'", planned_.name, "': processors add for GPU ",
          device_.index(), ": ", reached.status().message());
    }
  } else if (round == 2) {
    level_ = kIpc;
    const std::vector<char> cards = last_cards();
    for (uint32_t place = 0; place < places(); ++place) {
      const Card card = Card::read(cards, place);
      level_ = std::min(level_, card.magic == kMagic ? static_cast<Level>(card.level) : kHost);
    }
    for (const auto& adder : adders_) adder->will_give = gives();
    log(LogLevel::kInfo, "'", planned_.name, "': the node stage of GPU ",
        device_.index(), " is ", name_of(level_));
    const std::string& wanted = planned_.node_stage;
    if (wanted == "auto" || wanted == name_of(level_)) return;
    log(LogLevel::kWarning, "'", planned_.name, "': HERRING_NODE_STAGE is ", wanted,
        ", which is not available on this node; using ", name_of(level_),
        " (HERRING_LOG_LEVEL=info says why)");
  }
}

Result<DeviceNode::Level> DeviceNode::meet(const std::vector<char>& cards) {
  HERRING_RETURN_IF_ERROR(usable());
  for (uint32_t place = 0; place < places(); ++place) {
    const Card card = Card::read(cards, place);
    if (card.magic == kMagic && card.arenas == arenas_.size()) continue;
    return Status(Code::kConfiguration, concat("local rank ", place, " has no GPU that adds"));
  }
  HERRING_RETURN_IF_ERROR(load_kernels());
  HERRING_RETURN_IF_ERROR(reach_host_memory());
  HERRING_RETURN_IF_ERROR(take_scratch());
  HERRING_RETURN_IF_ERROR(make_adders());
  if (planned_.node_stage == "staged") return kStaged;
  if (Status reached = reach_devices(cards); !reached.ok()) {
    log(LogLevel::kInfo, "'", planned_.name, "': GPU ", device_.index(),
        " reaches its neighbours through host memory: ", reached.message());
    return kStaged;
  }
  return kIpc;
}

Status DeviceNode::load_kernels() {
  for (const plan::Arena& arena : plan().arenas) {
    const auto name = device::KernelName::of(arena.dtype, planned_.op);
    HERRING_ASSIGN_OR_RETURN(auto& kernel, device::ready_kernel(copier_, name));
    if (kernel == 0) {
      return {Code::kConfiguration, "kernels cannot be loaded while other plans are in a round"};
    }
    kernels_.push_back(kernel);
  }
  return {};
}

Status DeviceNode::reach_host_memory() {
  std::lock_guard lock(mutex_);
  for (uint32_t place = 0; place < places(); ++place) {
    for (size_t i = 0; i < arenas_.size(); ++i) {
      Part& part = parts_[place][i];
      part.address = place == own_place() ? arenas_[i] : 0;
      if (plan().arenas[i].bytes == 0) continue;
      if (place == own_place()) {
        part.memory = planned_.arenas[i];
        if (!planned_.heap->is_pinned(part.memory)) return not_pinned();
      } else if (part.host.region) {
        part.host.region->pin();
        if (!part.host.region->is_pinned()) return not_pinned();
        part.memory = part.host.region->data() + part.host.offset;
      } else {
        return {Code::kConfiguration, concat("local rank ", place, " has posted no memory")};
      }
    }
  }
  return {};
}

Status DeviceNode::reach_devices(const std::vector<char>& cards) {
  for (uint32_t place = 0; place < places(); ++place) {
    if (place == own_place()) continue;
    const Card card = Card::read(cards, place);
    for (size_t i = 0; i < arenas_.size(); ++i) {
      if (plan().arenas[i].bytes == 0) continue;
      if ((card.exported >> i & 1u) == 0) {
        return {Code::kConfiguration, concat("local rank ", place, " cannot export its memory")};
      }
      HERRING_RETURN_IF_ERROR(
          device_.import_memory(card.memory[i]).move_to(parts_[place][i].address));
      parts_[place][i].from = std::make_unique<device::Exported>(card.memory[i]);
    }
  }
  return {};
}

size_t DeviceNode::largest_slice() const {
  size_t largest = 0;
  for (uint32_t buffer = 0; buffer < plan().buffers.size(); ++buffer) {
    largest = std::max(largest, planned_.slices[buffer][own_place()].bytes);
  }
  return (largest + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

// Allocates memory for commands, followed by the neighbours' parts of a slice.
Status DeviceNode::take_scratch() {
  parts_scratch_ = plan().buffers.size() * steps() * kCommandBytes;
  parts_scratch_ += kScratchAlignment - parts_scratch_ % kScratchAlignment;
  HERRING_RETURN_IF_ERROR(
      device_.allocate(parts_scratch_ + (places() - 1) * largest_slice()).move_to(scratch_));
  return {};
}

Status DeviceNode::make_adders() {
  const size_t count = plan().buffers.size() * steps();
  const std::shared_ptr<SharedHeap> heap = planned_.heap;
  auto memory = heap->allocate(count * sizeof(device::Command),
                               Use::devices_at(copier_.memory_node()));
  if (!memory.ok()) return memory.status();
  const std::shared_ptr<device::Command> commands(
      static_cast<device::Command*>(*memory), [heap](device::Command* all) { heap->free(all); });
  if (!heap->is_pinned(*memory)) return not_pinned();
  std::vector<std::shared_ptr<Adder>> made;
  for (size_t i = 0; i < count; ++i) {
    auto flag = copier_.flags().take();
    if (!flag.ok()) {
      give_back_flags(made);
      return flag.status();
    }
    if (i % steps() == 0) made.push_back(std::make_shared<Adder>());
    Step& step = i % steps() == 0 ? made.back()->sum : made.back()->gift;
    auto* const command = new (commands.get() + i) device::Command;
    step.take(*flag, std::shared_ptr<device::Command>(commands, command));
  }
  std::lock_guard lock(mutex_);
  adders_ = std::move(made);
  return {};
}

std::shared_ptr<SliceAdder> DeviceNode::adder(uint32_t buffer) {
  return level_ == kHost ? nullptr : adders_[buffer];
}

void DeviceNode::count_on() {
  for (const auto& adder : adders_) {
    for (Step* step : adder->steps()) ++step->value;
  }
}

void DeviceNode::give_back_flags() { give_back_flags(adders_); }

void DeviceNode::give_back_flags(const std::vector<std::shared_ptr<Adder>>& adders) {
  for (const auto& adder : adders) {
    for (Step* step : adder->steps()) copier_.flags().give_back(step->flag);
  }
}

void DeviceNode::release() {
  std::lock_guard lock(mutex_);
  for (const auto& adder : adders_) {
    for (Step* step : adder->steps()) step->forbid();
  }
  for (const auto& adder : adders_) adder->stop();
}

std::vector<plan::Range> DeviceNode::to_copy_out(uint32_t buffer, const plan::Range& range) const {
  if (level_ == kHost) return {range};
  std::vector<plan::Range> all;
  if (level_ == kIpc) return all;
  const size_t own_from = own_offset(buffer);
  const size_t own_to = own_from + planned_.slices[buffer][own_place()].bytes;
  for (const auto& [begin, end] : {std::pair{range.offset, std::min(range.end(), own_from)},
                                   std::pair{std::max(range.offset, own_to), range.end()}}) {
    if (begin < end) all.push_back({begin, end - begin});
  }
  return all;
}

size_t DeviceNode::own_offset(uint32_t buffer) const {
  return plan().buffers[buffer].range.offset + planned_.slices[buffer][own_place()].offset;
}

device::Copier::Sum DeviceNode::step_of(uint32_t buffer, bool gift) const {
  const plan::Buffer& one = plan().buffers[buffer];
  const plan::Range slice = planned_.slices[buffer][own_place()];
  Adder& adder = *adders_[buffer];
  device::Copier::Sum sum;
  device::Combination& what = sum.launch.what;
  // Blocks of a kernel that read the same word of host memory do so one after the other, which
  // takes a millisecond. Therefore the command is copied to the device.
  what.command = scratch_ + (buffer * steps() + gift) * kCommandBytes;
  device::Command* const command = (gift ? adder.gift : adder.sum).command.get();
  sum.in.push_back({what.command, reinterpret_cast<char*>(command), kCommandBytes});
  what.elements = slice.bytes / size_of(plan().arenas[one.arena].dtype);
  sum.launch.blocks = device_.blocks_for(slice.bytes);
  sum.launch.kernel = kernels_[one.arena];
  return sum;
}

plan::Range DeviceNode::own_slice(uint32_t buffer) const {
  return {own_offset(buffer), planned_.slices[buffer][own_place()].bytes};
}

// The sum overwrites this rank's slice in its own arena.
device::Copier::Sum DeviceNode::sum_of(uint32_t buffer) const {
  device::Copier::Sum sum = step_of(buffer, false);
  device::Combination& what = sum.launch.what;
  const plan::Buffer& one = plan().buffers[buffer];
  const size_t bytes = planned_.slices[buffer][own_place()].bytes, offset = own_offset(buffer);
  what.number_of_sources = places();
  device::Address scratch = scratch_ + parts_scratch_;
  for (uint32_t place = 0; place < places(); ++place) {
    const Part& part = parts_[place][one.arena];
    const bool own = place == own_place();
    what.sources[place] = part.address + offset;
    if (own || (level_ == kIpc && one_node())) {
      what.targets[what.number_of_targets++] = part.address + offset;
    }
    if (own || level_ == kIpc) continue;
    what.sources[place] = scratch;
    sum.in.push_back({scratch, part.memory + offset, bytes});
    scratch += largest_slice();
  }
  if (level_ == kStaged || !one_node()) {
    const Part& own = parts_[own_place()][one.arena];
    sum.out.push_back({own.address + offset, own.memory + offset, bytes});
  }
  if (!one_node()) {
    what.postscale = wire_scale(planned_.group->members(), plan().arenas[one.arena].dtype,
                                planned_.op);
  }
  return sum;
}

// The result comes to this rank's arena, and a kernel copies it to those of the neighbours.
device::Copier::Sum DeviceNode::gift_of(uint32_t buffer) const {
  device::Copier::Sum gift = step_of(buffer, true);
  device::Combination& what = gift.launch.what;
  const plan::Buffer& one = plan().buffers[buffer];
  const size_t bytes = planned_.slices[buffer][own_place()].bytes, offset = own_offset(buffer);
  const Part& own = parts_[own_place()][one.arena];
  gift.in.push_back({own.address + offset, own.memory + offset, bytes});
  what.number_of_sources = 1;
  what.sources[0] = own.address + offset;
  for (uint32_t place = 0; place < places(); ++place) {
    if (place == own_place()) continue;
    what.targets[what.number_of_targets++] = parts_[place][one.arena].address + offset;
  }
  return gift;
}

Status DeviceNode::queue(uint32_t buffer, device::Watcher::Then added,
                         device::Watcher::Then given) {
  if (level_ == kHost) return {};
  const device::Copier::Sum sum = sum_of(buffer);
  if (sum.launch.what.elements == 0) return {};
  const std::shared_ptr<Adder>& adder = adders_[buffer];
  const auto end_of = [&adder](Step& step, device::Watcher::Then then) {
    return [adder, &step, then = std::move(then)](const Status& status) {
      step.through.store(true);
      then(status);
    };
  };
  HERRING_RETURN_IF_ERROR(copier_.combine_when(adder->sum.flag, adder->sum.value, sum,
                                               end_of(adder->sum, std::move(added))));
  if (!gives()) return {};
  return copier_.give_when(adder->gift.flag, adder->gift.value, gift_of(buffer),
                           end_of(adder->gift, std::move(given)));
}

std::vector<device::Copy> DeviceNode::to_copy_back(uint32_t buffer) const {
  const plan::Buffer& one = plan().buffers[buffer];
  const device::Address to = arenas_[one.arena];
  if (level_ == kHost) {
    return {{to + one.range.offset, planned_.arenas[one.arena] + one.range.offset,
             one.range.bytes}};
  }
  std::vector<device::Copy> all;
  if (level_ == kIpc) return all;
  for (uint32_t place = 0; place < places(); ++place) {
    if (place == own_place() && one_node()) continue;
    const plan::Range slice = planned_.slices[buffer][place];
    const size_t offset = one.range.offset + slice.offset;
    if (slice.bytes > 0) {
      all.push_back({to + offset, parts_[place][one.arena].memory + offset, slice.bytes});
    }
  }
  return all;
}

}  // namespace herring::rounds
