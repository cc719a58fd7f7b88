// Frames over a reliable byte stream: what is the same whether a socket or a modelled network
// carries the bytes. A stream says how much it took or gave, as the system's calls do.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "base/ring.h"
#include "transport/event_loop.h"
#include "transport/transport.h"

namespace herring::transport {

class StreamFlow : public Flow {
 public:
  // Loop thread only, like every method.
  StreamFlow(EventLoop& loop, FlowHandler& handler, std::string peer);
  ~StreamFlow() override;

  void send(const wire::FrameHeader& header, const iovec* pieces, int count,
            uint64_t token) final;
  void lend(const wire::FrameHeader& header, const iovec* pieces, int count) final;
  void send_owned(wire::FrameHeader header, std::string payload) final;
  size_t backlog() const final { return backlog_; }
  void close(Status why) final;
  void abandon() final;
  void finish(bool writes_queued = true) final;
  const FlowCounters& counters() const final { return counters_; }
  const std::string& peer() const final { return peer_; }

 protected:
  // The stream has something to read, or has ended.
  void on_readable();
  // It takes bytes again.
  void on_writable();

  EventLoop& loop() { return loop_; }

 private:
  // Each returns the bytes that were moved, or -1 with errno (EAGAIN: none now); a read of 0 is the
  // end. What is written may be reused, what is lent only once the other side has read it.
  virtual ssize_t read(const iovec* pieces, int count) = 0;
  virtual ssize_t write(const iovec* pieces, int count) = 0;
  // More follows at once.
  virtual ssize_t write_more(const char* data, size_t bytes) = 0;
  virtual ssize_t write_lent(iovec* pieces, int count, bool more_follows) = 0;
  // Whether on_writable() is wanted; it comes only then.
  virtual void want_writable(bool wanted) = 0;
  // Tells the other side that no more comes; false: the stream is broken.
  virtual bool end_writing() = 0;
  // Ends both directions; closed() from now on. `drop`: what has not left stays here.
  virtual void shut(bool drop) = 0;

  struct OutFrame {
    wire::FrameHeader header;
    std::string owned;
    uint32_t pieces = 0;  // of pieces_, behind those of earlier frames
    uint64_t token = 0;
    size_t bytes = 0;     // header and payload
    bool lent = false;    // the pieces go out without a copy
  };

  bool consume(size_t bytes);  // false: the flow was closed
  bool begin_frame();
  bool end_frame();
  void schedule_flush();
  void flush();
  ssize_t lend_front();
  ssize_t write_gathered(size_t* wanted);
  void written(size_t bytes);
  void drop_queued();
  void drop_input();
  void stop_writing(int error);
  void half_close();
  void fail(Status why);
  void end(bool drop);

  EventLoop& loop_;
  FlowHandler& handler_;
  const std::string peer_;
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
  bool finishing_ = false;    // nothing more is sent, and what comes is dropped
  Status broken_;             // why nothing can be written any more; what has come is still read
  bool half_closed_ = false;  // all is written, the other side knows that no more comes
  std::shared_ptr<bool> alive_;
};

}  // namespace herring::transport
