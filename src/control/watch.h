// Watches a running job for the people who run it: collects the reports of all members, tells
// members about ranks that hold them up, and writes lines to the log.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "control/cluster.h"
#include "control/peer.h"
#include "control/recording.h"
#include "observe/file_writer.h"
#include "observe/monitor.h"
#include "observe/timeline.h"

namespace herring::control {

// Runs on the thread of the rendezvous.
class Watch {
 public:
  struct Options {
    std::string job;            // its name
    std::string label;          // what status and metrics call it; empty: its name
    Nanos report_every = 300 * kSecond;
    Nanos heartbeat_interval = 250 * kMillisecond;
    std::string flight_folder;  // value of that setting; "off": there are no flight records
    std::string timeline;       // value of that setting; empty: there is no timeline yet
    bool failover = false;      // whether others stand in for servers that are lost
    bool on_signal = false;     // whether SIGUSR1 asks for the status, in the log
    // Called once, when it is certain that no call can ever end, with who waits where.
    std::function<void(const std::string& who)> deadlocked;
  };

  // `loop` and `peers` must outlive the Watch, which must not be destroyed before the loop has
  // ended.
  Watch(transport::EventLoop& loop, const Peers& peers, const Cluster& cluster, Options options);

  // A member has sent a report. Returns an error if it is malformed.
  Status report(const Peer& from, std::string_view payload);
  void gone(const Peer& peer, bool left);
  // A dedicated server is lost, and others stand in for it.
  void spared(const Peer& peer);
  // A replacement serves.
  void serves(const Peer& peer);
  observe::Picture picture();
  // Writes the last lines of the job to the log.
  void end();

  // A member has sent its entries: because it was asked, or because it has `failed`.
  Status record(const Peer& from, bool failed, std::string_view payload);
  // Writes the record of all members. Returns where, or why not.
  Result<std::string> write_record(const std::string& why);
  // A member has sent entries for the timeline.
  Status timeline(const Peer& from, bool last, std::string_view payload);
  // Begins to write a timeline to this path. Returns kInvalidArgument if one is being written, and
  // kConfiguration if the file cannot be written.
  Status begin_timeline(const std::string& path);
  // Ends the timeline, if there is one, once all members have sent their last entries, which they
  // do within kLastEntries. `ended` is called then, with the file, or with null if there is none.
  using Ended = std::function<void(std::shared_ptr<observe::FileWriter>)>;
  void end_timeline(Ended ended);
  // Writes what has come of records and of the timeline, and waits for the files for a moment.
  void finish();
  // Failures that come now have a reason that all are told anyway: a rank has left, or the program
  // has aborted the job. They begin no record.
  void expect_failures();
  // Returns whether a record is being collected.
  bool collects() const { return recording_ && recording_->collects(); }

 private:
  void prepare_record(const Options& options);
  void want_entries(uint8_t flags);
  void last_came(const observe::Process& process);
  void close_timeline();
  void tick();
  void hear();
  void log_status();

  // How often the job is looked at, and how often members are told of ranks that hold others up.
  static constexpr Nanos kTick = 250 * kMillisecond, kTelling = 250 * kMillisecond;
  static constexpr Nanos kLastEntries = 500 * kMillisecond;
  static constexpr Nanos kShortJob = 60 * kSecond;

  transport::EventLoop& loop_;
  const Peers& peers_;
  const double unix_zero_;  // seconds since 1970 when the loop's clock showed 0
  observe::Monitor monitor_;
  Nanos tell_at_ = 0;
  bool told_ = false;  // members know of some rank
  const Nanos began_;
  std::optional<Recording> recording_;
  std::string place_;                           // of its file, for members
  std::shared_ptr<observe::FileWriter> trace_;  // of the timeline; null: none is written
  std::unique_ptr<observe::Timeline> timeline_;
  std::vector<Ended> ends_;                     // not empty: the timeline is being ended
  std::set<observe::Process> unfinished_;       // members that have not sent their last entries
  uint64_t timelines_ = 0;                      // how many have begun
  uint64_t dropped_ = 0;                        // entries, because the disk was too slow
  bool ended_ = false;
  bool expects_failures_ = false;
  std::function<void(const std::string& who)> deadlocked_;  // null: it was called
  const bool on_signal_;
  uint64_t signals_;  // that were answered
};

}  // namespace herring::control
