// Names in folders, and with them the open descriptors of this process.
#pragma once

#include <dirent.h>

#include <set>
#include <string>

namespace herring {

inline std::set<std::string> names_in(const char* directory) {
  std::set<std::string> names;
  if (DIR* dir = ::opendir(directory)) {
    while (dirent* entry = ::readdir(dir)) names.insert(entry->d_name);
    ::closedir(dir);
  }
  return names;
}

inline size_t open_fds() { return names_in("/proc/self/fd").size(); }

}  // namespace herring
