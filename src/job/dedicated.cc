#include "job/dedicated.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "base/interrupt.h"
#include "base/log.h"
#include "base/process_texts.h"
#include "control/messages.h"
#include "job/process.h"
#include "job/serving.h"

namespace herring::job {
namespace {

// Records why the job is over for this server.
class End {
 public:
  void set(Status why) {
    {
      std::lock_guard lock(mutex_);
      if (ended_) return;
      ended_ = true;
      why_ = std::move(why);
    }
    changed_.notify_all();
  }

  // Waits for the end and returns the reason. Returns ok if this thread is interrupted.
  Status wait() {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, std::chrono::milliseconds(100), [&] { return ended_; })) {
      if (interrupted()) ended_ = true;
    }
    return why_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;  // guarded by mutex_
  Status why_;          // guarded by mutex_
};

// Returns whether the job goes on without the lost process. A colocated server dies with its
// worker. Every rank needs a dedicated server, unless others stand in for it, and the rendezvous of
// rank 0.
bool outlives(const server::Server& server, const control::Cluster& cluster,
              const control::Loss& loss) {
  if (!loss.is_server) return loss.index != 0 && server.outlives(loss.index);
  const control::ServerInfo& lost = cluster.servers[loss.index];
  if (lost.dedicated) return !loss.serving.empty();
  const uint32_t rank = *cluster.rank_with(lost);
  return rank != 0 && server.outlives(rank);
}

// Brings the server, a replacement, up to date and says that it is ready.
void take_place(control::Member& member, server::Server& server) {
  control::ServerSet set{member.cluster().epoch,
                         std::vector<bool>(member.cluster().servers.size(), true)};
  for (const control::Loss& gone : member.gone()) {
    if (gone.is_server) set.serving[gone.index] = false;
    server.lost(gone);
  }
  server.serve(set);
  member.report_server(member.server_index(), 0, true, {});
}

// Waits until all workers have ended their connections: when the rendezvous has left with rank 0,
// nothing else says that they leave. It also ends if this thread is interrupted.
void outlast_workers(server::Server& server) {
  while (!server.released() && !interrupted()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

// `serving` is set as soon as the server exists, so that the caller has it however this ends.
Status serve(const std::string& rendezvous, const std::string& secret, const Settings& settings,
             Nanos waits_since, transport::Transport& transport,
             std::unique_ptr<Serving>& serving) {
  apply_process_settings(settings);
  set_log_identity("server");
  HERRING_ASSIGN_OR_RETURN(auto& options, member_options(rendezvous, secret, settings));
  const Nanos patience = options.connect_timeout;
  const Nanos deadline = monotonic_now() + patience;
  options.waits_since = waits_since == 0 ? monotonic_now() : waits_since;
  log(LogLevel::kInfo, "waits for its job at ", rendezvous);
  HERRING_RETURN_IF_ERROR(Serving::start(options, transport).move_to(serving));
  options.connect_timeout = std::max(deadline - monotonic_now(), kMillisecond);
  const auto wanted = static_cast<uint32_t>(settings.get_int("server_number"));  // -1: any
  const Status joined = serving->join(options, Serving::kNoNode, wanted);
  if (joined.code() == Code::kShutdown) {
    log(LogLevel::kInfo, joined.message());
    return {};
  }
  HERRING_RETURN_IF_ERROR(joined);
  control::Member& member = *serving->member();
  set_log_identity(concat("server ", member.server_index()));
  HERRING_RETURN_IF_ERROR(serving->attach(0));
  server::Server& server = serving->server();
  const bool replaces = member.cluster().epoch != control::kFirstEpoch;
  if (replaces) take_place(member, server);
  log(LogLevel::kInfo, replaces ? "is to serve " : "serves ",
      counted(member.cluster().size, "worker"), " on ",
      counted(member.cluster().nodes, "node"), " at ",
      member.cluster().servers[member.server_index()].address);

  End end;
  std::atomic<bool> outlasts{false};
  member.watch(
      [&](const control::Loss& loss) {
        if (!loss.left && !outlives(server, member.cluster(), loss)) {
          end.set({Code::kPeerLost, loss.text});
        } else {
          server.lost(loss);
        }
      },
      [&](const Status& why) {
        if (!why.message().starts_with(control::kGivenUp)) {
          server.job_failed(why.message());
          return end.set(control::told_to_end(why));
        }
        set_record_place({});  // no record is written, because the job has not failed
        end.set({Code::kPeerLost, why.message()});
      },
      [&](control::Member::End how) {
        if (how == control::Member::End::kNoNews) {
          server.hears_nothing(patience);
          outlasts.store(true);
        }
        end.set({});
      },
      [&](const control::Replacement& news) {
        if (news.stage != control::Replacement::Stage::kServes) return;
        server.serve({news.epoch, news.serving, {}});
        if (news.server != member.server_index()) return;
        log(LogLevel::kInfo, "serves in place of server ", news.server, ", which is lost");
      });
  const Status why = end.wait();
  if (why.ok() && outlasts.load()) {
    log(LogLevel::kInfo, "rank 0 and the rendezvous have left; serves until all workers leave");
    outlast_workers(server);
  }
  serving->end_reports();
  member.goodbye();
  server.stop();
  if (why.ok()) log(LogLevel::kInfo, "the job has ended");
  return why;
}

}  // namespace

Status run_dedicated_server(const std::string& rendezvous, const std::string& secret,
                            const Settings& settings, Nanos waits_since,
                            transport::Transport& transport) {
  std::unique_ptr<Serving> serving;
  const Status status = without_exceptions(
      [&] { return serve(rendezvous, secret, settings, waits_since, transport, serving); });
  // Says why, unless the server has said goodbye: the others would only see this process leave.
  if (!status.ok() && serving && serving->member() != nullptr) serving->member()->abort(status);
  return status;
}

}  // namespace herring::job
