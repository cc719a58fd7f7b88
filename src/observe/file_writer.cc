#include "observe/file_writer.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/fd.h"
#include "base/fork_guard.h"
#include "base/signals.h"

namespace herring::observe {

// The thread owns a share, so that a disk that never answers keeps nobody but that thread.
class FileWriter::Impl {
 public:
  Impl(std::string path, UniqueFd fd, Failed failed)
      : path(std::move(path)), fd_(std::move(fd)), failed_(std::move(failed)) {}

  void run() {
    pthread_setname_np(pthread_self(), "herring-file");
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ends_ || !queue_.empty(); });
      if (queue_.empty()) break;
      const std::string text = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      const Status status = put(text);
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

  void flush() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::nanoseconds(kPatience), [this] { return queued_ == 0; });
  }

  bool here() const { return generation_ == fork_generation(); }

  const std::string path;

 private:
  Status put(const std::string& text) {
    size_t done = 0;
    while (done < text.size()) {
      const ssize_t wrote = ::write(fd_.get(), text.data() + done, text.size() - done);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) {
        return {Code::kConfiguration, concat("cannot write ", path, ": ", std::strerror(errno))};
      }
      done += static_cast<size_t>(wrote);
    }
    return {};
  }

  const UniqueFd fd_;
  const Failed failed_;
  const uint32_t generation_ = fork_generation();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> queue_;  // guarded by mutex_, as is all of the following
  size_t queued_ = 0;              // bytes
  bool broken_ = false, ends_ = false;
};

Result<std::unique_ptr<FileWriter>> FileWriter::open(const std::string& path, Failed failed) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd.valid()) {
    return Status(Code::kConfiguration, concat("cannot write ", path, ": ", std::strerror(errno)));
  }
  auto impl = std::make_shared<Impl>(path, std::move(fd), std::move(failed));
  const WithoutSignals without_signals;
  try {
    std::thread([impl] { impl->run(); }).detach();
  } catch (const std::system_error& error) {
    return Status(Code::kInternal, concat("cannot write ", path, ": ", error.what()));
  }
  return std::unique_ptr<FileWriter>(new FileWriter(std::move(impl)));
}

FileWriter::~FileWriter() {
  if (impl_->here()) impl_->end();
}

bool FileWriter::write(std::string text) { return impl_->write(std::move(text)); }
void FileWriter::flush() {
  if (impl_->here()) impl_->flush();
}
const std::string& FileWriter::path() const { return impl_->path; }

}  // namespace herring::observe
