#include "control/recording.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/log.h"
#include "base/signal_handlers.h"
#include "control/messages.h"
#include "control/status_service.h"

namespace herring::control {

using wire::FrameType;

namespace {

constexpr Nanos kReading = 200 * kMillisecond;

}  // namespace

Recording::Recording(transport::EventLoop& loop, const Peers& peers, std::string path,
                     double unix_zero, std::function<observe::Picture()> picture)
    : loop_(loop), peers_(peers), path_(std::move(path)), unix_zero_(unix_zero),
      picture_(std::move(picture)) {}

void Recording::begin(const std::string& why) {
  const bool just_now = finished_ != 0 && loop_.now() - finished_ < kPause;
  if (collects_ || just_now || (file_ && !file_->finished())) return;
  then_ = picture_();  // there may be no memory for it: then there is no record
  why_ = why;
  wanted_ = 0;
  echoes_ = false;
  timer_ = loop_.call_after(kPatience, [this] { finish(); });
  collects_ = true;
  // A launcher ends all ranks as soon as one has failed.
  hold_termination();
  for (const auto& peer : peers_) {
    if (!peer->is_member() || peer->index == ~0u) continue;
    ++wanted_;
    peer->channel->send(FrameType::kRecord);
  }
}

void Recording::add(const Peer& from, observe::ProcessRecord record) {
  if (!collects_) return;
  observe::keep_latest(record.entries, std::max(kMostEntries / peers_.size(), kFewestOfOne));
  const observe::Process process = process_of(from);
  const auto known = std::find_if(records_.begin(), records_.end(), [&process](const auto& one) {
    return one.first == process;
  });
  if (known == records_.end()) {
    records_.emplace_back(process, std::move(record));
    check_complete();
  } else if (known->second.failure.empty() && !record.failure.empty()) {
    known->second = std::move(record);
    check_complete();
  }
}

void Recording::gone(const Peer& peer) {
  if (!collects_ || wanted_ == 0) return;
  const observe::Process process = process_of(peer);
  const bool told = std::any_of(records_.begin(), records_.end(), [&process](const auto& one) {
    return one.first == process;
  });
  if (!told) --wanted_;
  check_complete();
}

void Recording::check_complete() {
  if (records_.size() < wanted_) return;
  if (all_have_failed()) return finish();
  if (std::exchange(echoes_, true)) return;
  loop_.cancel(timer_);
  timer_ = loop_.call_after(kEcho, [this] { finish(); });
}

// Returns whether all workers that are still here have said why they failed.
bool Recording::all_have_failed() const {
  return std::ranges::all_of(peers_, [this](const auto& peer) {
    if (!peer->is_member() || peer->kind != Peer::Kind::kWorker || peer->index == ~0u) return true;
    const observe::Process process = process_of(*peer);
    return std::ranges::any_of(records_, [&process](const auto& one) {
      return one.first == process && !one.second.failure.empty();
    });
  });
}

void Recording::flush() {
  if (file_) file_->flush();
  release_termination();
}

void Recording::finish() {
  if (!std::exchange(collects_, false)) return;
  loop_.cancel(timer_);
  finished_ = loop_.now();
  loop_.call_after(2 * kSecond, [] { release_termination(); });  // the disk may not answer
  std::sort(records_.begin(), records_.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  // The file of a large job takes long to make.
  struct Contents {
    observe::Roster roster;
    observe::Picture picture;
    std::string why;
    std::vector<std::pair<observe::Process, observe::ProcessRecord>> records;
  };
  auto contents = std::make_shared<Contents>();
  contents->picture = picture_();
  // Members that fail leave the job. What counts is what they did before.
  const auto undo = [](auto& now, const auto& then) {
    for (size_t i = 0; i < now.size(); ++i) {
      if (now[i].state == observe::State::kLeft) now[i].state = then[i].state;
    }
  };
  undo(contents->picture.ranks, then_.ranks);
  undo(contents->picture.servers, then_.servers);
  if (contents->picture.missing.empty()) contents->picture.missing = std::move(then_.missing);
  then_ = {};
  contents->roster = *contents->picture.roster;
  contents->picture.roster = &contents->roster;
  contents->why = why_;
  contents->records = std::exchange(records_, {});
  auto file = observe::WholeFile::write(
      path_,
      [contents, zero = unix_zero_] {
        return observe::record_as_json(contents->picture, contents->why, contents->records, zero);
      },
      [path = path_](const Status& status) {
        if (status.ok()) {
          log(LogLevel::kWarning, "what all ranks did last is in ", path, "; 'herring flight ",
              path, "' says who waited for whom");
        } else {
          log(LogLevel::kWarning, "there is no flight record: ", status.message(),
              " (HERRING_FLIGHT_FOLDER)");
        }
        wait_for_log_reader(kReading);  // otherwise the line could be lost with the process
        release_termination();
      });
  if (file.ok()) {
    file_ = std::move(*file);
  } else {
    log(LogLevel::kWarning, "there is no flight record: ", file.status().message());
    release_termination();
  }
}

Result<std::string> record_folder(const std::string& setting) {
  namespace fs = std::filesystem;
  if (!setting.empty()) {
    std::error_code error;
    // A program may change its working directory before the record is written.
    const fs::path absolute = fs::absolute(setting, error);
    const std::string folder = error ? setting : absolute.string();
    fs::create_directories(folder, error);
    if (access(folder.c_str(), W_OK | X_OK) == 0) return folder;
    return Status(Code::kConfiguration,
                  concat("HERRING_FLIGHT_FOLDER=", setting, ": ", std::strerror(errno)));
  }
  const char* const temporary = std::getenv("TMPDIR");
  const std::string folder = concat(temporary != nullptr && *temporary == '/' ? temporary : "/tmp",
                                    "/herring-", getuid());
  HERRING_RETURN_IF_ERROR(make_own_folder(folder));
  constexpr size_t kMostKept = 19;  // and that of this job
  std::error_code error;
  std::vector<std::pair<fs::file_time_type, fs::path>> records;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (!entry.path().string().ends_with(".flight.json")) continue;
    const auto written = entry.last_write_time(error);
    if (!error) records.emplace_back(written, entry.path());
  }
  std::sort(records.begin(), records.end());
  for (size_t i = 0; i + kMostKept < records.size(); ++i) fs::remove(records[i].second, error);
  return folder;
}

}  // namespace herring::control
