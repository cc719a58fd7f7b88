#include "worker/keeping.h"

#include <algorithm>

#include "wire/messages.h"

namespace herring::worker {
namespace {

using Kind = wire::Subject::Kind;

constexpr Nanos kInterval = 250 * kMillisecond;
// By then, every rank has heard what its server has said, or that the server is gone.
constexpr Nanos kRepeated = 60 * kSecond;

}  // namespace

// Returns up to where this rank lacks nothing, of all that is not settled.
std::vector<std::pair<Keeping::Where, uint64_t>> Keeping::complete() const {
  std::vector<std::pair<Where, uint64_t>> all;
  for (const links::Links::StreamProgress& one : core_.links->over()) {
    all.push_back({{one.group, {Kind::kStream, one.stream}}, one.upto});
  }
  for (const calls::Handovers::Complete& one : handovers_.complete()) {
    all.push_back({{one.group, {Kind::kAnswers, one.home}}, one.number});
  }
  for (const auto& one : series_.ended()) {
    all.push_back({{one->group(), {Kind::kSeries, one->id()}}, 1});
  }
  return all;
}

// Returns who answers for the home of a subject, unless nobody does.
std::optional<engine::Owner> Keeping::owner_of(const Where& where) const {
  const auto& [group_id, subject] = where;
  const auto group = core_.groups.find(group_id);
  if (!group || group->size() == 1 || group->shards().owners.empty()) return {};
  const std::vector<uint32_t>& owners = group->shards().owners;
  const uint32_t home = subject.kind == Kind::kAnswers ? static_cast<uint32_t>(subject.id)
                                                       : owners[subject.id % owners.size()];
  const engine::Owners& now = core_.owners;
  const engine::Owner owner = now.of(owners, home);
  const bool serves = now.has(owner.server) && !core_.presence.has_ended(owner.server);
  return serves ? std::optional(owner) : std::nullopt;
}

void Keeping::tick(Nanos now) {
  if (!core_.options.failover) return;
  const bool full = bytes() > kAtEase;
  if (now < due_ && !full) return;
  due_ = now + kInterval;
  for (const auto& [where, upto] : complete()) {
    Statement& said = said_[where];
    const bool rests = std::exchange(said.seen, upto) == upto;
    said.here = now;
    if (upto > said.upto && (rests || full)) {
      said.upto = upto;
      said.to.reset();
    }
  }
  std::map<std::pair<uint32_t, uint32_t>, std::vector<wire::Settled>> news;  // by server and group
  for (auto one = said_.begin(); one != said_.end();) {
    auto& [where, said] = *one;
    const auto owner = said.upto > 0 ? owner_of(where) : std::nullopt;
    if (owner && said.to != owner) {
      said.to = owner;
      news[{owner->server, where.first}].push_back({where.second, said.upto});
    }
    const bool over = now - said.here > kRepeated || !core_.groups.find(where.first);
    one = over ? said_.erase(one) : std::next(one);
  }
  for (const auto& [to, all] : news) {
    wire::FrameHeader header{.type = wire::FrameType::kSettled, .group = to.second};
    for (auto first = all.begin(); first != all.end();) {
      const auto end = first + std::min<ptrdiff_t>(all.end() - first, wire::kMostSettled);
      core_.links->send_control(to.first, header, encode(std::vector(first, end)));
      first = end;
    }
  }
}

Status Keeping::receive(uint32_t group, std::string_view text) {
  HERRING_ASSIGN_OR_RETURN(const auto& all, wire::decode_settled(text));
  if (!core_.groups.find(group)) return {};  // it is destroyed
  for (const wire::Settled& one : all) {
    const auto found = said_.find({group, one.subject});
    if (found == said_.end()) continue;
    const uint64_t upto = std::min(one.upto, found->second.upto);
    const auto id = static_cast<uint32_t>(one.subject.id);
    switch (one.subject.kind) {
      case Kind::kStream: core_.links->settle({group, id, upto}); break;
      case Kind::kAnswers: handovers_.settle({group, id, upto}); break;
      case Kind::kSeries: series_.forget_series(one.subject.id); break;
    }
  }
  return {};
}

size_t Keeping::bytes() const {
  if (!core_.options.failover) return 0;
  return core_.links->bytes_kept() + handovers_.bytes_kept() +
         series_.bytes_kept();
}

}  // namespace herring::worker
