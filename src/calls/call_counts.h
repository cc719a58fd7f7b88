// How often each name was called on this rank. Ranks that make the same calls count the same, so
// that a flight record can tell the calls of one name apart.
#pragma once

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/status.h"

namespace herring::calls {

class CallCounts {
 public:
  // Names are forgotten that were not used for the longest time. A recorder keeps no more entries.
  static constexpr size_t kMost = 4096;

  // Returns 1 for the first call of a name in a group, then 2, and so on. Returns 0 for a name that
  // ends in a number, such as "allreduce.7": no other call has it.
  uint32_t next(uint32_t group, std::string_view name) {
    if (is_numbered(name)) return 0;
    const auto era = eras_.find(group);
    std::string key = concat(group, ' ', era == eras_.end() ? 0 : era->second, ' ', name);
    const auto found = places_.find(key);
    if (found != places_.end()) {
      latest_.splice(latest_.begin(), latest_, found->second);
    } else {
      if (latest_.size() == kMost) {
        places_.erase(latest_.back().first);
        latest_.pop_back();
      }
      latest_.emplace_front(std::move(key), 0);
      places_.emplace(latest_.front().first, latest_.begin());
    }
    return ++latest_.front().second;
  }
  // Until all ranks have joined, the others go on without those that have, so counts differ. After
  // that they begin again.
  void join(uint32_t group) { ++eras_[group]; }

 private:
  static bool is_numbered(std::string_view name) {
    const size_t dot = name.rfind('.');
    return dot != name.npos && dot + 1 < name.size() &&
           std::all_of(name.begin() + dot + 1, name.end(),
                       [](unsigned char c) { return std::isdigit(c) != 0; });
  }

  using Counts = std::list<std::pair<std::string, uint32_t>>;
  Counts latest_;
  std::unordered_map<std::string_view, Counts::iterator> places_;  // keys are in `latest_`
  std::map<uint32_t, uint32_t> eras_;                              // joins, by group
};

}  // namespace herring::calls
