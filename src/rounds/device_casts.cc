#include "rounds/device_casts.h"

#include <algorithm>
#include <utility>

#include "device/copiers.h"
#include "device/pin.h"

namespace herring::rounds {
namespace {

constexpr DType kWide = DType::kFloat32;
constexpr size_t kWideBytes = 4, kNarrowBytes = 2;
constexpr size_t kWider = kWideBytes / kNarrowBytes;
constexpr size_t kArenaAlignment = 256;  // bytes

}  // namespace

bool DeviceCasts::apply_to(const std::vector<plan::Gradient>& gradients, DType wire) {
  const auto has = [&gradients](DType dtype) {
    return std::ranges::any_of(gradients,
                               [dtype](const plan::Gradient& one) { return one.dtype == dtype; });
  };
  return size_of(wire) == kNarrowBytes && is_float(wire) && has(kWide) && !has(wire);
}

Result<std::shared_ptr<DeviceCasts>> DeviceCasts::create(device::Copier& copier, DType wire) {
  std::shared_ptr<DeviceCasts> casts(new DeviceCasts(copier.device(), wire));
  for (const bool narrows : {true, false}) {
    const auto name = narrows ? device::KernelName::cast(kWide, wire)
                              : device::KernelName::cast(wire, kWide);
    HERRING_ASSIGN_OR_RETURN(auto& kernel, device::ready_kernel(copier, name));
    if (kernel == 0) {
      return Status(Code::kConfiguration,
                    "kernels cannot be loaded while other plans are in a round");
    }
    (narrows ? casts->narrows_ : casts->widens_) = kernel;
  }
  return casts;
}

std::vector<plan::Gradient> DeviceCasts::narrowed(std::vector<plan::Gradient> gradients) const {
  for (plan::Gradient& one : gradients) {
    if (one.dtype == kWide) one.dtype = wire_;
  }
  return gradients;
}

plan::Plan DeviceCasts::widened(plan::Plan plan) const {
  const auto widen = [&plan, this](uint32_t arena, plan::Range& range) {
    if (plan.arenas[arena].dtype == wire_) range = {range.offset * kWider, range.bytes * kWider};
  };
  for (plan::Placement& one : plan.placements) widen(one.arena, one.range);
  for (plan::Buffer& one : plan.buffers) widen(one.arena, one.range);
  for (plan::Arena& one : plan.arenas) {
    if (one.dtype == wire_) one = {kWide, one.bytes * kWider};
  }
  return plan;
}

Status DeviceCasts::place(const plan::Plan& plan, std::vector<device::Address> wide) {
  size_t bytes = 0;
  std::vector<size_t> offsets;
  for (const plan::Arena& arena : plan.arenas) {
    offsets.push_back(bytes);
    if (arena.dtype == wire_) bytes += arena.bytes;
    bytes = (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
  }
  device::Address memory = 0;
  HERRING_RETURN_IF_ERROR(device_.allocate(std::max<size_t>(bytes, 1)).move_to(memory));
  memory_ = std::shared_ptr<void>(nullptr, [&device = device_, memory](void*) {
    device::leave_to_unmap([&device, memory](device::Platform&) { device.free(memory); });
  });
  wide_ = std::move(wide);
  narrow_ = wide_;
  for (size_t i = 0; i < narrow_.size(); ++i) {
    if (plan.arenas[i].dtype == wire_) narrow_[i] = memory + offsets[i];
  }
  return {};
}

void DeviceCasts::narrow(uint32_t arena, const plan::Range& range,
                         std::vector<device::Launch>& all) const {
  if (!casts(arena)) return;
  append(narrows_, wide_[arena] + range.offset * kWider, narrow_[arena] + range.offset,
         range.bytes / kNarrowBytes, all);
}

void DeviceCasts::widen(uint32_t arena, const plan::Range& range,
                        std::vector<device::Launch>& all) const {
  if (!casts(arena)) return;
  append(widens_, narrow_[arena] + range.offset, wide_[arena] + range.offset * kWider,
         range.bytes / kNarrowBytes, all);
}

void DeviceCasts::append(device::Kernel kernel, device::Address from, device::Address to,
                         size_t elements, std::vector<device::Launch>& all) const {
  if (elements == 0) return;
  const size_t item = kernel == narrows_ ? kWideBytes : kNarrowBytes;
  if (!all.empty() && all.back().what.sources[0] + all.back().what.elements * item == from) {
    all.back().what.elements += elements;
  } else {
    device::Launch& one = all.emplace_back();
    one.kernel = kernel;
    one.what.sources[0] = from;
    one.what.targets[0] = to;
    one.what.number_of_sources = one.what.number_of_targets = 1;
    one.what.elements = elements;
  }
  all.back().blocks = device_.blocks_for(all.back().what.elements * kWideBytes);
}

}  // namespace herring::rounds
