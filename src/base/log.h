// Logs one line per event to stderr, prefixed with the process's identity. HERRING_LOG_LEVEL sets
// the level.
#pragma once

#include <string>

#include "base/status.h"

namespace herring {

enum class LogLevel { kDebug = 0, kInfo, kWarning, kError };

void set_log_level(LogLevel level);
void set_log_level(const std::string& name);  // "debug", "info", "warning", "error"
void set_log_identity(const std::string& who);  // "rank 3", "server 1"
bool log_enabled(LogLevel level);
void log_line(LogLevel level, const std::string& text);

template <typename... Parts>
void log(LogLevel level, const Parts&... parts) {
  if (log_enabled(level)) log_line(level, concat(parts...));
}

}  // namespace herring
