#include "base/process_age.h"

#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <sstream>
#include <string>

namespace herring {

Nanos process_age() {
  constexpr int kStart = 22, kState = 3;  // fields, as proc(5) counts them
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  // The name in parentheses may itself contain spaces and parentheses.
  const size_t name = text.rfind(')');
  if (name == std::string::npos) return 0;
  std::istringstream fields(text.substr(name + 1));
  std::string field;
  for (int i = kState; i < kStart; ++i) fields >> field;
  double ticks = 0;
  timespec now;
  if (!(fields >> ticks) || clock_gettime(CLOCK_BOOTTIME, &now) != 0) return 0;
  const double start = ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
  return std::max<Nanos>(now.tv_sec * kSecond + now.tv_nsec - from_seconds(start), 0);
}

}  // namespace herring
