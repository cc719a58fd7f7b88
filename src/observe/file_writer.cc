#include "observe/file_writer.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "base/fd.h"
#include "base/fork_guard.h"
#include "base/signals.h"

namespace herring::observe {
namespace {

Status cannot_write(const std::string& path) {
  return {Code::kConfiguration, concat("cannot write ", path, ": ", std::strerror(errno))};
}

// A pipe that nobody reads would keep the caller.
UniqueFd create(const std::string& path, mode_t mode) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK;
  return UniqueFd(::open(path.c_str(), kFlags, mode));
}

Status put(int fd, const std::string& text, const std::string& path) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t wrote = ::write(fd, text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return cannot_write(path);
    done += static_cast<size_t>(wrote);
  }
  return {};
}

// Threads are detached, so that a disk that never answers keeps nobody but them.
Status run_apart(const std::string& path, std::function<void()> body) {
  const WithoutSignals without_signals;
  try {
    std::thread([body = std::move(body)] {
      pthread_setname_np(pthread_self(), "herring-file");
      body();
    }).detach();
  } catch (const std::system_error& error) {
    return {Code::kInternal, concat("cannot write ", path, ": ", error.what())};
  }
  return {};
}

}  // namespace

// The thread owns a share, so that a disk that never answers keeps nobody but that thread.
class FileWriter::Impl {
 public:
  Impl(std::string path, Failed failed) : path(std::move(path)), failed_(std::move(failed)) {}

  void run() {
    const Status opened = open_file();
    std::unique_lock lock(mutex_);
    opened_ = opened;
    changed_.notify_all();
    if (!opened.ok()) return;
    for (;;) {
      changed_.wait(lock, [this] { return ends_ || !queue_.empty(); });
      if (queue_.empty()) break;
      const std::string text = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      const Status status = put(fd_.get(), text, path);
      lock.lock();
      queued_ -= text.size();
      changed_.notify_all();
      if (status.ok()) continue;
      broken_ = true;
      queue_.clear();
      queued_ = 0;
      lock.unlock();
      failed_(status);
      lock.lock();
    }
    lock.unlock();
    fd_.reset();  // which may take long, too
    lock.lock();
    closed_ = true;
    changed_.notify_all();
  }

  Status opened() {
    std::unique_lock lock(mutex_);
    const auto known = [this] { return opened_.has_value(); };
    if (changed_.wait_for(lock, std::chrono::nanoseconds(kPatience), known)) return *opened_;
    ends_ = true;
    return {Code::kConfiguration, concat("cannot write ", path, ": it does not open within ",
                                         in_seconds(kPatience))};
  }

  bool broken() {
    std::lock_guard lock(mutex_);
    return broken_;
  }

  bool write(std::string text) {
    std::lock_guard lock(mutex_);
    if (broken_ || ends_ || queued_ + text.size() > kMostQueued) return false;
    queued_ += text.size();
    queue_.push_back(std::move(text));
    changed_.notify_all();
    return true;
  }

  void end() {
    std::lock_guard lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }

  bool finish() {
    std::unique_lock lock(mutex_);
    ends_ = true;
    changed_.notify_all();
    return changed_.wait_for(lock, std::chrono::nanoseconds(kPatience),
                             [this] { return closed_; });
  }

  bool here() const { return generation_ == fork_generation(); }

  const std::string path;

 private:
  Status failure(int error) const {
    return {Code::kConfiguration, concat("cannot write ", path, ": ", std::strerror(error))};
  }

  Status open_file() {
    // A pipe that nobody reads would make this wait.
    fd_ = UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644));
    if (!fd_.valid()) {
      return errno == ENXIO ? Status(Code::kConfiguration,
                                     concat("cannot write ", path, ": nobody reads this pipe"))
                            : failure(errno);
    }
    if (fcntl(fd_.get(), F_SETFL, fcntl(fd_.get(), F_GETFL) & ~O_NONBLOCK) != 0) {
      return failure(errno);
    }
    struct stat file {};
    if (fstat(fd_.get(), &file) != 0 || !S_ISREG(file.st_mode)) return {};
    // Some file systems have no locks.
    if (flock(fd_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      return {Code::kConfiguration, concat("cannot write ", path, ": another process writes it")};
    }
    return ftruncate(fd_.get(), 0) == 0 ? Status() : failure(errno);
  }

  UniqueFd fd_;  // of the writer's thread
  const Failed failed_;
  const uint32_t generation_ = fork_generation();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> queue_;  // guarded by mutex_, as is all of the following
  size_t queued_ = 0;              // bytes
  bool broken_ = false, ends_ = false, closed_ = false;
  std::optional<Status> opened_;
};

Result<std::unique_ptr<FileWriter>> FileWriter::open(const std::string& path, Failed failed) {
  auto impl = std::make_shared<Impl>(path, std::move(failed));
  HERRING_RETURN_IF_ERROR(run_apart(path, [impl] { impl->run(); }));
  HERRING_RETURN_IF_ERROR(impl->opened());
  return std::unique_ptr<FileWriter>(new FileWriter(std::move(impl)));
}

FileWriter::~FileWriter() {
  if (impl_->here()) impl_->end();
}

bool FileWriter::write(std::string text) { return impl_->write(std::move(text)); }
bool FileWriter::finish() { return impl_->here() && impl_->finish(); }
bool FileWriter::broken() const { return impl_->broken(); }
const std::string& FileWriter::path() const { return impl_->path; }

struct WholeFile::State {
  const uint32_t generation = fork_generation();
  std::mutex mutex;
  std::condition_variable changed;
  bool finished = false;  // guarded by mutex
};

Result<std::unique_ptr<WholeFile>> WholeFile::write(const std::string& path, Make make,
                                                    Done done) {
  auto state = std::make_shared<State>();
  HERRING_RETURN_IF_ERROR(run_apart(path, [state, path, make = std::move(make),
                                           done = std::move(done)] {
    const std::string early = path + ".part";
    Status status = without_exceptions([&]() -> Status {
      const std::string text = make();
      const UniqueFd fd = create(early, 0600);
      if (!fd.valid()) return cannot_write(path);
      HERRING_RETURN_IF_ERROR(put(fd.get(), text, path));
      return rename(early.c_str(), path.c_str()) == 0 ? Status() : cannot_write(path);
    });
    if (!status.ok()) unlink(early.c_str());
    done(status);
    std::lock_guard lock(state->mutex);
    state->finished = true;
    state->changed.notify_all();
  }));
  return std::unique_ptr<WholeFile>(new WholeFile(std::move(state)));
}

bool WholeFile::finished() const {
  if (state_->generation != fork_generation()) return true;
  std::lock_guard lock(state_->mutex);
  return state_->finished;
}

void WholeFile::flush() const {
  if (state_->generation != fork_generation()) return;
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_for(lock, std::chrono::nanoseconds(FileWriter::kPatience),
                           [this] { return state_->finished; });
}

}  // namespace herring::observe
