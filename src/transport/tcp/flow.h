// A flow over one TCP connection.
#pragma once

#include <string>

#include "base/fork_guard.h"
#include "transport/descriptor_loop.h"
#include "transport/stream_flow.h"

namespace herring::transport::tcp {

class TcpFlow final : public StreamFlow, private DescriptorHandler {
 public:
  // `fd` must be a connected, proven, non-blocking socket.
  TcpFlow(DescriptorLoop& loop, GuardedFd fd, FlowHandler& handler, std::string peer);
  ~TcpFlow() override;

  bool closed() const override { return !fd_.valid(); }
  PathInfo path_info() const override;

 private:
  void on_ready(uint32_t readiness) override;
  ssize_t read(const iovec* pieces, int count) override;
  ssize_t write(const iovec* pieces, int count) override;
  ssize_t write_more(const char* data, size_t bytes) override;
  ssize_t write_lent(iovec* pieces, int count, bool more_follows) override;
  void want_writable(bool wanted) override;
  bool end_writing() override;
  void shut(bool drop) override;

  GuardedFd fd_;
  const int number_;
  DescriptorLoop& loop_;
  uint32_t interest_;
};

}  // namespace herring::transport::tcp
