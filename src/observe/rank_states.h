// What the ranks that hold others up are doing, as the rendezvous tells it: for messages about
// those who wait for them. Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace herring::observe {

class RankStates {
 public:
  // Replaces all that is known. A text continues a sentence whose subject is its rank, such as
  // "has been computing for 12 s", or begins with a colon, such as ": its process is stopped". An
  // empty text says nothing.
  void set(std::map<uint32_t, std::string> states);

  // Returns "; rank 3 has been computing for 12 s; each of ranks 4-6: its process is stopped", or
  // "" if nothing is known about any of these ranks of the job.
  std::string describe(const std::vector<uint32_t>& ranks) const;

 private:
  static constexpr size_t kMostPlaces = 8;

  mutable std::mutex mutex_;
  std::map<uint32_t, std::string> states_;
};

}  // namespace herring::observe
