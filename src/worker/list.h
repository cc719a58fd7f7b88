// A list of arrays as bundles: those of one dtype are put together and move as one array; where
// nothing is reduced, all of them as bytes. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "worker/call.h"

namespace herring::worker {

class List {
 public:
  // `rank`: this one, of `size` that take part.
  List(wire::Collective what, std::vector<wire::Array> arrays, uint32_t rank, uint32_t size);

  // kInvalidArgument: a kind that takes no list, or an array that it does not take.
  Status check() const;
  // In words, for ranks to compare.
  std::string describe() const;

  struct Bundle {
    wire::Array array;
    std::vector<uint32_t> members;  // places in the list
    size_t offset = 0;              // in the staging
  };
  const std::vector<Bundle>& bundles() const { return bundles_; }
  size_t staging_bytes() const { return staging_bytes_; }
  // Of a reduce-scatter, rows of each bundle for each rank.
  std::vector<uint64_t> splits() const;

  // Bytes of an array, from the given one on, and their place among those that move.
  using Move = std::function<void(char* staged, uint32_t array, size_t first, size_t bytes)>;
  // Calls `copy` for all bytes of the arrays, which are not there yet.
  void pack(char* staging, const Move& copy) const;
  // Copies them from where the buffers say.
  void pack(const std::vector<Buffer>& buffers, char* staging) const;

  // Where results lie: of all-reduce and broadcast the staging, of others `bytes` that have come.
  // kProtocol: they are not what ranks have sent. `counts`: see wire::Go.
  Status read(const char* from, size_t bytes, const std::vector<uint64_t>& counts);
  // After read(): rows of the result of each array, and the results themselves.
  const std::vector<uint64_t>& result_rows() const { return result_rows_; }
  void unpack(char* from, const Move& copy) const;
  void unpack(char* from, const std::vector<char*>& to) const;

 private:
  bool gathers() const { return wire::is<wire::AllGather>(what_); }
  bool scatters() const { return wire::is<wire::ReduceScatter>(what_); }

  const wire::Collective what_;
  const std::vector<wire::Array> arrays_;
  const uint32_t rank_, size_;
  std::vector<Bundle> bundles_;
  size_t staging_bytes_ = 0;
  std::vector<uint64_t> result_rows_;
  std::vector<uint64_t> gathered_rows_;  // of each rank's arrays, rank by rank
};

}  // namespace herring::worker
