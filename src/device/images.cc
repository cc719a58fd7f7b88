#include "device/images.h"

#include <algorithm>
#include <random>
#include <utility>

#include "base/log.h"
#include "device/pin.h"

namespace herring::device {
namespace {

uint64_t random_id() {
  std::random_device device;
  const uint64_t id = uint64_t{device()} << 32 | device();
  return id == 0 ? 1 : id;
}

}  // namespace

Result<std::unique_ptr<Image>> Image::make(Device& device, size_t bytes) {
  Address address = 0;
  HERRING_RETURN_IF_ERROR(device.allocate(bytes).move_to(address));
  std::unique_ptr<Image> image(new Image(device, address, bytes));
  HERRING_RETURN_IF_ERROR(device.export_memory(address).move_to(image->exported_));
  image->id_ = random_id();
  Neighbours::instance().add(image->id_);
  return image;
}

Image::Image(Device& device, Address address, size_t bytes)
    : device_(device), address_(address), bytes_(bytes) {}

Image::~Image() {
  Neighbours::instance().remove(id_);
  leave_to_unmap([&device = device_, address = address_](Platform&) { device.free(address); });
}

Import::~Import() {
  leave_to_unmap([&device = device_, from = from_](Platform&) { device.close_import(from); });
}

Neighbours& Neighbours::instance() {
  static auto* const neighbours = new Neighbours;
  return *neighbours;
}

void Neighbours::learn(Owner owner, const Card& card) {
  std::lock_guard lock(mutex_);
  Rank& rank = ranks_[owner];
  rank.reaches_us = rank.reaches_us || card.reaches != 0;
  std::erase_if(rank.images, [&](const auto& one) {
    return std::find(card.live.begin(), card.live.end(), one.first) == card.live.end();
  });
  const bool lives = std::find(card.live.begin(), card.live.end(), card.id) != card.live.end();
  if (card.id == 0 || !lives || rank.images.contains(card.id)) return;
  rank.images[card.id] = {card.bytes, card.memory, {}};
}

void Neighbours::forget(uint32_t incarnation, uint32_t rank) {
  std::lock_guard lock(mutex_);
  ranks_.erase(owner_of(incarnation, rank));
}

void Neighbours::forget(uint32_t incarnation) {
  std::lock_guard lock(mutex_);
  std::erase_if(ranks_, [&](const auto& one) { return one.first >> 32 == incarnation; });
}

bool Neighbours::reaches_us(const std::vector<Owner>& owners) {
  std::lock_guard lock(mutex_);
  return std::any_of(owners.begin(), owners.end(), [this](Owner owner) {
    const auto rank = ranks_.find(owner);
    return rank != ranks_.end() && rank->second.reaches_us;
  });
}

bool Neighbours::any_to_map(int device, const std::vector<Owner>& owners) {
  std::lock_guard lock(mutex_);
  return std::any_of(owners.begin(), owners.end(), [&](Owner owner) {
    const auto rank = ranks_.find(owner);
    return rank != ranks_.end() &&
           std::any_of(rank->second.images.begin(), rank->second.images.end(),
                       [&](const auto& one) { return !one.second.mapped.contains(device); });
  });
}

void Neighbours::map(Device& device, const std::vector<Owner>& owners) {
  std::lock_guard lock(mutex_);
  for (const Owner owner : owners) {
    const auto rank = ranks_.find(owner);
    if (rank == ranks_.end()) continue;
    for (auto& [id, known] : rank->second.images) {
      const auto [place, fresh] = known.mapped.emplace(device.index(), nullptr);
      if (!fresh) continue;
      auto address = device.import_memory(known.memory);
      if (address.ok()) {
        place->second =
            std::make_shared<const Import>(device, id, known.bytes, known.memory, *address);
      } else {
        log(LogLevel::kInfo, "GPU ", device.index(), " reaches the GPU of rank ",
            static_cast<uint32_t>(owner), " through host memory: ", address.status().message());
      }
    }
  }
}

std::vector<std::shared_ptr<const Import>> Neighbours::mapped(int device, Owner owner,
                                                              size_t bytes) {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<const Import>> all;
  const auto rank = ranks_.find(owner);
  if (rank == ranks_.end()) return all;
  for (const auto& [id, known] : rank->second.images) {
    const auto import = known.mapped.find(device);
    const bool here = import != known.mapped.end() && import->second != nullptr;
    if (here && known.bytes >= bytes) all.push_back(import->second);
  }
  return all;
}

std::array<uint64_t, Card::kMostLive> Neighbours::live() {
  std::lock_guard lock(mutex_);
  std::array<uint64_t, Card::kMostLive> ids = {};
  // The latest ones, if there are more.
  const size_t count = std::min(live_.size(), ids.size());
  std::copy(live_.end() - static_cast<std::ptrdiff_t>(count), live_.end(), ids.begin());
  return ids;
}

void Neighbours::add(uint64_t id) {
  std::lock_guard lock(mutex_);
  live_.push_back(id);
}

void Neighbours::remove(uint64_t id) {
  std::lock_guard lock(mutex_);
  std::erase(live_, id);
}

void Neighbours::keep_for_a_while(std::unique_ptr<Image> image) {
  std::vector<std::unique_ptr<Image>> over;  // destroyed without the lock
  std::lock_guard lock(mutex_);
  const Nanos now = monotonic_now();
  over = kept_.take(now);
  std::erase(live_, image->id());
  kept_.put(std::move(image), now);
}

}  // namespace herring::device
