#include "partial/series_state.h"

#include <algorithm>
#include <utility>

namespace herring::partial {

void SeriesState::complete() {
  for (const Contributor& one : heard.back().contributors) {
    counts[one.rank] = {one.upto, one.base};
  }
  ++rounds;
  received = whole = committed = false;
}

Memory::Memory(uint32_t rank, uint32_t workers, bool pushes, size_t most_bytes)
    : rank_(rank), pushes_(pushes), most_bytes_(most_bytes) {
  known_.counts.resize(workers);
}

void Memory::announced(SentJoin said) {
  std::deque<SentJoin>& all = known_.said;
  if (!all.empty() && all.back().join.upto == said.join.upto) {
    SentJoin& newest = all.back();
    newest.follow(said.join);
    if (said.digest_round != 0) {
      newest.digest_round = said.digest_round;
      newest.digest = said.digest;
    }
    return;
  }
  all.push_back(std::move(said));
}

void Memory::heard(HeardRound round) {
  // Nobody closes a round before all members have what was closed before.
  while (pushes_ && !known_.heard.empty()) forget_oldest();
  known_.tickets = std::max(known_.tickets, round.ticket + 1);
  bytes_ += round.bytes();
  known_.heard.push_back(std::move(round));
  known_.received = known_.whole = known_.committed = false;
}

void Memory::completed() {
  known_.complete();
  std::deque<SentJoin>& said = known_.said;
  const uint64_t counted = known_.counts[rank_].upto;
  while (said.size() > 1 && said.front().join.upto <= counted) said.pop_front();
  if (!said.empty() && said.front().join.upto <= counted) said.front().payload.clear();
  if (!pushes_) forget_settled();
}

size_t Memory::bytes() const {
  size_t bytes = bytes_;
  for (const SentJoin& said : known_.said) bytes += sizeof(SentJoin) + said.payload.size();
  return bytes;
}

void Memory::forget_oldest() {
  bytes_ -= known_.heard.front().bytes();
  known_.heard.pop_front();
}

// Who has joined with a base has the results of the rounds before the one before it.
void Memory::forget_settled() {
  std::deque<HeardRound>& heard = known_.heard;
  std::vector<bool> gone(known_.counts.size(), false);
  for (const Lost& one : heard.back().lost) gone[one.rank] = true;
  uint32_t first = known_.rounds;
  for (uint32_t rank = 0; rank < known_.counts.size(); ++rank) {
    if (gone[rank] || rank == rank_) continue;
    first = std::min(first, std::max(known_.counts[rank].base, 1u) - 1);
  }
  // The latest one also says whether the series has ended.
  while (heard.size() > 1 && heard.front().round < first) forget_oldest();
  while (heard.size() > 1 && bytes_ > most_bytes_) forget_oldest();
}

}  // namespace herring::partial
