// Transfers for tests of what decides about them without a connection.
#pragma once

#include <string>
#include <vector>

#include "links/transfer.h"

namespace herring::links::testing {

inline constexpr size_t kBytes = 1024;  // of a segment

// Returns a transfer of a plan, with 4 segments for each server, of which nothing is pushed yet.
inline Transfer to_servers(uint32_t servers, wire::Key key, char* data = nullptr) {
  static char nothing;
  Transfer transfer;
  transfer.key = key;
  transfer.lockstep = true;
  transfer.receive = data == nullptr ? &nothing : data;
  transfer.shards = plan::shard_layout(4 * kBytes * servers, std::vector<double>(servers, 1));
  transfer.runs = plan::local_slice(transfer.shards, kBytes, 0, 1);
  transfer.opened.assign(servers, 0);
  transfer.on_the_way.assign(servers, 0);
  transfer.ways.resize(servers);
  transfer.fewest_workers = 8;
  for (uint32_t run = 0; run < transfer.runs.size(); ++run) {
    transfer.answered.emplace_back(transfer.runs[run].count, false);
    transfer.segments_left += transfer.runs[run].count;
    transfer.ways[run].server = transfer.shards[transfer.runs[run].shard].server;
  }
  return transfer;
}

}  // namespace herring::links::testing
