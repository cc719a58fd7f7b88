// How a member reaches the rendezvous: again and again until its deadline, with a log meanwhile.
#pragma once

#include "base/log.h"
#include "base/process_age.h"
#include "base/reminders.h"
#include "control/member.h"

namespace herring::control {

Reminders reminders_of(const Member::Options& options);

// Tries to reach the rendezvous until the deadline, and logs meanwhile that it waits.
// `listens`: whether somebody accepted the last connection. Then rank 0's process is there, and its
// program has not come to init() yet.
template <typename Attempt>
auto reach(const Member::Options& options, Nanos deadline, Reminders& reminders,
           const bool& listens, const Attempt& attempt) {
  const Nanos usual = usual_start(process_age() - (monotonic_now() - reminders.since()),
                                  options.warn_after);
  return attempt_with_reminders(
      deadline, reminders, attempt, [&](const Status& why, Nanos waited) {
        log(waited < (listens ? options.warn_after : usual) ? LogLevel::kInfo : LogLevel::kWarning,
            "has waited ", in_seconds(waited), " for rank 0 at the rendezvous ",
            options.rendezvous.to_string(), ": ", why.message());
      });
}

// Returns the error of a member that cannot reach the rendezvous because of `why`.
Status cannot_join(const Member::Options& options, const Status& why);

// Connects to the rendezvous and proves the secret both ways.
Result<transport::tcp::Socket> connect(const Member::Options& options, wire::Role role,
                                       uint32_t rank, Nanos deadline, Reminders& reminders);

}  // namespace herring::control
