// The log of a process: one line per event, with its time, its level and the process that speaks.
// HERRING_LOG_LEVEL picks the least severe level that is logged.
//
// A line goes to stderr, or to a queue where another language's logging takes it. Logging never
// takes the GIL and never waits for whoever reads the queue: lines that nobody takes are written to
// stderr. In a forked child, where the reader of the queue does not exist, all lines go to stderr.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace herring {

enum class LogLevel { kDebug = 0, kInfo, kWarning, kError };

struct LogLine {
  Nanos time = 0;   // nanoseconds since 1970
  LogLevel level = LogLevel::kInfo;
  std::string who;  // "rank 3", "server 1"; empty while the process does not know its place
  std::string text;
};

void set_log_level(LogLevel level);
void set_log_level(const std::string& name);  // "debug", "info", "warning", "error"
void set_log_identity(const std::string& who);
bool log_enabled(LogLevel level);
void log_line(LogLevel level, const std::string& text);
[[gnu::cold]] void log_parts(LogLevel level, Parts parts);

template <typename... Each>
void log(LogLevel level, const Each&... parts) {
  log_parts(level, {Part(parts)...});
}

// "2026-01-31 13:05:59.123 [herring rank 3] warning: text" and a line end, in local time.
std::string format_log_line(const LogLine& line);
// Writes the formatted line to stderr in one system call, whether or not there is a queue.
void write_log_line(const LogLine& line);

// From now on lines wait for take_log_lines() on a thread of the caller. A queue that holds
// kMostLogLines, or whose oldest line has waited for kLogPatience when another one comes, is
// written to stderr.
inline constexpr size_t kMostLogLines = 1000;
inline constexpr Nanos kLogPatience = 10 * kSecond;
void open_log_queue();
// Waits for lines and returns all of them; empty when the queue is closed and nothing is left.
std::vector<LogLine> take_log_lines();
// Waits until the reader has handed on all lines, which it shows by its next call of
// take_log_lines(). Returns false if that takes longer than `patience`.
bool wait_for_log_reader(Nanos patience);
// Later lines go to stderr. What the queue holds can still be taken.
void close_log_queue();
// Writes to stderr what the queue still holds.
void flush_log_queue();

}  // namespace herring
