#include "links/balance.h"

namespace herring::links {

void Balance::forget(uint32_t link) {
  if (link >= links_.size()) links_.resize(link + 1);
  State& state = links_[link];
  if (state.pushes) positions_.erase({state.position, link});
  if (state.held) held_.erase({state.until, link});
  state.pushes = state.held = false;
}

void Balance::set(uint32_t link, double position) {
  forget(link);
  links_[link].position = position;
  links_[link].pushes = true;
  positions_.emplace(position, link);
}

void Balance::remove(uint32_t link) { forget(link); }

bool Balance::hold(uint32_t link, double allowed) {
  State& state = links_[link];
  if (state.held) held_.erase({state.until, link});
  state.until = state.position - allowed;
  state.held = state.until > positions_.begin()->first;
  if (state.held) held_.emplace(state.until, link);
  return state.held;
}

std::optional<uint32_t> Balance::release() {
  if (held_.empty() || held_.begin()->first > positions_.begin()->first) return std::nullopt;
  const uint32_t link = held_.begin()->second;
  held_.erase(held_.begin());
  links_[link].held = false;
  return link;
}

}  // namespace herring::links
