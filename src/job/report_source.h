// What a process of the job, a worker or a server, tells about itself. Reporter sends it.
#pragma once

#include <optional>

#include "base/clock.h"
#include "observe/record.h"
#include "observe/report.h"

namespace herring::job {

class ReportSource {
 public:
  virtual ~ReportSource() = default;

  // These three are called on one thread, repeatedly, after pauses of pause().
  virtual Nanos pause() const = 0;
  // Returns a report if one is due.
  virtual std::optional<observe::Report> report() = 0;
  // Returns the entries that have ended since the last call; with `last`, also those that have not
  // ended.
  virtual observe::ProcessRecord timeline(bool last) = 0;

  // Any thread; must not block.
  // Returns the latest entries, and what the process does.
  virtual observe::ProcessRecord record() = 0;
  // The rendezvous has told of ranks that hold others up.
  virtual void told(const observe::RankTexts& texts) = 0;
  // A report could not be sent.
  virtual void dropped() {}
};

}  // namespace herring::job
