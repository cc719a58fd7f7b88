#include "control/reaching.h"

#include "control/messages.h"

namespace herring::control {

Reminders reminders_of(const Member::Options& options) {
  const Nanos now = monotonic_now();
  const Nanos since = options.waits_since == 0 ? now : options.waits_since;
  return {since, first_reminder(options.warn_after), now};
}

Status cannot_join(const Member::Options& options, const Status& why) {
  const Code code = why.code() == Code::kPeerLost ? Code::kTimeout : why.code();
  const std::string hint =
      code == Code::kTimeout
          ? concat("; nothing answered within ", in_seconds(options.connect_timeout),
                   " (HERRING_CONNECT_TIMEOUT): is rank 0 running, and can this host reach that "
                   "address?")
          : "";
  return Status(code, concat("cannot join the job at the rendezvous ",
                             options.rendezvous.to_string(), " (HERRING_RENDEZVOUS): ",
                             why.message(), hint));
}

Result<transport::tcp::Socket> connect(const Member::Options& options, wire::Role role,
                                       uint32_t rank, Nanos deadline, Reminders& reminders) {
  if (options.credentials.secret.empty()) {
    return Status(Code::kConfiguration,
                  "the job has no secret; set HERRING_SECRET_FILE to the same file everywhere");
  }
  HERRING_RETURN_IF_ERROR(check_rhythm({options.heartbeat_interval, options.heartbeat_timeout}));
  wire::Hello hello;
  hello.role = role;
  hello.rank = rank;
  bool listens = false;
  auto fd = reach(options, deadline, reminders, listens, [&](Nanos until) {
    return transport::tcp::connect_and_prove(options.rendezvous, options.source, hello,
                                             options.credentials, until, &listens);
  });
  return fd.ok() ? std::move(fd) : cannot_join(options, fd.status());
}

}  // namespace herring::control
