#include "rounds/series_list.h"

#include <algorithm>

namespace herring::rounds {

Status SeriesList::enlist(const std::shared_ptr<Partial>& partial) {
  HERRING_RETURN_IF_ERROR(core_.ending.incomplete(partial->group()));
  return core_.run([this, partial] {
    if (Status status = core_.ending.failure(); !status.ok()) return partial->fail(status);
    const auto fail = [&partial](const Status& why) { partial->fail(why); };
    const bool known = std::ranges::any_of(partials_, [&](const auto& one) {
      return &one.second->group() == &partial->group() &&
             one.second->options().name == partial->options().name;
    });
    if (known) {
      return partial->fail({Code::kInvalidArgument,
                            concat("a partial all-reduce named '", partial->options().name,
                                   "' is already in progress; use another name for this one")});
    }
    or_tell(fail, [&] {
      partial->begin();
      return partials_.emplace(partial->id(), partial).second;
    });
  });
}

void SeriesList::delist(uint64_t id) {
  core_.loop->post([this, id] {
    const auto ended = partials_.extract(id);
    if (ended.empty() || !ended.mapped()->memory()) return;
    ended_.push_back(ended.mapped()->memory());
    if (ended_.size() > wire::kMostEndedSeries) ended_.pop_front();
  });
}

Status SeriesList::on_control(uint32_t server, const wire::FrameHeader& header,
                              std::string_view payload) {
  if (header.type == wire::FrameType::kOpError) {
    HERRING_ASSIGN_OR_RETURN(auto& error, wire::decode_op_error(payload));
    if (const auto found = partials_.extract(error.id); !found.empty()) {
      found.mapped()->fail({error.code, error.text});
    }
    return {};
  }
  // Returns null if the series has ended here, or another server is the owner by now.
  const auto of = [this, server](uint64_t id) {
    const auto found = partials_.find(id);
    const bool here = found != partials_.end() && found->second->owner().server == server;
    return here ? found->second : nullptr;
  };
  std::shared_ptr<Partial> partial;
  if (header.type == wire::FrameType::kRound) {
    HERRING_ASSIGN_OR_RETURN(auto& round, wire::decode_round(payload));
    if (!(partial = of(round.id))) return {};
    HERRING_RETURN_IF_ERROR(partial->on_round(header, std::move(round), payload));
  } else {
    HERRING_ASSIGN_OR_RETURN(auto& mark, wire::decode_mark(payload));
    if (!(partial = of(mark.id))) return {};
    HERRING_RETURN_IF_ERROR(partial->on_commit(mark));
  }
  return {};
}

void SeriesList::fail_all(const Status& why) {
  while (!partials_.empty()) {
    partials_.begin()->second->fail(why);
    partials_.erase(partials_.begin());
  }
}

bool SeriesList::uses(const Group& group) const {
  return std::ranges::any_of(partials_, [&group](const auto& one) {
    return &one.second->group() == &group;
  });
}

void SeriesList::abandon(const Group& group, const Status& why) {
  std::vector<std::shared_ptr<Partial>> ended;
  for (const auto& [id, partial] : partials_) {
    if (partial->group().id() == group.id()) ended.push_back(partial);
  }
  for (const auto& partial : ended) {
    partials_.erase(partial->id());
    partial->fail(why);
  }
}

bool SeriesList::can_move(const control::ServerSet& set) const {
  engine::Owners next = core_.owners;
  next.serve(set);
  return std::ranges::all_of(partials_, [&](const auto& one) {
    const Partial& partial = *one.second;
    return set.has(next.of(partial.group().shards().owners, partial.owner().reign.home).server);
  });
}

void SeriesList::move(const Group& group, const Owner& owner) {
  for (const auto& [id, partial] : partials_) {
    const bool moves =
        &partial->group() == &group && partial->owner().reign.home == owner.reign.home;
    if (moves) partial->move_to(owner);
  }
  for (const auto& ended : ended_) {
    const bool moves = ended->group() == group.id() && ended->home() == owner.reign.home;
    if (moves) ended->tell(*core_.links, owner);
  }
  end_telling(*core_.links, group.id(), owner);
}

void SeriesList::server_comes(uint32_t server) {
  for (const auto& [id, partial] : partials_) {
    if (partial->group().is_known_to(server)) partial->announce_to(server);
  }
}

void SeriesList::forget(uint32_t group) {
  std::erase_if(ended_, [group](const auto& one) { return one->group() == group; });
}

void SeriesList::forget_series(uint64_t id) {
  std::erase_if(ended_, [id](const auto& one) { return one->id() == id; });
}

size_t SeriesList::bytes_kept() const {
  size_t bytes = 0;
  for (const auto& ended : ended_) bytes += ended->known.bytes();
  for (const auto& [id, partial] : partials_) {
    if (partial->memory()) bytes += partial->memory()->known.bytes();
  }
  return bytes;
}

}  // namespace herring::rounds
