// Fuzzes messages of partial all-reduces. What decodes must encode to the same bytes, and a table
// of series must take every message without harm.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "server/series.h"
#include "wire/partial.h"

using namespace herring;        // NOLINT: a fuzz target
using namespace herring::wire;  // NOLINT

namespace {

void expect(bool sound) {
  if (!sound) std::abort();
}

Enlist some_enlist(const char* name, bool replays) {
  Enlist enlist;
  enlist.name = name;
  enlist.replays = replays;
  enlist.inline_payload = true;
  enlist.elements = 64;  // too many bytes for a string's inline buffer
  enlist.quorum = 1;
  enlist.staleness = 2;
  return enlist;
}

control::Cluster some_cluster() {
  control::Cluster cluster;
  cluster.size = cluster.nodes = 2;
  cluster.workers = {{0, 0, 0, "a", 1, ""}, {1, 1, 0, "b", 2, ""}};
  cluster.servers = {{0, true, ~0u, "c:1", 1.0}};
  return cluster;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (auto one = decode_enlist(text); one.ok()) expect(encode(*one) == text);
  if (auto one = decode_join(text); one.ok()) {
    expect(encode(*one) + std::string(one->payload) == text);
  }
  if (auto one = decode_round(text); one.ok()) {
    expect(encode(*one) + std::string(one->payload) == text);
  }
  if (auto one = decode_mark(text); one.ok()) expect(encode(*one) == text);
  if (auto one = decode_series(text); one.ok()) {
    expect(encode_known(one->id, one->known) == text);
  }
  const control::Cluster cluster = some_cluster();
  server::GroupTable groups(cluster);
  const observe::RankStates states;
  const server::Whereabouts whereabouts(2, states);
  server::SeriesTable table(cluster, groups, 0, whereabouts);
  std::vector<server::Answer> answers;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    expect(table.enlist(rank, 0, {}, encode(some_enlist("s", false)), 1, answers).ok());
    expect(table.enlist(rank, 0, {}, encode(some_enlist("r", true)), 1, answers).ok());
  }
  (void)table.enlist(0, 0, {}, text, 2, answers);
  (void)table.join(0, text, 3, answers);
  JoinMessage good;  // closes a round with the contributions so far
  good.id = series_id("s");
  good.upto = good.base = 1;
  (void)table.join(1, encode(good) + std::string(256, '2'), 3, answers);
  (void)table.join(1, text, 4, answers);
  (void)table.received(0, text, 5, answers);
  // The same in a later reign, while ranks tell what they know.
  Enlist moved = some_enlist("s", false);
  moved.number = 1;
  const Reign reign{0, 2};
  wire::FrameHeader header;
  (void)table.enlist(0, 0, reign, encode(moved), 6, answers);
  (void)table.tell(0, 0, reign, text, 6, answers);
  (void)table.tell_round(0, header, std::string(text));
  (void)table.join(0, text, 6, answers);
  (void)table.received(0, text, 6, answers);
  for (uint32_t rank = 0; rank < 2; ++rank) (void)table.tell(rank, 0, reign, {}, 6, answers);
  table.lost(1, 6, answers);
  (void)table.join(0, text, 7, answers);
  return 0;
}

std::vector<std::string> seeds() {
  RoundMessage round;
  round.contributors = {{0, 1, 0, true, 5}, {1, 2, 1, false, -5}};
  round.lost = {{2, 3, 4}};
  JoinMessage join;
  join.id = series_id("s");
  join.upto = 1;
  join.base = 1;
  JoinMessage replayed = join;
  replayed.id = series_id("r");
  replayed.contributors = 2;
  const std::string payload(256, '1');
  const uint64_t moved = series_id("s", 0, 1);
  partial::SeriesState known;
  known.counts.resize(2);
  return {encode(some_enlist("s", false)), encode(some_enlist("r", true)),
          encode(join) + payload, encode(replayed) + payload, encode(round) + "result",
          encode(RoundMark{series_id("s"), 0, 0, true}), encode_known(moved, known)};
}
