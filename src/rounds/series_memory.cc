#include "rounds/series_memory.h"

#include <utility>

#include "links/links.h"
#include "wire/handover.h"

namespace herring::rounds {
namespace {

wire::FrameHeader header_of(wire::FrameType type, uint32_t group, const Owner& owner) {
  wire::FrameHeader header{.type = type, .group = group, .stream = owner.reign.home,
                           .round = owner.reign.epoch};
  return header;
}

}  // namespace

SeriesMemory::SeriesMemory(const Group& group, wire::Enlist enlist, bool pushes)
    : known(group.index(), group.size(), pushes, wire::kMostKeptBytes),
      group_(group.id()), home_(group.shards().owner_of(enlist.name)), enlist_(std::move(enlist)) {}

void SeriesMemory::tell(links::Links& links, const Owner& owner) {
  using wire::FrameType;
  known.moves();
  const partial::SeriesState& all = known.known();
  const uint64_t id = wire::series_id(enlist_.name, group_, enlist_.number);
  links.send_control(owner.server, header_of(FrameType::kEnlist, group_, owner),
                     wire::encode(enlist_));
  links.send_control(owner.server, header_of(FrameType::kSeries, group_, owner),
                     wire::encode_known(id, all));
  for (const partial::HeardRound& round : all.heard) {
    wire::FrameHeader header{.type = FrameType::kRound, .group = group_, .stream = round.stream,
                             .round = round.ticket};
    links.send_control(owner.server, header, round.text);
  }
  for (const partial::SentJoin& said : all.said) {
    wire::FrameHeader header{.type = FrameType::kJoin};
    links.send_control(owner.server, header, encode(wire::message_of(id, said)) + said.payload);
  }
}

void end_telling(links::Links& links, uint32_t group, const Owner& owner) {
  links.send_control(owner.server, header_of(wire::FrameType::kSeries, group, owner), {});
}

}  // namespace herring::rounds
