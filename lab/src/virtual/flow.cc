#include "virtual/flow.h"

#include <algorithm>
#include <cerrno>

namespace herring::transport::virtual_time {
namespace {

size_t total(const iovec* pieces, int count) {
  size_t bytes = 0;
  for (int i = 0; i < count; ++i) bytes += pieces[i].iov_len;
  return bytes;
}

}  // namespace

VirtualFlow::VirtualFlow(VirtualLoop& loop, uint32_t connection, int side, FlowHandler& handler,
                         std::string peer)
    : StreamFlow(loop, handler, std::move(peer)),
      loop_(loop),
      simulation_(loop.simulation_),
      connection_(connection),
      side_(side) {
  Simulation::End& end = simulation_.end(connection_, side_);
  end.flow = this;
  if (end.arrived > 0 || end.finished) notice(false);
}

VirtualFlow::~VirtualFlow() {
  if (!closed_) shut(true);
  loop_.forget(this);
}

void VirtualFlow::notice(bool writable) {
  if (closed_) return;
  writable_ |= writable;
  if (!std::exchange(listed_, true)) loop_.ready(this);
}

void VirtualFlow::handle() {
  listed_ = false;
  if (closed_) return;
  if (std::exchange(writable_, false) && wants_writable_) on_writable();
  const Simulation::End& end = simulation_.end(connection_, side_);
  if (end.arrived > read_ || end.finished) on_readable();
  if (closed_) return;
  if (end.arrived > read_) notice(false);  // on_readable() reads a limited amount at a time
}

void VirtualFlow::charge(double call, double per_byte, size_t bytes) {
  const Costs& costs = simulation_.options().costs;
  const double packets =
      static_cast<double>(bytes) / simulation_.options().streams.segment() + (bytes > 0 ? 0.5 : 0);
  loop_.charge(call + per_byte * static_cast<double>(bytes) + costs.packet * packets);
}

ssize_t VirtualFlow::read(const iovec* pieces, int count) {
  Simulation::End& end = simulation_.end(connection_, side_);
  const size_t bytes = std::min<uint64_t>(end.arrived - read_, total(pieces, count));
  const Costs& costs = simulation_.options().costs;
  charge(costs.call, costs.byte_received, bytes);
  if (bytes == 0) {
    if (end.finished) return 0;
    errno = EAGAIN;
    return -1;
  }
  end.incoming.read(pieces, count, bytes);
  read_ += bytes;
  return static_cast<ssize_t>(bytes);
}

ssize_t VirtualFlow::write(const iovec* pieces, int count) {
  const size_t taken = simulation_.streams_.write(connection_, side_, total(pieces, count),
                                                  simulation_.now());
  const Costs& costs = simulation_.options().costs;
  charge(costs.call, costs.byte_sent, taken);
  if (taken == 0) {
    errno = EAGAIN;
    return -1;
  }
  simulation_.end(connection_, 1 - side_).incoming.write(pieces, count, taken);
  return static_cast<ssize_t>(taken);
}

ssize_t VirtualFlow::write_more(const char* data, size_t bytes) {
  const iovec piece{const_cast<char*>(data), bytes};
  return write(&piece, 1);
}

ssize_t VirtualFlow::write_lent(iovec* pieces, int count, bool) { return write(pieces, count); }

bool VirtualFlow::end_writing() {
  simulation_.streams_.finish(connection_, side_, simulation_.now());
  return true;
}

void VirtualFlow::shut(bool drop) {
  closed_ = true;
  simulation_.end(connection_, side_).flow = nullptr;
  if (drop) {
    simulation_.streams_.abort(connection_, side_, simulation_.now());
  } else {
    simulation_.streams_.finish(connection_, side_, simulation_.now());
  }
}

PathInfo VirtualFlow::path_info() const {
  return closed_ ? PathInfo()
                 : simulation_.streams_.path_info(connection_, side_, simulation_.now());
}

}  // namespace herring::transport::virtual_time
