#include "rounds/owned_partial.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "rounds/series_list.h"

namespace herring::rounds {

OwnedPartial::OwnedPartial(SeriesList& list, PartialOptions options)
    : Partial(list, options,
              options.elements * size_of(options.dtype) > list.core().options.small_bytes) {}

Result<std::shared_ptr<Partial>> OwnedPartial::create(SeriesList& list, PartialOptions options) {
  std::shared_ptr<OwnedPartial> partial(new OwnedPartial(list, std::move(options)));
  HERRING_RETURN_IF_ERROR(list.enlist(partial));
  return std::shared_ptr<Partial>(partial);
}

// Tells all servers of the group: each must know that the job outlives a worker's death.
void OwnedPartial::begin() {
  owner_ = core_.owner_of(group(), options_.name);
  if (core_.options.failover) {
    memory_ = std::make_shared<SeriesMemory>(group(), enlist_for(owner_.server), pushes_);
  }
  for (const uint32_t server : group().servers()) {
    if (core_.owners.has(server)) announce_to(server);
  }
}

wire::Enlist OwnedPartial::enlist_for(uint32_t server) const {
  wire::Enlist enlist;
  enlist.dtype = options_.dtype;
  enlist.op = options_.op;
  enlist.by_contributors = options_.by_contributors;
  enlist.inline_payload = !pushes_;
  enlist.elements = options_.elements;
  enlist.quorum = options_.quorum;
  enlist.grace = from_seconds(options_.grace);
  enlist.staleness = options_.staleness;
  enlist.replays = options_.replays;
  enlist.timeout_ms = core_.timeout_ms(0);
  enlist.warn_ms = core_.warn_ms();
  enlist.number = options_.number;
  enlist.name = options_.name;
  enlist.owner = server == owner_.server;
  return enlist;
}

void OwnedPartial::announce_to(uint32_t server) {
  wire::FrameHeader header{.type = wire::FrameType::kEnlist, .group = group().id(),
                           .stream = owner_.reign.home, .round = owner_.reign.epoch};
  core_.links->send_control(server, header, encode(enlist_for(server)));
}

void OwnedPartial::move_to(const Owner& owner) {
  owner_ = owner;
  memory_->tell(*core_.links, owner);
}

void OwnedPartial::announce(const partial::Join& join, std::string payload) {
  wire::JoinMessage message;
  message.id = id_;
  message.upto = join.upto;
  message.base = join.base;
  message.last = join.last;
  message.round = join.round;
  message.contributors = join.contributors;
  {
    std::lock_guard lock(mutex_);
    if (!failure_.ok()) return;
    message.digest_round = std::exchange(digest_rounds_, 0);
    message.digest = digest_;
    mark_ready();
  }
  wire::FrameHeader header{.type = wire::FrameType::kJoin};
  const std::string text = encode(message) + payload;
  if (memory_) {
    memory_->known.announced({join, message.digest_round, message.digest, std::move(payload)});
  }
  core_.links->send_control(owner_.server, header, text);
}

Status OwnedPartial::on_round(const wire::FrameHeader& header, wire::RoundMessage message,
                         std::string_view text) {
  const auto nonsense = [&](const std::string& what) {
    return breach("round ", message.round, " of '", options_.name, "' ", what);
  };
  if (transferring_) return nonsense("closed again before its previous attempt was over");
  if (message.payload.size() != (pushes_ ? 0 : bytes_)) {
    return nonsense(concat("came with ", message.payload.size(), " bytes"));
  }
  if (message.contributors.empty() && !message.last) {
    return nonsense("closed without a contribution");
  }
  const uint32_t rank = group().index();
  uint64_t upto = 0;
  for (const partial::Contributor& one : message.contributors) {
    if (one.rank >= group().size()) return nonsense("names a rank that does not exist");
    if (one.rank == rank) upto = one.upto;
  }
  for (const partial::Lost& one : message.lost) {
    if (one.rank >= group().size()) return nonsense("has lost a rank that does not exist");
  }
  partial::HeardRound heard;
  if (memory_) {
    heard = {message.round, message.attempt, message.last,  message.contributors,
             message.lost,  header.stream,   header.round, std::string(text)};
  }
  info_.round = message.round;
  info_.divisor = message.divisor;
  info_.attempts = message.attempt + 1;
  info_.last = message.last;
  info_.contributors = std::move(message.contributors);
  info_.lost = std::move(message.lost);
  attempt_ = message.attempt;
  transferred_ = committed_ = false;
  const bool nothing = info_.contributors.empty();
  const char* send = nullptr;
  {
    std::lock_guard lock(mutex_);
    close(message.round);
    if (ledger_.ready() > options_.staleness + 1) {
      return nonsense(concat("closed while ", ledger_.ready(),
                             " results wait to be taken here; staleness is ", options_.staleness));
    }
    HERRING_RETURN_IF_ERROR(ledger_.closed(message.round, upto, message.last, &send));
    if (!pushes_) {
      std::memcpy(ledger_.result(), message.payload.data(), bytes_);
    } else if (nothing) {
      std::memset(ledger_.result(), 0, bytes_);
    }
  }
  if (memory_) memory_->known.heard(std::move(heard));
  if (!pushes_ || nothing) {
    end_round();
    return {};
  }
  if (header.group != group().id()) return nonsense(concat("closed for group ", header.group));
  transfer_.key = {header.stream, header.round, 0, header.group};
  core_.recorder().place(closed_.id(), header.stream, header.round);
  return launch(upto, send);
}

// Pushes this worker's part, even if it is empty: servers send the result to every rank that
// pushes.
Status OwnedPartial::launch(uint64_t upto, const char* send) {
  const auto contributors = static_cast<uint32_t>(info_.contributors.size());
  transferring_ = true;
  transfer_.open.dtype = options_.dtype;
  transfer_.open.reduction.op = options_.op;
  transfer_.open.participants = wire::Participants::kRanks;
  // Servers divide by the sum of these counts. The first contributor also counts for the part of
  // the divisor that contributors do not cover.
  transfer_.open.workers = upto == 0 ? 0
                           : info_.contributors.front().rank == group().index()
                               ? std::max(info_.divisor, contributors) - contributors + 1
                               : 1;
  transfer_.open.deadline = core_.deadline(0);
  transfer_.open.name = options_.name;
  transfer_.send = send;
  {
    std::lock_guard lock(mutex_);
    transfer_.receive = ledger_.result();
  }
  transfer_.shards = plan::shard_layout(bytes_, group().shards().weights);
  transfer_.runs =
      plan::local_slice(transfer_.shards, core_.options.links.segment_bytes, 0, 1);
  transfer_.lockstep = true;  // a round closes when all have the result of the one before
  transfer_.owner = this;
  transfer_.mark = {&core_.recorder(), closed_.id()};
  return core_.links->push(transfer_, shared_from_this());
}

void OwnedPartial::on_transfer_done(links::Transfer& done) {
  transferring_ = false;
  transferred_ = done.fewest_workers == info_.contributors.size();
  wire::RoundMark mark{id_, info_.round, attempt_, transferred_};
  wire::FrameHeader header{.type = wire::FrameType::kReceived};
  if (memory_) memory_->known.received(transferred_);
  core_.links->send_control(owner_.server, header, encode(mark));
  if (committed_) settle();
}

// The transfer of a round that is committed is over. A worker that lacks a part of the result
// cannot complete the round, although others have.
void OwnedPartial::settle() {
  if (transferred_) return end_round();
  core_.ending.abort({Code::kPeerLost,
                 concat("round ", info_.round, " of '", options_.name, "'",
                        group().members().suffix(),
                        " cannot be completed: a server is lost, and with it what a rank gave that "
                        "is gone")});
}

Status OwnedPartial::on_commit(const wire::RoundMark& mark) {
  if (mark.round != info_.round || mark.attempt != attempt_) {
    return breach("round ", mark.round, " of '", options_.name, "' was committed; expected round ",
                  info_.round);
  }
  committed_ = true;
  if (memory_) memory_->known.committed();
  if (!transferring_) settle();
  return {};
}

void OwnedPartial::end_round() {
  const uint32_t next = info_.round + 1;
  RoundInfo info = std::exchange(info_, {});
  info_.round = next;
  transferred_ = committed_ = false;
  if (memory_) memory_->known.completed();
  complete(std::move(info));
}

}  // namespace herring::rounds
