#include "rounds/series_list.h"

#include <algorithm>

namespace herring::rounds {

bool SeriesList::knows(const Partial& partial) const {
  const auto same = [&partial](const auto& one) {
    return &one.second->group() == &partial.group() &&
           one.second->options().name == partial.options().name;
  };
  return std::ranges::any_of(owned_, same) || std::ranges::any_of(activated_, same);
}

Status SeriesList::add(const std::shared_ptr<Partial>& partial, std::function<void()> begin) {
  HERRING_RETURN_IF_ERROR(core_.ending.incomplete(partial->group()));
  return core_.run([this, partial, begin = std::move(begin)] {
    if (Status status = core_.ending.failure(); !status.ok()) return partial->fail(status);
    if (knows(*partial)) {
      return partial->fail({Code::kInvalidArgument,
                            concat("a partial all-reduce named '", partial->options().name,
                                   "' is already in progress; use another name for this one")});
    }
    or_tell([&partial](const Status& why) { partial->fail(why); }, begin);
  });
}

Status SeriesList::enlist(const std::shared_ptr<OwnedPartial>& partial) {
  return add(partial, [this, partial] {
    partial->begin();
    owned_.emplace(partial->id(), partial);
  });
}

Status SeriesList::enlist(const std::shared_ptr<ActivatedPartial>& partial) {
  return add(partial, [this, partial] {
    if (Status over = partial->group().called_off(); !over.ok()) return partial->fail(over);
    const Stream stream{partial->group().id(), ActivatedPartial::stream_of(partial->id())};
    partial->begin();
    activated_.emplace(stream, partial);
    if (const auto early = early_.extract(stream); !early.empty()) {
      for (const auto& [rank, signal] : early.mapped()) {
        const Status status = on_signal(rank, signal);
        if (!status.ok()) core_.ending.fail_now(status);
      }
    }
  });
}

void SeriesList::delist(const Partial& partial) {
  core_.loop->post([this, id = partial.id(), group = partial.group().id()] {
    const Stream stream{group, ActivatedPartial::stream_of(id)};
    if (const auto found = activated_.find(stream);
        found != activated_.end() && found->second->id() == id) {
      activated_.erase(found);
      ended_streams_.push_back(stream);
      if (ended_streams_.size() > wire::kMostEndedSeries) ended_streams_.pop_front();
    }
    const auto ended = owned_.extract(id);
    if (ended.empty() || !ended.mapped()->memory()) return;
    ended_.push_back(ended.mapped()->memory());
    if (ended_.size() > wire::kMostEndedSeries) ended_.pop_front();
  });
}

Status SeriesList::on_signal(uint32_t rank, const wire::FrameHeader& signal) {
  const Stream key{signal.group, signal.stream};
  if (const auto found = activated_.find(key); found != activated_.end()) {
    const std::shared_ptr<ActivatedPartial> partial = found->second;
    const auto& members = partial->group().members();
    if (!members.has(rank)) {
      return breach("rank ", rank, " sent a signal of '", partial->options().name,
                    "', but has no part in it");
    }
    return partial->on_signal(members.index_of(rank), signal);
  }
  if (std::ranges::find(ended_streams_, key) != ended_streams_.end()) return {};
  std::vector<Signal>& early = early_[key];
  early.emplace_back(rank, signal);
  // A rank that is ahead says at most four things of a series that has not begun here.
  if (early.size() <= 4 * core_.cluster.workers.size() &&
      early_.size() <= wire::kMostEndedSeries) {
    return {};
  }
  return breach("rank ", rank, " sent too many signals of partial all-reduces that nobody began");
}

void SeriesList::check_deadlines(Nanos now) {
  std::map<uint32_t, Status> failed;  // by group
  for (const auto& [stream, partial] : activated_) {
    Status status = partial->check(now);
    if (status.code() == Code::kTimeout) return core_.ending.fail_now(status);
    if (!status.ok()) failed.emplace(stream.first, std::move(status));
  }
  for (const auto& [group, status] : failed) core_.groups.fail(group, status);
}

void SeriesList::call_off(const Group& group, const Status& why) {
  std::vector<std::shared_ptr<ActivatedPartial>> ended;
  for (const auto& [stream, partial] : activated_) {
    if (stream.first == group.id()) ended.push_back(partial);
  }
  for (const auto& partial : ended) {
    activated_.erase({group.id(), ActivatedPartial::stream_of(partial->id())});
    partial->fail(why);
  }
  std::erase_if(early_, [&group](const auto& one) { return one.first.first == group.id(); });
}

Status SeriesList::on_control(uint32_t server, const wire::FrameHeader& header,
                              std::string_view payload) {
  if (header.type == wire::FrameType::kOpError) {
    HERRING_ASSIGN_OR_RETURN(auto& error, wire::decode_op_error(payload));
    if (const auto found = owned_.extract(error.id); !found.empty()) {
      found.mapped()->fail({error.code, error.text});
    }
    return {};
  }
  // Returns null if the series has ended here, or another server is the owner by now.
  const auto of = [this, server](uint64_t id) {
    const auto found = owned_.find(id);
    const bool here = found != owned_.end() && found->second->owner().server == server;
    return here ? found->second : nullptr;
  };
  std::shared_ptr<OwnedPartial> partial;
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
  const auto fail = [&why](auto& series) {
    while (!series.empty()) {
      series.begin()->second->fail(why);
      series.erase(series.begin());
    }
  };
  fail(owned_);
  fail(activated_);
}

bool SeriesList::outlives_members(const Group& group) const {
  return std::ranges::any_of(owned_, [&group](const auto& one) {
    return &one.second->group() == &group;
  });
}

bool SeriesList::uses(const Group& group) const {
  return outlives_members(group) || std::ranges::any_of(activated_, [&group](const auto& one) {
    return one.first.first == group.id();
  });
}

void SeriesList::abandon(const Group& group, const Status& why) {
  std::vector<std::shared_ptr<OwnedPartial>> ended;
  for (const auto& [id, partial] : owned_) {
    if (partial->group().id() == group.id()) ended.push_back(partial);
  }
  for (const auto& partial : ended) {
    owned_.erase(partial->id());
    partial->fail(why);
  }
}

bool SeriesList::can_move(const control::ServerSet& set) const {
  engine::Owners next = core_.owners;
  next.serve(set);
  return std::ranges::all_of(owned_, [&](const auto& one) {
    const OwnedPartial& partial = *one.second;
    return set.has(next.of(partial.group().shards().owners, partial.owner().reign.home).server);
  });
}

void SeriesList::move(const Group& group, const Owner& owner) {
  for (const auto& [id, partial] : owned_) {
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
  for (const auto& [id, partial] : owned_) {
    if (partial->group().is_known_to(server)) partial->announce_to(server);
  }
}

void SeriesList::forget(uint32_t group) {
  std::erase_if(ended_, [group](const auto& one) { return one->group() == group; });
  const auto is_of = [group](const Stream& stream) { return stream.first == group; };
  std::erase_if(ended_streams_, is_of);
  std::erase_if(early_, [&is_of](const auto& one) { return is_of(one.first); });
}

void SeriesList::forget_series(uint64_t id) {
  std::erase_if(ended_, [id](const auto& one) { return one->id() == id; });
}

size_t SeriesList::bytes_kept() const {
  size_t bytes = 0;
  for (const auto& ended : ended_) bytes += ended->known.bytes();
  for (const auto& [id, partial] : owned_) {
    if (partial->memory()) bytes += partial->memory()->known.bytes();
  }
  return bytes;
}

}  // namespace herring::rounds
