#include "base/record_place.h"

#include <mutex>
#include <utility>

#include "base/fork_guard.h"

namespace herring {
namespace {

// Never destroyed: threads may raise errors while static objects are. The mutex is held inside a
// ForkSection only, so it is free in a forked child.
struct Place {
  std::mutex mutex;
  std::string text;  // guarded by mutex
};

Place& the_place() {
  static auto* const place = new Place;
  return *place;
}

}  // namespace

void set_record_place(std::string place) {
  ForkSection section;
  std::lock_guard lock(the_place().mutex);
  the_place().text = std::move(place);
}

std::string record_place() {
  ForkSection section;
  std::lock_guard lock(the_place().mutex);
  return the_place().text;
}

}  // namespace herring
