#include "worker/held_up.h"

#include <algorithm>
#include <vector>

#include "base/lists.h"
#include "base/reminders.h"

namespace herring::worker {
namespace {

constexpr Nanos kHeldUpInterval = 250 * kMillisecond;
// At most this many of the calls in which threads of this rank wait are named.
constexpr size_t kMostPlaces = 3;

}  // namespace

void HeldUp::tell(Nanos now) {
  if (now < due_) return;
  due_ = now + kHeldUpInterval;
  std::vector<std::string> all;
  // Before servers warn.
  const Nanos since = now - first_reminder(from_seconds(core_.options.warn_after)) / 2;
  core_.program->held_up(now, since, all);
  all.resize(std::min(all.size(), kMostPlaces));
  std::string text = list_of(all, {}, " and in ");
  text.resize(std::min(text.size(), wire::kMaxWhereabouts));
  if (text == text_) return;
  text_ = text;
  for (uint32_t server = 0; server < core_.cluster.servers.size(); ++server) {
    if (core_.presence.has_ended(server)) continue;
    bytes_sent_ += wire::kHeaderBytes + text.size();
    wire::FrameHeader header{.type = wire::FrameType::kWhereabouts};
    core_.links->send_control(server, header, text);
  }
}

void HeldUp::tell_to(uint32_t server) {
  if (text_.empty()) return;
  wire::FrameHeader header{.type = wire::FrameType::kWhereabouts};
  core_.links->send_control(server, header, text_);
}

}  // namespace herring::worker
