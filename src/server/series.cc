#include "server/series.h"

#include <algorithm>
#include <deque>

#include "reduce/reduce.h"
#include "wire/key.h"

namespace herring::server {
namespace {

// Each reign numbers its streams in its own range.
constexpr uint32_t kStreamsPerReign = 1 << 14;
// Far more than there are models in a job. Each series may hold a contribution of every rank.
constexpr size_t kMaxSeries = 1024;

bool agree(const wire::Enlist& a, const wire::Enlist& b) {
  return a.name == b.name && a.dtype == b.dtype && a.op == b.op &&
         a.by_contributors == b.by_contributors && a.inline_payload == b.inline_payload &&
         a.elements == b.elements && a.quorum == b.quorum && a.grace == b.grace &&
         a.staleness == b.staleness && a.replays == b.replays && a.number == b.number;
}

std::string describe(const wire::Enlist& e) {
  return concat("'", e.name, "', ", counted(e.elements, "element"), " of ", name_of(e.dtype),
                ", op ", name_of(e.op), ", quorum ", e.quorum, ", grace ", to_seconds(e.grace),
                " s, staleness ", e.staleness, e.replays ? ", a replay" : "");
}

}  // namespace

SeriesTable::SeriesTable(const control::Cluster& cluster, const GroupTable& groups,
                         uint32_t server, const Whereabouts& whereabouts)
    : cluster_(cluster),
      groups_(groups),
      server_(server),
      whereabouts_(whereabouts),
      told_bytes_(cluster.size, 0),
      lost_(cluster.size, false) {}

std::string SeriesTable::describe_rank(const Series& series, uint32_t index) const {
  return cluster_.describe_rank(series.rank(index));
}

// Adds what a join has brought to what its rank has brought before.
void SeriesTable::add_held(Series& series, uint32_t index, std::string_view payload) {
  std::string& sum = series.held[index];
  if (sum.empty()) {
    sum = payload;
    return;
  }
  const DType dtype = series.options.dtype;
  const void* sources[] = {sum.data(), payload.data()};
  reduce::combine(sources, 2, sum.data(), sum.size() / size_of(dtype),
                  {dtype, dtype, ReduceOp::kSum});
}

Status SeriesTable::enlist(uint32_t rank, uint32_t group_id, Reign reign, std::string_view text,
                           Nanos now, std::vector<Answer>& out) {
  HERRING_ASSIGN_OR_RETURN(auto& enlist, wire::decode_enlist(text));
  const std::shared_ptr<JobGroup> group = groups_.find(group_id);
  const uint32_t index = group ? group->members.index_of(rank) : control::Group::kNobody;
  if (index == control::Group::kNobody) {
    return breach("rank ", rank, " begins '", enlist.name, "' in group ", group_id,
                  ", of which it is not a member");
  }
  HERRING_RETURN_IF_ERROR(check_reducible(enlist.dtype, {enlist.op}));
  if (Status status = partial::check(
          {group->members.size(), enlist.quorum, enlist.grace, enlist.staleness});
      !status.ok()) {
    return {status.code(), concat("rank ", rank, ", '", enlist.name, "': ", status.message())};
  }
  any_.store(true);
  if (!enlist.owner) return {};
  HERRING_ASSIGN_OR_RETURN(auto& waits, take_over_of(group, reign, now));
  const uint64_t id = wire::series_id(enlist.name, group_id, enlist.number);
  // Those that have ended are told of, too, if another rank may lack their end.
  const size_t most = kMaxSeries + (waits != nullptr ? wire::kMostEndedSeries : 0);
  if (series_.size() >= most && !series_.contains(id)) {
    fail({Code::kInvalidArgument,
          concat(cluster_.describe_rank(rank), " begins '", enlist.name, "' besides ", kMaxSeries,
                 " other series of partial all-reduces on ", cluster_.describe_server(server_),
                 "; flush() those that are no longer used")},
         out);
    return {};
  }
  std::unique_ptr<Series>& series = series_[id];
  if (!series) {
    series = std::make_unique<Series>(enlist, group, reign);
    if (waits != nullptr) {
      series->told.resize(series->size());
    } else {
      series->stream = free_stream(reign);
    }
    for (uint32_t i = 0; i < series->size(); ++i) {
      if (lost_[series->rank(i)]) series->owner.lost(i);
    }
  } else if (!agree(series->options, enlist)) {
    fail({Code::kMismatch, concat("ranks disagree about a partial all-reduce: ",
                                  cluster_.describe_rank(rank), ": ", describe(enlist),
                                  "; others: ", describe(series->options),
                                  "; give every rank the same options")},
         out);
    return {};
  }
  series->enlisted[index] = true;
  if (!series->told.empty()) {
    if (series->told[index]) return breach("rank ", rank, " enlists twice");
    series->told[index].emplace();
    series->told[index]->counts.resize(series->size());
    return count_told(rank, sizeof(partial::SeriesState));
  }
  for (uint32_t i = 0; i < series->size(); ++i) {
    // Ranks that know of the loss begin no new series.
    if (lost_[series->rank(i)]) call_off(id, *series, i, out);
  }
  advance(id, *series, now, out);
  return {};
}

bool SeriesTable::all_enlisted(const Series& series) const {
  for (uint32_t i = 0; i < series.size(); ++i) {
    if (!series.enlisted[i] && !lost_[series.rank(i)]) return false;
  }
  return true;
}

void SeriesTable::call_off(uint64_t id, Series& series, uint32_t lost,
                           std::vector<Answer>& out) const {
  series.failed = true;
  const Status why(Code::kPeerLost,
                   concat("the partial all-reduce '", series.options.name, "'",
                          series.group->members.suffix(), " cannot begin: ",
                          describe_rank(series, lost), " is gone"));
  for (uint32_t i = 0; i < series.size(); ++i) {
    if (!series.enlisted[i] || lost_[series.rank(i)]) continue;
    Answer answer = error_answer(series.rank(i), id, why);
    answer.header.stream = wire::kPartialStreams;
    out.push_back(std::move(answer));
  }
}

// No two reigns have a stream in common, because a series keeps its own in later ones.
uint32_t SeriesTable::free_stream(Reign reign) {
  const auto servers = static_cast<uint32_t>(cluster_.servers.size());
  const uint32_t reigns = std::max(wire::kPartialStreams / kStreamsPerReign / servers, 1u);
  const uint32_t first =
      wire::kPartialStreams + (reign.epoch % reigns * servers + reign.home) * kStreamsPerReign;
  for (;;) {
    const uint32_t stream = first + next_stream_++ % kStreamsPerReign;
    const bool taken = std::any_of(series_.begin(), series_.end(), [stream](const auto& one) {
      return one.second && one.second->stream == stream;
    });
    if (!taken) return stream;
  }
}

void SeriesTable::fail(const Status& why, std::vector<Answer>& out) const {
  for (uint32_t rank = 0; rank < cluster_.size; ++rank) out.push_back(error_answer(rank, 0, why));
}

Status SeriesTable::join(uint32_t rank, std::string_view text, Nanos now,
                         std::vector<Answer>& out) {
  HERRING_ASSIGN_OR_RETURN(auto& join, wire::decode_join(text));
  const auto found = series_.find(join.id);
  if (found == series_.end()) {
    return breach("rank ", rank, " joins a series that it did not enlist in");
  }
  Series& series = *found->second;
  const uint32_t index = series.group->members.index_of(rank);
  if (index == control::Group::kNobody) {
    return breach("rank ", rank, " joins '", series.options.name,
                  "', but is not a member of its group");
  }
  if (series.failed) return {};
  const wire::Enlist& options = series.options;
  const bool adds = join.upto > series.owner.announced(index);
  const size_t bytes =
      options.inline_payload && (adds || !join.last) ? options.elements * size_of(options.dtype)
                                                      : 0;
  const bool counted = !series.told.empty() && join.payload.empty();
  if (join.payload.size() != bytes && !counted) {
    return breach("rank ", rank, " joins '", options.name, "' with ", join.payload.size(),
                  " bytes, not ", bytes);
  }
  if (!series.owner.member(index)) return {};  // the rank counts as dead
  const bool misplaced = options.replays
                             ? join.contributors == 0 || join.contributors > series.size() ||
                                   join.round < series.owner.round()
                             : join.contributors != 0;
  if (adds && misplaced) {
    return breach("rank ", rank, " joins round ", join.round, " of '", options.name, "' with ",
                  join.contributors, " contributors, but ",
                  options.replays ? "the current round is " : "it is not a replay; it is in round ",
                  series.owner.round());
  }
  if (!series.told.empty()) return told_join(rank, index, series, join, out);
  const partial::Join said{index,      join.upto,  join.base,
                           join.last, join.round, join.contributors};
  if (Status possible = series.owner.check(said); !possible.ok()) {
    return {possible.code(),
            concat("rank ", rank, " joins '", options.name, "' with ", possible.message())};
  }
  if (!series.owner.join(said, now)) return {};  // a duplicate
  if (options.inline_payload && adds) add_held(series, index, join.payload);
  if (Status same = compare(series, index, join); !same.ok()) {
    fail(same, out);
    return {};
  }
  advance(join.id, series, now, out);
  return {};
}

Status SeriesTable::compare(Series& series, uint32_t index, const wire::JoinMessage& join) {
  if (join.digest_round == 0) return {};
  const auto [place, first] = series.digests.try_emplace(join.digest_round, join.digest, index);
  if (!first && place->second.first != join.digest) {
    return {Code::kMismatch,
            concat("the replicas of '", series.options.name, "' differ after ",
                   counted(join.digest_round, "round"), ": ", describe_rank(series, index),
                   " has digest ", join.digest, ", ",
                   describe_rank(series, place->second.second), " has ", place->second.first)};
  }
  constexpr size_t kDigestsKept = 16;
  if (series.digests.size() > kDigestsKept) series.digests.erase(series.digests.begin());
  return {};
}

Status SeriesTable::received(uint32_t rank, std::string_view text, Nanos now,
                             std::vector<Answer>& out) {
  HERRING_ASSIGN_OR_RETURN(auto& mark, wire::decode_mark(text));
  const auto found = series_.find(mark.id);
  if (found == series_.end()) return {};  // this was its last round: the series has ended
  Series& series = *found->second;
  const uint32_t index = series.group->members.index_of(rank);
  if (index == control::Group::kNobody) {
    return breach("rank ", rank, " has received a round of '", series.options.name,
                  "', but is not a member of its group");
  }
  if (!series.told.empty()) return told_received(rank, index, series, mark);
  if (series.owner.received(index, mark.round, mark.attempt, mark.whole)) {
    for (const uint32_t one : series.group->members.ranks()) {
      if (!lost_[one]) out.push_back({one, {.type = wire::FrameType::kCommit}, encode(mark)});
    }
  }
  advance(mark.id, series, now, out);
  return {};
}

// Sums in the same tree as the aggregator: first groups of adjacent ranks, as far as they
// contribute, then their sums. So the bits are the same whether contributions are sent along or
// pushed.
std::string SeriesTable::sum(Series& series, const partial::Closed& closed,
                             uint32_t divisor) const {
  const wire::Enlist& options = series.options;
  const DType wide = accumulator_of(options.dtype);
  std::vector<const void*> sources, sums;
  std::deque<std::string> groups;
  for (auto one = closed.contributors.begin(); one != closed.contributors.end();) {
    const uint32_t group = one->rank / reduce::kTreeGroup;
    sources.clear();
    for (; one != closed.contributors.end() && one->rank / reduce::kTreeGroup == group; ++one) {
      sources.push_back(series.held[one->rank].data());
    }
    char* const sum = groups.emplace_back(options.elements * size_of(wide), '\0').data();
    reduce::combine(sources.data(), sources.size(), sum, options.elements,
                    {options.dtype, wide, options.op});
    sums.push_back(sum);
  }
  std::string result(options.elements * size_of(options.dtype), '\0');
  if (sums.empty()) return result;  // in a last round, nobody may have anything left
  reduce::combine(sums.data(), sums.size(), result.data(), options.elements,
                  {wide, options.dtype, options.op, 1.0, static_cast<double>(divisor), 1.0});
  for (const partial::Contributor& one : closed.contributors) series.held[one.rank].clear();
  return result;
}

void SeriesTable::advance(uint64_t id, Series& series, Nanos now, std::vector<Answer>& out) {
  if (series.failed || !series.told.empty() || !all_enlisted(series)) return;
  while (auto closed = series.owner.close(now)) {
    wire::RoundMessage message;
    message.id = id;
    message.round = closed->round;
    message.attempt = closed->attempt;
    message.last = closed->last;
    message.contributors = closed->contributors;
    message.lost = series.owner.losses();
    if (series.options.op == ReduceOp::kAverage) {
      message.divisor = series.options.by_contributors
                            ? std::max<uint32_t>(closed->contributors.size(), 1)
                            : series.size();
    }
    std::string payload = encode(message);
    if (series.options.inline_payload) payload += sum(series, *closed, message.divisor);
    wire::FrameHeader header{.type = wire::FrameType::kRound, .group = series.group->members.id(),
                             .stream = series.stream, .round = series.next_ticket++};
    // Ranks that wait come first, because the others are computing.
    std::vector<bool> waits(series.size(), false);
    for (const uint32_t index : closed->waiting) waits[index] = true;
    for (const bool waiting : {true, false}) {
      for (uint32_t index : closed->members) {
        if (waits[index] != waiting) continue;
        // A push needs all ranks at once, and a replay does not know which ranks wait.
        out.push_back({series.rank(index), header, payload,
                       !waiting && series.options.inline_payload && !series.options.replays});
      }
    }
  }
  if (series.owner.ended()) series_.erase(id);
}

void SeriesTable::lost(uint32_t rank, Nanos now, std::vector<Answer>& out) {
  if (lost_[rank]) return;
  lost_[rank] = true;
  for (auto it = series_.begin(); it != series_.end();) {
    const uint64_t id = it->first;
    Series& series = *(it++)->second;  // advance() may erase the series
    const uint32_t index = series.group->members.index_of(rank);
    if (index == control::Group::kNobody || !series.told.empty()) continue;
    // Ranks that have not begun the series may know of the loss, and then never will.
    if (!all_enlisted(series)) {
      call_off(id, series, index, out);
      continue;
    }
    if (series.options.replays && series.owner.member(index)) {
      fail({Code::kPeerLost, concat("the replay of '", series.options.name, "' cannot go on: ",
                                    cluster_.describe_rank(rank), " is gone")},
           out);
    }
    series.owner.lost(index);
    if (!series.held.empty()) series.held[index].clear();
    advance(id, series, now, out);
  }
  settle(now, out);
}

void SeriesTable::tick(Nanos now, std::vector<Answer>& out) {
  for (auto it = series_.begin(); it != series_.end();) {
    const uint64_t id = it->first;
    Series& series = *(it++)->second;
    advance(id, series, now, out);
  }
}

Nanos SeriesTable::wake_at() const {
  Nanos first = 0;
  for (const auto& [id, series] : series_) {
    const Nanos at = series->owner.wake_at();
    if (at != 0 && (first == 0 || at < first)) first = at;
  }
  return first;
}

std::vector<uint32_t> SeriesTable::missing(const Series& series) {
  std::vector<uint32_t> ranks = series.owner.missing();
  for (uint32_t& rank : ranks) rank = series.rank(rank);
  return ranks;
}

void SeriesTable::report(Nanos now, ServerView& view) const {
  for (const auto& [id, series] : series_) {
    const Nanos since = series->owner.waiting_since();
    if (series->failed || since == 0 || now - since <= ServerView::kLeastWait) continue;
    if (lacks_server(*series)) continue;
    view.missing.push_back({concat("partial all-reduce '", series->options.name, "'",
                                   series->group->members.suffix(), " (round ",
                                   series->owner.round(), ")"),
                            now - since, missing(*series)});
  }
}

bool SeriesTable::lacks_server(const Series& series) const {
  if (gone_servers_.empty()) return false;
  const control::ShardMap shards = control::shard_map(cluster_, series.group->members);
  return std::ranges::any_of(gone_servers_, [&](uint32_t server) { return shards.uses(server); });
}

void SeriesTable::overdue(Nanos now, std::vector<Answer>& out) {
  for (auto& [home, take_over] : take_overs_) overdue(take_over, now, out);
  for (const auto& [id, series] : series_) {
    const Nanos since = series->owner.waiting_since();
    const wire::Enlist& options = series->options;
    if (series->failed || since == 0) continue;
    const Nanos age = now - since;
    const bool fatal = age > options.timeout_ms * kMillisecond;
    const bool told = series->warned_for == since;
    if (!fatal && (age < options.warn_ms * kMillisecond || told)) continue;
    const std::vector<uint32_t> ranks = missing(*series);
    // All have given what they have. If a server with their sums is lost, they know it themselves.
    if (ranks.empty() || lacks_server(*series)) continue;
    series->warned_for = since;
    const std::string text =
        concat("partial all-reduce '", options.name, "'", series->group->members.suffix(),
               ", round ", series->owner.round(),
               ", has waited ", in_seconds(age), " for ",
               options.replays ? "recorded contributors among " : "",
               cluster_.describe_ranks(ranks),
               fatal ? ", which did not contribute" : "", whereabouts_.describe(ranks),
               fatal ? "; check that every rank contributes until it calls flush(), or give it "
                       "more time (timeout=, HERRING_TIMEOUT)"
                     : "");
    if (fatal) {
      series->failed = true;
      fail({Code::kTimeout, text}, out);
      continue;
    }
    const std::vector<uint32_t>& all = series->group->members.ranks();
    const auto here = std::ranges::find_if(
        all, [&](uint32_t rank) { return std::ranges::find(ranks, rank) == ranks.end(); });
    if (here != all.end()) out.push_back(warning_answer(*here, text));  // one rank's log is enough
  }
}

}  // namespace herring::server
