// A list of arrays as bundles. The arrays of one dtype are put together and move as one array. If
// nothing is reduced, all arrays move together as bytes. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "calls/call.h"

namespace herring::calls {

class List {
 public:
  // `rank`: the index of this rank among the `size` ranks that take part.
  List(wire::Collective what, std::vector<wire::Array> arrays, uint32_t rank, uint32_t size);

  // Returns kInvalidArgument if this kind of operation takes no list, or does not take one of the
  // arrays.
  Status check() const;
  // Describes the list in words that ranks compare.
  std::string describe() const;

  struct Bundle {
    wire::Array array;
    std::vector<uint32_t> members;  // indices in the list
    size_t offset = 0;              // in the staging memory
  };
  const std::vector<Bundle>& bundles() const { return bundles_; }
  size_t staging_bytes() const { return staging_bytes_; }
  // For a reduce-scatter: the rows of each bundle that each rank gets.
  std::vector<uint64_t> splits() const;

  // Called for `bytes` bytes of an array, from byte `first` on. `staged` is their place in the
  // staging memory or in the result.
  using Move = std::function<void(char* staged, uint32_t array, size_t first, size_t bytes)>;
  // Calls `copy` for all bytes of the arrays, which the caller then copies to the staging memory.
  void pack(char* staging, const Move& copy) const;
  // Copies the arrays from the places that the buffers name.
  void pack(const std::vector<Buffer>& buffers, char* staging) const;

  // Finds the results in the bytes at `from`. For all-reduce and broadcast these are the staging
  // memory, for other operations the `bytes` that arrived. Returns kProtocol if they do not match
  // what ranks sent. `counts`: see wire::Go.
  Status read(const char* from, size_t bytes, const std::vector<uint64_t>& counts);
  // Valid after read(): the number of rows in the result of each array. unpack() then hands out the
  // results.
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

}  // namespace herring::calls
