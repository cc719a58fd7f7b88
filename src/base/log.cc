#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <mutex>

namespace herring {
namespace {

std::atomic<int> g_level{static_cast<int>(LogLevel::kWarning)};
std::mutex g_mutex;

std::string& identity() {
  static std::string who = "herring";
  return who;
}

}  // namespace

void set_log_level(LogLevel level) { g_level.store(static_cast<int>(level)); }

void set_log_level(const std::string& name) {
  constexpr const char* kNames[] = {"debug", "info", "warning", "error"};
  for (int i = 0; i < 4; ++i) {
    if (name == kNames[i]) g_level.store(i);
  }
}

void set_log_identity(const std::string& who) {
  std::lock_guard lock(g_mutex);
  identity() = who;
}

bool log_enabled(LogLevel level) { return static_cast<int>(level) >= g_level.load(); }

void log_line(LogLevel level, const std::string& text) {
  constexpr const char* kNames[] = {"debug", "info", "warning", "error"};
  std::string line;
  {
    std::lock_guard lock(g_mutex);
    line = concat("[herring ", identity(), "] ", kNames[static_cast<int>(level)], ": ", text, "\n");
  }
  // A single write keeps lines of several processes from interleaving.
  [[maybe_unused]] ssize_t ignored = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace herring
