#include "links/pace.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/log.h"

namespace herring::links {

Pace::Pace(const LinksOptions& options, uint16_t initial, bool steers)
    : options(options),
      steers(steers),
      controller(initial, options.credit_max, options.credit_fixed, options.segment_bytes,
                 options.credit_ladder),
      told(initial) {}

void Pace::begin(Nanos now) {
  if (transfers++ > 0) return;
  controller.on_start(now);
  log_progress();
  for (OnLink& link : links) link.returned = 0;
}

void Pace::sent(size_t segments, Nanos now) {
  if (outstanding == 0) busy_since = now;
  outstanding += segments;
}

void Pace::answered(const wire::FrameHeader& result, uint32_t server, uint32_t flow, Nanos now) {
  links[server].returned += result.segments;
  links[server].outstanding[flow] -= result.segments;
  const size_t before = outstanding;
  outstanding -= result.segments;
  if (steers) return steer(result, server, before, now);
  told = options.credit_fixed ? options.credit_initial
                              : std::clamp<uint16_t>(result.credit, 1, options.credit_max);
}

void Pace::steer(const wire::FrameHeader& result, uint32_t server, size_t before, Nanos now) {
  controller.on_progress(result.segments * options.segment_bytes, now - busy_since,
                         before * options.segment_bytes, now);
  busy_since = now;
  log_progress();
  // Flows overtake each other, so a late result may carry an old loss counter; ignore it.
  uint32_t& heard = links[server].signals;
  const auto fresh = static_cast<int32_t>(result.signals - heard);
  if (fresh <= 0) return;
  heard = result.signals;
  const uint16_t credit = controller.credit();
  controller.on_losses(static_cast<uint32_t>(fresh), now);
  if (controller.credit() != credit) {
    log(LogLevel::kDebug, "credit: ", fresh, " lost at ", counted(credit, "segment"), ", now ",
        controller.base());
  }
}

void Pace::log_progress() {
  const auto path = [this] {
    return ", queueing " + std::to_string(controller.queueing() / kMicrosecond) + " of " +
           std::to_string(controller.response() / kMicrosecond) + " us";
  };
  if (const size_t rungs = controller.ladder().rungs().size(); rungs != rungs_) {
    rungs_ = rungs;
    log(LogLevel::kDebug, "credit: step ", rungs, " of the ladder moved ",
        controller.ladder().latest().goodput / 1e6, " MB/s", path(),
        controller.climbing() ? "" : "; the last");
    if (!controller.climbing()) {
      log(LogLevel::kInfo, "the window of a flow settled at ",
          controller.base() * options.segment_bytes / 1000, " kB");
    }
  }
  if (const uint32_t trials = controller.trials(); trials != trials_) {
    trials_ = trials;
    log(LogLevel::kDebug, "credit: a trial gained ", controller.last_gain(), ", now ",
        counted(controller.base(), "segment"), path());
  }
}

void Pace::forget(uint32_t server) {
  for (size_t& segments : links[server].outstanding) outstanding -= std::exchange(segments, 0);
}

}  // namespace herring::links
