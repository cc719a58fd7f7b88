#include "base/process_texts.h"

#include <mutex>
#include <utility>

#include "base/fork_guard.h"

namespace herring {
namespace {

class ProcessText {
 public:
  void set(std::string text) {
    ForkSection section;
    std::lock_guard lock(mutex_);
    text_ = std::move(text);
  }
  std::string get() {
    ForkSection section;
    std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  std::mutex mutex_;  // held inside a ForkSection only, so it is free in a forked child
  std::string text_;
};

// Never destroyed: threads may ask, or raise errors, while static objects are.
ProcessText& the_version() {
  static auto* const text = new ProcessText;
  return *text;
}

ProcessText& the_place() {
  static auto* const text = new ProcessText;
  return *text;
}

}  // namespace

void set_version(std::string version) { the_version().set(std::move(version)); }
std::string version() { return the_version().get(); }

void set_record_place(std::string place) { the_place().set(std::move(place)); }
std::string record_place() { return the_place().get(); }

}  // namespace herring
