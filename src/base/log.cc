#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <ctime>
#include <mutex>
#include <utility>

#include "base/fork_guard.h"
#include "base/wake.h"

namespace herring {
namespace {

constexpr const char* kLevelNames[] = {"debug", "info", "warning", "error"};

std::atomic<int> g_level{static_cast<int>(LogLevel::kWarning)};

// Never destroyed: threads may log while static objects are. The mutex is held inside a ForkSection
// only, so it is free in a forked child.
struct Log {
  std::mutex mutex;
  std::string who;             // guarded by mutex, as is all of the following
  bool queues = false;
  uint32_t generation = 0;     // of the process that opened the queue
  std::vector<LogLine> queue;
  Nanos oldest = 0;            // when the first line in the queue came; monotonic
  bool reading = false;        // the reader has lines that it may not have handed on yet
};

Log& the_log() {
  static auto* const log = new Log;
  return *log;
}

std::atomic<Wake*> g_wake{nullptr};  // of the newest queue's reader; never destroyed

Nanos wall_clock_now() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

}  // namespace

void set_log_level(LogLevel level) { g_level.store(static_cast<int>(level)); }

void set_log_level(const std::string& name) {
  for (int i = 0; i < 4; ++i) {
    if (name == kLevelNames[i]) g_level.store(i);
  }
}

void set_log_identity(const std::string& who) {
  ForkSection section;
  std::lock_guard lock(the_log().mutex);
  the_log().who = who;
}

bool log_enabled(LogLevel level) { return static_cast<int>(level) >= g_level.load(); }

void log_parts(LogLevel level, Parts parts) {
  if (log_enabled(level)) log_line(level, concat_parts(parts));
}

void log_line(LogLevel level, const std::string& text) {
  LogLine line{wall_clock_now(), level, {}, text};
  std::vector<LogLine> now;  // what goes to stderr
  bool queued = false;
  {
    ForkSection section;
    Log& log = the_log();
    std::lock_guard lock(log.mutex);
    line.who = log.who;
    const Nanos at = monotonic_now();
    if (!log.queues || log.generation != fork_generation()) {
      now.push_back(std::move(line));
    } else {
      const bool stuck = !log.queue.empty() && at - log.oldest > kLogPatience;
      if (log.queue.empty()) log.oldest = at;
      log.queue.push_back(std::move(line));
      if (stuck || log.queue.size() > kMostLogLines) now.swap(log.queue);
      queued = !log.queue.empty();
    }
  }
  if (queued) g_wake.load()->ring();
  for (const LogLine& one : now) write_log_line(one);
}

std::string format_log_line(const LogLine& line) {
  const std::time_t seconds = line.time / kSecond;
  std::tm parts{};
  {
    ForkSection section;  // localtime_r takes a lock of libc's, which must be free in a child
    ::localtime_r(&seconds, &parts);
  }
  char date[32], time[48];
  std::strftime(date, sizeof date, "%Y-%m-%d %H:%M:%S", &parts);
  std::snprintf(time, sizeof time, "%s.%03d", date,
                static_cast<int>(line.time / kMillisecond % 1000));
  return concat(time, " [herring", line.who.empty() ? "" : " ", line.who, "] ",
                kLevelNames[static_cast<int>(line.level)], ": ", line.text, "\n");
}

void write_log_line(const LogLine& line) {
  const std::string text = format_log_line(line);
  // A single write keeps lines of several processes from interleaving.
  [[maybe_unused]] ssize_t ignored = ::write(STDERR_FILENO, text.data(), text.size());
}

void open_log_queue() {
  ForkSection section;
  Log& log = the_log();
  std::lock_guard lock(log.mutex);
  if (g_wake.load() == nullptr || log.generation != fork_generation()) {
    g_wake.store(new Wake);
    log.queue.clear();  // in a child: the parent's lines
    log.reading = false;
  }
  log.queues = true;
  log.generation = fork_generation();
}

std::vector<LogLine> take_log_lines() {
  Wake* const wake = g_wake.load();
  if (wake == nullptr) return {};
  bool read = false;
  {
    ForkSection section;
    std::lock_guard lock(the_log().mutex);
    read = std::exchange(the_log().reading, false);
  }
  if (read) wake->ring();  // wakes wait_for_log_reader() too
  for (;;) {
    const uint64_t seen = wake->count();
    {
      ForkSection section;
      Log& log = the_log();
      std::lock_guard lock(log.mutex);
      if (!log.queue.empty()) {
        log.reading = true;
        return std::exchange(log.queue, {});
      }
      if (!log.queues) return {};
    }
    wake->wait(seen);
  }
}

bool wait_for_log_reader(Nanos patience) {
  Wake* const wake = g_wake.load();
  if (wake == nullptr) return true;
  const Nanos deadline = monotonic_now() + patience;
  for (;;) {
    const uint64_t seen = wake->count();
    {
      ForkSection section;
      Log& log = the_log();
      std::lock_guard lock(log.mutex);
      if (log.generation != fork_generation()) return true;
      if (log.queue.empty() && !log.reading) return true;
    }
    if (!wake->wait_for(seen, deadline - monotonic_now())) return false;
  }
}

void close_log_queue() {
  {
    ForkSection section;
    Log& log = the_log();
    std::lock_guard lock(log.mutex);
    if (!std::exchange(log.queues, false) || log.generation != fork_generation()) return;
  }
  g_wake.load()->ring();
}

void flush_log_queue() {
  std::vector<LogLine> left;
  {
    ForkSection section;
    std::lock_guard lock(the_log().mutex);
    left.swap(the_log().queue);
  }
  for (const LogLine& line : left) write_log_line(line);
}

}  // namespace herring
