// Collects the flight record of a job: asks all members for their latest entries, waits a moment
// for the answers, and writes one file.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "control/peer.h"
#include "observe/file_writer.h"
#include "observe/record.h"

namespace herring::control {

// Runs on the thread of the rendezvous.
class Recording {
 public:
  // `path`: of the file, which a later record replaces. `picture`: returns the job as it is then.
  // `loop` and `peers` must outlive the Recording, which must not be destroyed before the loop has
  // ended.
  Recording(transport::EventLoop& loop, const Peers& peers, std::string path, double unix_zero,
            std::function<observe::Picture()> picture);

  const std::string& path() const { return path_; }
  // Asks all members, unless that was done a moment ago.
  void begin(const std::string& why);
  // A member has sent its entries. Does nothing unless records are being collected.
  void add(const Peer& from, observe::ProcessRecord record);
  // A member is gone and will not answer.
  void gone(const Peer& peer);
  bool collects() const { return collects_; }
  // Returns whether a record was ever begun.
  bool ever() const { return collects_ || finished_ != 0; }
  // Writes what has come so far, if something is being collected.
  void finish();
  // Waits for a moment until the file is written.
  void flush();

 private:
  // For how long members may answer, and how soon another record may follow.
  static constexpr Nanos kPatience = kSecond, kPause = 5 * kSecond;
  // How long a record waits, when all have answered, for workers that have not said yet that they
  // fail for the same reason.
  static constexpr Nanos kEcho = 100 * kMillisecond;
  // Entries in the file, so that it stays readable for large jobs.
  static constexpr size_t kMostEntries = 1 << 17, kFewestOfOne = 32;

  void check_complete();
  bool all_have_failed() const;

  transport::EventLoop& loop_;
  const Peers& peers_;
  const std::string path_;
  const double unix_zero_;
  const std::function<observe::Picture()> picture_;
  bool collects_ = false;
  size_t wanted_ = 0;  // members that were asked
  bool echoes_ = false;  // all have answered, and it ends after kEcho
  Nanos finished_ = 0;
  std::string why_;
  observe::Picture then_;  // when the record was begun
  std::vector<std::pair<observe::Process, observe::ProcessRecord>> records_;
  std::unique_ptr<observe::WholeFile> file_;
  transport::EventLoop::TimerId timer_ = 0;
};

// Returns the folder for records: `setting`, or a folder of this user in the system's folder for
// temporary files. It exists then. Removes the oldest records in the latter.
Result<std::string> record_folder(const std::string& setting);

}  // namespace herring::control
