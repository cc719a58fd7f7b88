#include "calls/device_sums.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/log.h"
#include "collective/schedule.h"

namespace herring::calls {
namespace {

using collective::Piece;

void say_once(const std::string& why) {
  static std::once_flag said;
  std::call_once(said, [&] {
    log(LogLevel::kWarning, "algorithm 'cuda-butterfly': arrays are copied to host memory, where "
        "processors do the sums, as with 'butterfly': ", why);
  });
}

constexpr uint32_t kCardMagic = 0x42524748;  // "HGRB"
// Shorter arrays are as fast through host memory, and need no cards there.
constexpr size_t kLeastNear = 64 << 10;
// Of a sum that goes one of two ways: the array, the image in host memory, images of a neighbour.
constexpr uint32_t kArray = 0, kHostImage = 1, kFirstImport = 2;
static_assert(kFirstImport + device::Card::kMostReadable <= device::kMostSources);

}  // namespace

NearMembers near_members(const Call& call, uint32_t incarnation) {
  NearMembers near;
  const auto* what = std::get_if<wire::AllReduce>(&call.what);
  const bool fits =
      what != nullptr && what->algorithm == wire::Algorithm::kButterfly && !call.list;
  if (!fits || call.buffers.front().array.bytes() < kLeastNear) return near;
  const control::Group& group = call.group->members();
  const uint32_t own = call.group->index();
  for (uint32_t index = 0; index < group.size(); ++index) {
    if (index == own || group.node_of(index) != group.node_of(own)) continue;
    near.indices.push_back(index);
    near.owners.push_back(device::Neighbours::owner_of(incarnation, group.ranks()[index]));
  }
  return near;
}

Result<std::shared_ptr<DeviceSums>> DeviceSums::create(
    const Call& call, NearMembers near, const std::shared_ptr<SharedHeap>& heap,
    const std::shared_ptr<transport::EventLoop>& loop) {
  const auto& what = std::get<wire::AllReduce>(call.what);
  const wire::Array& array = call.buffers.front().array;
  const size_t bytes = array.bytes();
  device::Device& device = call.copier->device();
  const uint32_t size = call.group->size();
  if (size < 2 || bytes == 0) return std::shared_ptr<DeviceSums>();
  auto taken = device::take_relay(device.index(), array.dtype, what.reduction.op,
                                  {near.owners, bytes});
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
  sums->device_ = device.index();
  sums->relay_ = std::move(taken->relay);
  sums->schedule_ = collective::make_schedule(what.algorithm, call.group->index(), size,
                                              array.elements(), size_of(array.dtype));
  sums->share(std::move(near), bytes);
  std::vector<bool> two_ways;
  for (const uint32_t way : sums->ways_) two_ways.push_back(way != device::Relay::kOneWay);
  sums->pieces_ =
      collective::cut(sums->schedule_, bytes, what.reduction.prescale != 1.0, two_ways);
  sums->all_outs_ = static_cast<uint32_t>(std::count_if(
      sums->pieces_.begin(), sums->pieces_.end(),
      [](const Piece& piece) { return piece.what == Piece::What::kOut; }));
  sums->all_ins_ = static_cast<uint32_t>(sums->pieces_.size()) - sums->all_outs_;
  return sums;
}

void DeviceSums::share(NearMembers near, size_t bytes) {
  using device::Card;
  using device::Neighbours;
  ways_.assign(schedule_.size(), device::Relay::kOneWay);
  near_ = std::move(near);
  const device::Image* const image = relay_->image();
  if (near_.owners.empty() || image == nullptr) return;
  card_.magic = kCardMagic;
  card_.id = image->id();
  card_.bytes = image->bytes();
  card_.memory = image->exported();
  card_.live = Neighbours::instance().live();
  if (image->bytes() < bytes) return;
  // The nth messages to and from a neighbour go one way.
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> ways;  // by neighbour and n
  struct Neighbour {
    bool is_reached = false;
    uint32_t sends = 0, receives = 0;
  };
  std::map<uint32_t, Neighbour> neighbours;
  for (uint32_t i = 0; i < schedule_.size(); ++i) {
    const collective::Operation& message = schedule_[i];
    const auto owner = message.is_message() ? near_.owner_of(message.peer) : std::nullopt;
    if (!owner) continue;
    const auto [place, fresh] = neighbours.try_emplace(message.peer);
    Neighbour& neighbour = place->second;
    if (fresh) {
      Imports imports = Neighbours::instance().mapped(device_, *owner, bytes);
      imports.resize(std::min(imports.size(), Card::kMostReadable));
      neighbour.is_reached =
          !imports.empty() || Neighbours::instance().reaches_us({*owner});
      if (neighbour.is_reached) imports_.emplace(message.peer, std::move(imports));
    }
    if (!neighbour.is_reached) continue;
    const bool is_send = message.kind == collective::Operation::Kind::kSend;
    const uint32_t n = is_send ? neighbour.sends++ : neighbour.receives++;
    ways_[i] = ways.try_emplace({message.peer, n}, ways.size()).first->second;
    if (ways.size() > device::Relay::kMostWays) {
      imports_.clear();
      return ways_.assign(ways_.size(), device::Relay::kOneWay);
    }
  }
  shared_ = image->address();
}

const DeviceSums::Imports& DeviceSums::imports_of(uint32_t peer) const {
  static const Imports none;
  const auto found = imports_.find(peer);
  return found == imports_.end() ? none : found->second;
}

std::string DeviceSums::card_for(uint32_t peer) {
  if (card_.id == 0) return {};
  device::Card card = card_;
  const auto owner = near_.owner_of(peer).value();
  card.reaches = device::Neighbours::instance().mapped(device_, owner, 0).empty() ? 0 : 1;
  card.shares = shared_ != 0 && imports_.contains(peer) ? 1 : 0;
  const Imports& imports = imports_of(peer);
  for (size_t k = 0; k < imports.size(); ++k) card.readable[k] = imports[k]->id;
  return {reinterpret_cast<const char*>(&card), sizeof card};
}

// Both ranks know both cards, so they find the same.
Result<collective::DeviceSide::Shown> DeviceSums::meet(uint32_t peer, std::string_view text) {
  device::Card card;
  static_assert(std::is_trivially_copyable_v<device::Card>);
  if (!text.empty() && text.size() != sizeof card) {
    return breach("rank ", peer, " sent a card of ", text.size(), " bytes");
  }
  if (!text.empty()) std::memcpy(&card, text.data(), sizeof card);
  if (!text.empty() && card.magic != kCardMagic) return breach("rank ", peer, " sent no card");
  const auto owner = near_.owner_of(peer);
  if (card.id != 0 && owner) device::Neighbours::instance().learn(*owner, card);
  Shown shown;
  const bool shares = shared_ != 0 && imports_.contains(peer);
  const Imports& imports = imports_of(peer);
  const auto import = std::find_if(imports.begin(), imports.end(),
                                   [&](const auto& one) { return one->id == card.id; });
  shown.receives = shares && card.shares != 0 && import != imports.end();
  shown.sends = shares && std::find(card.readable.begin(), card.readable.end(), card_.id) !=
                              card.readable.end();
  reads_neighbours_ = reads_neighbours_ || shown.receives;
  const auto relay = this->relay();
  if (shared_ == 0 || relay == nullptr) return shown;
  const uint32_t come =
      1u << (shown.receives ? kFirstImport + (import - imports.begin()) : kHostImage);
  std::map<uint32_t, uint32_t> sources;  // of the ways that go to and from this neighbour
  for (uint32_t i = 0; i < schedule_.size(); ++i) {
    if (ways_[i] == device::Relay::kOneWay || schedule_[i].peer != peer) continue;
    uint32_t& mask = sources[ways_[i]];
    if (schedule_[i].kind == collective::Operation::Kind::kReceive) {
      mask |= schedule_[i].sums() ? come | 1u << kArray : come;
    }
  }
  for (const auto& [way, mask] : sources) relay->choose(way, shown.sends, mask);
  return shown;
}

DeviceSums::~DeviceSums() {
  if (image_ != nullptr) heap_->free(image_);
}

// Uses the order of operands that Run uses: first the data that is here, then the data that
// arrived.
device::Relay::Piece DeviceSums::piece_of(const Call& call, const Piece& piece) const {
  const Reduction& reduction = std::get<wire::AllReduce>(call.what).reduction;
  const Buffer& buffer = call.buffers.front();
  const device::Address there = buffer.on_device + piece.range.offset;
  const device::Address come = image_on_device_ + piece.range.offset;
  device::Relay::Piece queued;
  device::Combination& sum = queued.sum;
  sum.elements = piece.range.bytes / size_of(buffer.array.dtype);
  sum.targets[0] = there;
  sum.number_of_targets = 1;
  if (piece.what != Piece::What::kScale) queued.way = ways_[piece.operation];
  if (queued.way != device::Relay::kOneWay) {
    queued.blocks = call.copier->device().blocks_for(piece.range.bytes);
    return two_ways(std::move(queued), call, piece);
  }
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

// Completes a piece whose way is chosen later, by a mask of its sources.
device::Relay::Piece DeviceSums::two_ways(device::Relay::Piece queued, const Call& call,
                                          const Piece& piece) const {
  device::Combination& sum = queued.sum;
  const device::Address there = sum.targets[0];
  sum.sources[kArray] = there;
  if (piece.what == Piece::What::kOut) {
    queued.out = true;
    sum.number_of_sources = 1;
    queued.to_host = sum;
    sum.targets[0] = shared_ + piece.range.offset;
    queued.to_host.targets[0] = image_on_device_ + piece.range.offset;
    return queued;
  }
  const Imports& imports = imports_of(schedule_[piece.operation].peer);
  sum.sources[kHostImage] = image_on_device_ + piece.range.offset;
  sum.number_of_sources = kFirstImport + static_cast<uint32_t>(imports.size());
  for (size_t k = 0; k < imports.size(); ++k) {
    sum.sources[kFirstImport + k] = imports[k]->address + piece.range.offset;
  }
  if (piece.what == Piece::What::kFinish) {
    const Reduction& reduction = std::get<wire::AllReduce>(call.what).reduction;
    queued.divides = reduction.op == ReduceOp::kAverage;
    sum.postscale = reduction.postscale;
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
    drop_if_through();
  }
  loop_->post([self = shared_from_this()] {
    if (self->on_progress_) self->on_progress_();
  });
}

// Another operation may use the relay from then on. The caller holds the lock.
void DeviceSums::drop_if_through() {
  if (relay_ == nullptr || !relay_->through()) return;
  through_.store(true);
  if (shared_ != 0 && !ended_) return;
  last_outs_ = relay_->outs();
  last_ins_ = std::min(relay_->ins(), all_ins_);
  relay_.reset();
}

Status DeviceSums::check() {
  const auto relay = this->relay();
  return relay == nullptr ? Status() : relay->check();
}

void DeviceSums::end(const Status& why) {
  if (const auto relay = this->relay(); relay != nullptr && !why.ok()) relay->stop();
  std::lock_guard lock(mutex_);
  ended_ = true;
  drop_if_through();
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

}  // namespace herring::calls
