// A flow over one TCP connection.
#pragma once

#include <memory>
#include <string>

#include "base/ring.h"
#include "transport/event_loop.h"
#include "transport/tcp/socket.h"
#include "transport/transport.h"

namespace herring::transport::tcp {

class TcpFlow final : public Flow, private EventHandler {
 public:
  // `fd`: a connected, proven, non-blocking socket. Loop thread only, like every method.
  TcpFlow(EventLoop& loop, GuardedFd fd, FlowHandler& handler, std::string peer);
  ~TcpFlow() override;

  void send(const wire::FrameHeader& header, const iovec* pieces, int count,
            uint64_t token) override;
  void lend(const wire::FrameHeader& header, const iovec* pieces, int count) override;
  void send_owned(wire::FrameHeader header, std::string payload) override;
  size_t backlog() const override { return backlog_; }
  void close(Status why) override;
  void abandon() override;
  void finish() override;
  bool closed() const override { return !fd_.valid(); }
  const FlowCounters& counters() const override { return counters_; }
  PathInfo path_info() const override;
  const std::string& peer() const override { return peer_; }

 private:
  struct OutFrame {
    wire::FrameHeader header;
    std::string owned;
    uint32_t pieces = 0;  // of pieces_, behind those of earlier frames
    uint64_t token = 0;
    size_t bytes = 0;     // header and payload
    bool lent = false;    // the pieces go out without a copy
  };

  void on_events(uint32_t events) override;
  void receive();
  bool consume(size_t bytes);  // false: the flow was closed
  bool begin_frame();
  bool end_frame();
  void schedule_flush();
  void flush();
  ssize_t write_lent();
  ssize_t write_gathered(size_t* wanted);
  void written(size_t bytes);
  void half_close();
  void update_interest();
  void fail(Status why);

  EventLoop& loop_;
  GuardedFd fd_;
  int number_ = -1;
  FlowHandler& handler_;
  std::string peer_;
  FlowCounters counters_;

  // Receiving: a header, then its payload into destinations_.
  wire::FrameHeader header_;
  size_t header_have_ = 0;
  bool in_payload_ = false;
  Destinations destinations_;
  int next_piece_ = 0;
  size_t payload_have_ = 0;

  // Sending.
  Ring<OutFrame> frames_;
  Ring<iovec> pieces_;
  size_t written_ = 0;  // of frames_.front()
  size_t backlog_ = 0;
  EventLoop::Task flush_task_;
  bool flush_scheduled_ = false;
  bool writable_ = true;
  bool finishing_ = false;
  bool half_closed_ = false;  // all is written, the other side knows that no more comes
  uint32_t interest_ = 0;
  std::shared_ptr<bool> alive_;
};

}  // namespace herring::transport::tcp
