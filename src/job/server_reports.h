// What a server tells: who comes late, what it sums, and counters.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "job/report_source.h"
#include "server/server.h"

namespace herring::job {

class ServerReports final : public ReportSource {
 public:
  // `server` must outlive this object.
  explicit ServerReports(server::Server& server) : server_(server) {}

  Nanos pause() const override;
  std::optional<observe::Report> report() override;
  observe::ProcessRecord timeline(bool last) override;
  observe::ProcessRecord record() override;
  void told(const observe::RankTexts& texts) override;

 private:
  observe::Still stands_still(const server::ServerView& view, Nanos now);

  static constexpr Nanos kInterval = 500 * kMillisecond, kStalledInterval = 250 * kMillisecond;

  server::Server& server_;
  Nanos due_ = 0;       // when the next report is
  uint64_t told_ = 0;   // a cursor in the recorder
  // What changes with whatever a server does, and since when it has not.
  std::optional<std::array<uint64_t, 3>> done_;
  Nanos still_since_ = 0;
};

}  // namespace herring::job
