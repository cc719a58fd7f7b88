#include "base/version.h"

#include <mutex>
#include <utility>

#include "base/fork_guard.h"

namespace herring {
namespace {

// Never destroyed, as threads may ask while static objects are. The mutex is held inside a
// ForkSection only, so it is free in a forked child.
struct VersionText {
  std::mutex mutex;
  std::string text;  // guarded by mutex
};

VersionText& known() {
  static auto* const known = new VersionText;
  return *known;
}

}  // namespace

void set_version(std::string version) {
  ForkSection section;
  std::lock_guard lock(known().mutex);
  known().text = std::move(version);
}

std::string version() {
  ForkSection section;
  std::lock_guard lock(known().mutex);
  return known().text;
}

}  // namespace herring
