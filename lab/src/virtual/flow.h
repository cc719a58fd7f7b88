// A flow over one end of a modelled connection. Only the simulation's thread may use it.
#pragma once

#include <string>

#include "transport/stream_flow.h"
#include "virtual/loop.h"

namespace herring::transport::virtual_time {

class VirtualFlow final : public StreamFlow {
 public:
  VirtualFlow(VirtualLoop& loop, uint32_t connection, int side, FlowHandler& handler,
              std::string peer);
  ~VirtualFlow() override;

  bool closed() const override { return closed_; }
  PathInfo path_info() const override;

 private:
  friend class Simulation;
  friend class VirtualLoop;

  ssize_t read(const iovec* pieces, int count) override;
  ssize_t write(const iovec* pieces, int count) override;
  ssize_t write_more(const char* data, size_t bytes) override;
  ssize_t write_lent(iovec* pieces, int count, bool more_follows) override;
  void want_writable(bool wanted) override { wants_writable_ = wanted; }
  bool end_writing() override;
  void shut(bool drop) override;

  // Asks the loop to call handle() in its next iteration.
  void notice(bool writable);
  void handle();
  void charge(double call, double per_byte, size_t bytes);

  VirtualLoop& loop_;
  Simulation& simulation_;
  const uint32_t connection_;
  const int side_;
  uint64_t read_ = 0;
  bool closed_ = false, listed_ = false, writable_ = false, wants_writable_ = false;
};

}  // namespace herring::transport::virtual_time
