// Frames over a reliable byte stream: the part that is the same whether a socket or a modelled
// network carries the bytes. A stream reports how many bytes it took or gave, as system calls do.
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
  // Called when the stream has something to read, or has ended.
  void on_readable();
  // Called when the stream takes bytes again.
  void on_writable();

  EventLoop& loop() { return loop_; }
  // Returns what an errno of the calls below means.
  virtual std::string describe(int error) const;

 private:
  // Each call returns the number of bytes moved, or -1 with errno (EAGAIN: none now). A read of 0
  // is the end. Written memory may be reused; lent memory only after the other side has read it.
  virtual ssize_t read(const iovec* pieces, int count) = 0;
  virtual ssize_t write(const iovec* pieces, int count) = 0;
  // Like write(); more bytes follow at once.
  virtual ssize_t write_more(const char* data, size_t bytes) = 0;
  virtual ssize_t write_lent(iovec* pieces, int count, bool more_follows) = 0;
  // Whether write_lent() lends. Otherwise only write() is called.
  virtual bool lends() const { return true; }
  // Sets whether on_writable() is wanted. It is only called if it is.
  virtual void want_writable(bool wanted) = 0;
  // Tells the other side that no more comes. Returns false if the stream is broken.
  virtual bool end_writing() = 0;
  // Ends both directions; closed() is true from now on. `drop` discards what has not left yet.
  virtual void shut(bool drop) = 0;

  struct OutFrame {
    wire::FrameHeader header;
    std::string owned;
    uint32_t pieces = 0;  // number in pieces_, after those of earlier frames
    uint64_t token = 0;
    size_t bytes = 0;     // of header and payload
    bool lent = false;    // the pieces are sent without a copy
  };

  bool consume(size_t bytes);  // returns false if the flow was closed
  bool begin_frame();
  bool end_frame();
  void queued(OutFrame& frame);
  void schedule_flush();
  void flush();
  ssize_t lend_front();
  ssize_t write_gathered(size_t* wanted);
  void written(size_t bytes);
  void drop_queued();
  void drop_input();
  void stop_writing(int error);
  void half_close();
  void fail(Status why, bool drop = false);
  void refuse(Status why);
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
  size_t written_ = 0;  // bytes of frames_.front()
  size_t backlog_ = 0;
  EventLoop::Task flush_task_;
  bool flush_scheduled_ = false;
  bool writable_ = true;
  bool finishing_ = false;    // nothing more is sent, and input is dropped
  Status broken_;             // why nothing can be written any more; input is still read
  bool half_closed_ = false;  // all is written, and the other side knows that no more comes
  std::shared_ptr<bool> alive_;
};

}  // namespace herring::transport
