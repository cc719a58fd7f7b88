// A flow over one TCP connection. Tests derive flows from it that break.
#pragma once

#include <string>

#include "transport/descriptor_loop.h"
#include "transport/stream_flow.h"
#include "transport/tcp/tls.h"

namespace herring::transport::tcp {

class TcpFlow : public StreamFlow, private DescriptorHandler {
 public:
  // `socket` must be connected, proven and non-blocking.
  TcpFlow(DescriptorLoop& loop, Socket socket, FlowHandler& handler, std::string peer);
  ~TcpFlow() override;

  bool closed() const override { return !socket_.valid(); }
  PathInfo path_info() const override;

 protected:
  ssize_t write(const iovec* pieces, int count) override;
  ssize_t write_more(const char* data, size_t bytes) override;
  ssize_t write_lent(iovec* pieces, int count, bool more_follows) override;
  void want_writable(bool wanted) override;
  void shut(bool drop) override;
  int number() const { return number_; }  // of the socket

 private:
  void on_ready(uint32_t readiness) override;
  ssize_t read(const iovec* pieces, int count) override;
  bool lends() const override { return socket_.tls() == nullptr; }
  std::string describe(int error) const override;
  bool end_writing() override;
  void read_again_if_held();

  Socket socket_;
  const int number_;
  DescriptorLoop& loop_;
  uint32_t interest_;
  EventLoop::TimerId again_ = 0;
};

}  // namespace herring::transport::tcp
