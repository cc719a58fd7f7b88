// How a server becomes the owner of series if the owner before is gone. Every member of the group
// tells of all series that it knows: kEnlist, kSeries, the rounds of which it has heard, and its
// joins. Until all have told all, nothing closes. Joins and marks that come meanwhile add to that.
#include <algorithm>
#include <ranges>

#include "server/series.h"

namespace herring::server {
namespace {

// What one rank may tell that is not settled yet.
constexpr size_t kMostTold = size_t{1} << 30;

}  // namespace

// Returns the take-over for which series of this reign wait; null if they need not wait. What comes
// first in a reign begins its take-over.
Result<SeriesTable::TakeOver*> SeriesTable::take_over_of(const std::shared_ptr<JobGroup>& group,
                                                         Reign reign, Nanos now) {
  if (reign.home >= cluster_.servers.size()) {
    return breach("a series begins in a reign of server ", reign.home, ", which does not exist");
  }
  if (reign.epoch == 0) return nullptr;
  const auto [place, begins] = take_overs_.try_emplace({group->members.id(), reign.home});
  TakeOver& take_over = place->second;
  if (begins) take_over = {reign, group, now, false, false,
                           std::vector<bool>(group->members.size(), false)};
  if (take_over.reign != reign) {
    return breach("a series begins at server ", server_, " as the owner since version ",
                  reign.epoch, "; others say since ", take_over.reign.epoch);
  }
  return take_over.settled ? nullptr : &take_over;
}

// Bounds what a rank may tell.
Status SeriesTable::count_told(uint32_t rank, size_t bytes) {
  told_bytes_[rank] += bytes;
  if (told_bytes_[rank] <= kMostTold) return {};
  return breach("rank ", rank, " tells more than ", kMostTold >> 20, " MiB of series");
}

// Returns the series and the member's index in it, if it may tell of that.
Result<SeriesTable::Series*> SeriesTable::told_series(uint32_t rank, uint64_t id,
                                                      uint32_t* index) {
  const auto found = series_.find(id);
  Series* const series = found == series_.end() ? nullptr : found->second.get();
  *index = series == nullptr ? control::Group::kNobody : series->group->members.index_of(rank);
  if (*index == control::Group::kNobody || series->told.empty() || !series->told[*index]) {
    return breach("rank ", rank, " tells of a series in which it has not enlisted");
  }
  return series;
}

Status SeriesTable::tell(uint32_t rank, uint32_t group_id, Reign reign, std::string_view text,
                         Nanos now, std::vector<Answer>& out) {
  const std::shared_ptr<JobGroup> group = groups_.find(group_id);
  if (!group) return {};  // it could not be formed, or its members are gone
  if (!group->members.has(rank)) {
    return breach("rank ", rank, " tells of series in group ", group_id,
                  ", of which it is not a member");
  }
  HERRING_ASSIGN_OR_RETURN(auto& take_over, take_over_of(group, reign, now));
  const uint32_t me = group->members.index_of(rank);
  if (take_over == nullptr || take_over->said[me]) {
    return breach("rank ", rank, " tells of series after it has told all");
  }
  if (text.empty()) {
    take_over->said[me] = true;
    settle(now, out);
    return {};
  }
  HERRING_ASSIGN_OR_RETURN(auto& message, wire::decode_series(text));
  uint32_t index = 0;
  HERRING_ASSIGN_OR_RETURN(auto& series, told_series(rank, message.id, &index));
  series->told[index] = std::move(message.known);
  return count_told(rank, text.size());
}

Status SeriesTable::tell_round(uint32_t rank, const wire::FrameHeader& header, std::string text) {
  HERRING_ASSIGN_OR_RETURN(auto& round, wire::decode_round(text));
  uint32_t index = 0;
  HERRING_ASSIGN_OR_RETURN(auto& series, told_series(rank, round.id, &index));
  const size_t bytes = series->options.inline_payload
                           ? series->options.elements * size_of(series->options.dtype)
                           : 0;
  if (round.payload.size() != bytes) {
    return breach("rank ", rank, " tells of round ", round.round, " with ",
                  round.payload.size(), " bytes, not ", bytes);
  }
  HERRING_RETURN_IF_ERROR(count_told(rank, sizeof(partial::HeardRound) + 2 * text.size()));
  series->told[index]->heard.push_back({round.round, round.attempt, round.last,
                                           std::move(round.contributors), std::move(round.lost),
                                           header.stream, header.round, std::move(text)});
  return {};
}

Status SeriesTable::told_join(uint32_t rank, uint32_t index, Series& series,
                              const wire::JoinMessage& join, std::vector<Answer>& out) {
  if (!series.told[index]) {
    return breach("rank ", rank, " joins a series that it did not enlist in");
  }
  HERRING_RETURN_IF_ERROR(count_told(rank, sizeof(partial::SentJoin) + join.payload.size()));
  std::deque<partial::SentJoin>& said = series.told[index]->said;
  const partial::Join newest{index,     join.upto,  join.base,
                             join.last, join.round, join.contributors};
  if (!said.empty() && said.back().join.upto == join.upto) {
    said.back().follow(newest);
  } else {
    said.push_back({newest, join.digest_round, join.digest, std::string(join.payload)});
  }
  if (Status same = compare(series, index, join); !same.ok()) fail(same, out);
  return {};
}

// If the round is committed, this completes it for the rank.
Status SeriesTable::told_received(uint32_t rank, uint32_t index, Series& series,
                                  const wire::RoundMark& mark) {
  partial::SeriesState* const known = series.told[index] ? &*series.told[index] : nullptr;
  if (known == nullptr || known->heard.empty() || known->heard.back().round != known->rounds ||
      known->heard.back().round != mark.round || known->heard.back().attempt != mark.attempt) {
    return breach("rank ", rank, " has received round ", mark.round, " of '", series.options.name,
                  "', of which it has not told");
  }
  for (const partial::Contributor& one : known->heard.back().contributors) {
    if (one.rank >= known->counts.size()) {
      return breach("rank ", rank, " tells of contributor ", one.rank);
    }
  }
  known->receive(mark.whole);
  if (known->committed && mark.whole) known->complete();
  return {};
}

bool SeriesTable::is_gone(const Series& series, uint32_t index) const {
  const uint32_t rank = series.rank(index);
  return lost_[rank] || groups_.is_gone(rank);
}

std::vector<uint32_t> SeriesTable::missing(const TakeOver& take_over) const {
  std::vector<uint32_t> ranks;
  for (uint32_t index = 0; index < take_over.said.size(); ++index) {
    const uint32_t rank = take_over.group->members.ranks()[index];
    const bool gone = lost_[rank] || groups_.is_gone(rank) || take_over.group->has_destroyed(index);
    if (!take_over.said[index] && !gone) ranks.push_back(rank);
  }
  return ranks;
}

void SeriesTable::settle(Nanos now, std::vector<Answer>& out) {
  for (auto& [home, take_over] : take_overs_) {
    if (take_over.settled || !missing(take_over).empty()) continue;
    take_over.settled = true;
    for (auto it = series_.begin(); it != series_.end();) {
      const uint64_t id = it->first;
      Series& series = *(it++)->second;  // settle() may erase the series
      const bool waits = !series.told.empty() && series.reign == take_over.reign &&
                         series.group == take_over.group;
      if (waits) settle(id, series, now, out);
    }
    take_over.group = nullptr;
  }
  const bool all = std::ranges::all_of(take_overs_, [](const auto& one) {
    return one.second.settled;
  });
  if (all) std::ranges::fill(told_bytes_, 0);
}

void SeriesTable::settle(uint64_t id, Series& series, Nanos now, std::vector<Answer>& out) {
  const std::vector<std::optional<partial::SeriesState>> known = std::exchange(series.told, {});
  if (Status status = take_over(id, series, known, now, out); !status.ok()) {
    series.failed = true;
    return fail({status.code(), concat("the partial all-reduce '", series.options.name, "'",
                                       series.group->members.suffix(), " cannot go on: ",
                                       status.message())},
                out);
  }
  advance(id, series, now, out);
}

Status SeriesTable::take_over(uint64_t id, Series& series,
                              const std::vector<std::optional<partial::SeriesState>>& known,
                              Nanos now, std::vector<Answer>& out) {
  const wire::Enlist& options = series.options;
  const partial::Quorum quorum{series.size(), options.quorum, options.grace, options.staleness,
                               options.replays};
  auto taken = partial::RoundOwner::take_over(quorum, !options.inline_payload, known, now);
  if (!taken.ok()) return taken.status();
  series.owner = std::move(taken->owner);
  bool begun = false, told = false;
  for (const auto& one : known) {
    if (!one) continue;
    begun |= one->rounds > 0 || !one->heard.empty();
    series.next_ticket = std::max(series.next_ticket, one->tickets);
    if (told || one->heard.empty()) continue;
    series.stream = one->heard.back().stream;
    told = true;
  }
  if (!told) series.stream = free_stream(series.reign);
  uint32_t gone = series.size();
  for (uint32_t index = 0; index < series.size(); ++index) {
    if (is_gone(series, index)) {
      gone = index;
      series.owner.lost(index);
      continue;
    }
    if (!known[index] && begun && !series.owner.ended()) {
      return {Code::kPeerLost, concat(describe_rank(series, index), " no longer knows it")};
    }
    if (!known[index] || !options.inline_payload) continue;
    const size_t bytes = options.elements * size_of(options.dtype);
    for (const partial::SentJoin& said : known[index]->said) {
      if (said.join.upto <= series.owner.counted(index)) continue;
      if (said.payload.size() != bytes) {
        return breach("rank ", series.rank(index), " tells of a join with ", said.payload.size(),
                      " bytes, not ", bytes);
      }
      add_held(series, index, said.payload);
    }
  }
  for (const partial::Due& due : taken->due) {
    if (is_gone(series, due.rank)) continue;
    const partial::HeardRound& round = *due.round;
    if (due.commit) {
      out.push_back({series.rank(due.rank), {.type = wire::FrameType::kCommit},
                     encode(wire::RoundMark{id, round.round, round.attempt, true})});
    } else {
      out.push_back({series.rank(due.rank),
                     {.type = wire::FrameType::kRound, .group = series.group->members.id(),
                      .stream = round.stream, .round = round.ticket},
                     round.text});
    }
  }
  if (gone == series.size() || series.owner.ended()) return {};
  if (options.replays && begun) {
    return {Code::kPeerLost, concat("a replay needs ", describe_rank(series, gone),
                                    ", which is gone")};
  }
  // Ranks that have not begun the series may know of the loss, and then never will.
  const bool all = std::ranges::all_of(
      std::views::iota(0u, series.size()),
      [&](uint32_t index) { return series.enlisted[index] || is_gone(series, index); });
  if (!all) call_off(id, series, gone, out);
  return {};
}

void SeriesTable::overdue(TakeOver& take_over, Nanos now, std::vector<Answer>& out) {
  if (take_over.settled) return;
  const auto first = std::ranges::find_if(series_, [&](const auto& one) {
    return !one.second->told.empty() && one.second->group == take_over.group &&
           one.second->reign == take_over.reign;
  });
  if (first == series_.end()) return;
  const wire::Enlist& options = first->second->options;
  const Nanos age = now - take_over.since;
  const bool fatal = age > options.timeout_ms * kMillisecond;
  if (!fatal && (age < options.warn_ms * kMillisecond || std::exchange(take_over.warned, true))) {
    return;
  }
  const std::vector<uint32_t> ranks = missing(take_over);
  const std::string text =
      concat("partial all-reduce '", options.name, "'", take_over.group->members.suffix(),
             " has waited ", in_seconds(age), " for ", cluster_.describe_ranks(ranks),
             " to hear that a server is lost", whereabouts_.describe(ranks));
  if (fatal) {
    take_over.settled = true;
    return fail({Code::kTimeout, text}, out);
  }
  for (uint32_t index = 0; index < take_over.said.size(); ++index) {
    if (!take_over.said[index]) continue;
    out.push_back(warning_answer(take_over.group->members.ranks()[index], text));
    return;  // one rank's log is enough
  }
}

}  // namespace herring::server
