// Everything that one worker process runs for a job: its engine, its membership and, if assigned to
// this rank, the rendezvous and a colocated server.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/settings.h"
#include "control/member.h"
#include "control/rendezvous.h"
#include "job/colocated.h"
#include "job/reporter.h"
#include "job/worker_reports.h"
#include "transport/tcp/transport.h"
#include "worker/engine.h"

namespace herring::job {

struct JobOptions {
  uint32_t rank = 0, size = 1;
  int local_rank = -1, local_size = -1;
  uint32_t dedicated_servers = 0;
  std::string rendezvous;        // host:port
  bool hosts_rendezvous = true;  // rank 0 only
  int rendezvous_fd = -1;        // an inherited listener for the rendezvous, or -1
  std::string host_id;
  std::string secret;            // raw bytes
  Settings settings;
  // Carries the data plane.
  transport::tcp::TcpTransport* transport = &transport::tcp::transport();
};

class Job {
 public:
  // If this process alone cannot take part, the other processes get its error too.
  static Result<std::unique_ptr<Job>> start(JobOptions options);
  // Tells the others an error that was found before start(). Starts nothing. Takes a bounded time.
  static void decline(JobOptions options, const Status& why);
  ~Job();

  worker::Engine& engine() { return *engine_; }
  const control::Cluster& cluster() const { return member_->cluster(); }
  uint32_t rank() const { return options_.rank; }
  // Returns WorkerReports::late(), or 0 if the job is not observed. Any thread.
  Nanos late() const { return reports_ ? reports_->late() : 0; }
  // Makes every rank's pending and later operations fail with this reason. Any thread; cannot hang.
  void abort(const std::string& reason);
  // These do something on the rank that hosts the rendezvous only, and nothing on others; see
  // control::Watch. Any thread.
  Status begin_timeline(const std::string& path);
  Status end_timeline();
  // Returns where the record is written, or nothing on other ranks.
  Result<std::string> write_record(const std::string& why);
  // Leaves the job. Operations in flight fail with kShutdown. Other ranks may use the server in
  // this process for as long as they need it, but only for a moment if the program has `failed`, or
  // if this thread is interrupted. Takes at most 10 s once nothing moves in that server.
  void shutdown(bool failed = false);
  // For tests: ends as if the process had died, so the others hear no goodbye. Not for rank 0.
  void vanish();

 private:
  explicit Job(JobOptions options) : options_(std::move(options)) {}
  Status host_rendezvous();
  Status join();
  Status connect();
  Status connect_neighbours(Nanos deadline);
  Result<std::vector<worker::ServerFlow>> connect_servers(
      const control::Member::Options& member, uint32_t flows, Nanos deadline,
      std::string& own_host);
  void tell_others(const Status& why);
  void on_loss(const control::Loss& loss);
  void on_abort(const Status& why);
  void on_replacement(const control::Replacement& news);
  Status cannot_connect();
  void log_begin(const engine::EngineOptions& engine, uint32_t flows);
  void log_end();

  JobOptions options_;
  std::unique_ptr<LocalBus> bus_;  // until the engine takes it
  bool asked_ = false;  // registration was sent, so everybody gets the rendezvous' answer
  std::unique_ptr<control::Rendezvous> rendezvous_;
  std::unique_ptr<Colocated> colocated_;
  std::unique_ptr<control::Member> member_;
  std::unique_ptr<worker::Engine> engine_;
  // Null if the job is not observed.
  std::unique_ptr<WorkerReports> reports_;
  std::unique_ptr<Reporter> reporter_;

  std::mutex news_;  // guards the members below
  bool hears_ = false;                       // the engine exists
  std::vector<control::Loss> early_losses_;  // from before the engine exists
  std::vector<control::Replacement> early_replacements_;  // likewise
  Status early_abort_;

  bool down_ = false;
  Nanos began_ = 0;  // when the engine was there
};

}  // namespace herring::job
