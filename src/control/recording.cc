#include "control/recording.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/log.h"
#include "control/messages.h"

namespace herring::control {

using wire::FrameType;

Recording::Recording(transport::EventLoop& loop, const Peers& peers, std::string path,
                     double unix_zero, std::function<observe::Picture()> picture)
    : loop_(loop), peers_(peers), path_(std::move(path)), unix_zero_(unix_zero),
      picture_(std::move(picture)) {}

void Recording::begin(const std::string& why) {
  if (collects_ || (finished_ != 0 && loop_.now() - finished_ < kPause)) return;
  collects_ = true;
  why_ = why;
  records_.clear();
  wanted_ = 0;
  for (const auto& peer : peers_) {
    if (!peer->is_member() || peer->index == ~0u) continue;
    ++wanted_;
    peer->channel->send(FrameType::kRecord);
  }
  timer_ = loop_.call_after(kPatience, [this] { finish(); });
}

void Recording::add(const Peer& from, observe::ProcessRecord record) {
  const observe::Process process = process_of(from);
  const auto known = std::find_if(records_.begin(), records_.end(), [&process](const auto& one) {
    return one.first == process;
  });
  if (known == records_.end()) {
    records_.emplace_back(process, std::move(record));
  } else if (known->second.failure.empty()) {
    known->second = std::move(record);
  }
  if (collects_ && records_.size() >= wanted_) finish();
}

void Recording::finish() {
  if (!std::exchange(collects_, false)) return;
  loop_.cancel(timer_);
  finished_ = loop_.now();
  std::sort(records_.begin(), records_.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  const observe::Picture picture = picture_();
  auto writer = observe::FileWriter::open(path_, [](const Status& why) {
    log(LogLevel::kWarning, "the flight record is not complete: ", why.message());
  });
  if (!writer.ok()) {
    log(LogLevel::kWarning, "there is no flight record: ", writer.status().message(),
        " (HERRING_FLIGHT_FOLDER)");
    return;
  }
  writer_ = std::move(*writer);
  writer_->write(observe::record_as_json(picture, why_, records_, unix_zero_));
  log(LogLevel::kWarning, "what all ranks did last is in ", path_, "; 'herring flight ", path_,
      "' says who waited for whom");
}

Result<std::string> record_folder(const std::string& setting) {
  namespace fs = std::filesystem;
  if (!setting.empty()) {
    std::error_code error;
    fs::create_directories(setting, error);
    if (access(setting.c_str(), W_OK | X_OK) == 0) return setting;
    return Status(Code::kConfiguration,
                  concat("HERRING_FLIGHT_FOLDER=", setting, ": ", std::strerror(errno)));
  }
  const char* const temporary = std::getenv("TMPDIR");
  const std::string folder = concat(temporary != nullptr && *temporary == '/' ? temporary : "/tmp",
                                    "/herring-", getuid());
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return Status(Code::kConfiguration,
                  concat("cannot make the folder ", folder, ": ", std::strerror(errno)));
  }
  struct stat found {};
  if (lstat(folder.c_str(), &found) != 0 || !S_ISDIR(found.st_mode) ||
      found.st_uid != getuid() || (found.st_mode & 077) != 0) {
    return Status(Code::kConfiguration,
                  concat(folder, " is not a folder that belongs to this user alone (mode 0700)"));
  }
  constexpr size_t kMostKept = 20;
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
