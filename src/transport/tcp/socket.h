// Sockets for the TCP backend.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/fork_guard.h"
#include "base/settings.h"
#include "base/status.h"
#include "transport/address.h"

namespace herring::transport::tcp {

// Sets where this process listens (HERRING_PORTS) unless a port is named. Initially, any port.
void set_listening_ports(PortRange ports);

// Returns a listening socket on one local address. Port 0 picks a free one of the listening ports.
// Errors name the address ("cannot listen on 10.0.0.1:29500: ...") or the range that is used up.
Result<GuardedFd> listen_on(const Address& address, int backlog);
// Takes over an inherited listening descriptor (from a launcher).
Result<GuardedFd> adopt_listener(int fd);
Result<Address> local_address(int fd);
Result<Address> peer_address(int fd);

// The limit of one attempt to connect: the system repeats the first packet ever more rarely.
inline constexpr Nanos kAttempt = 5 * kSecond;

// Connects by `deadline`. Tries again while nobody listens yet, since processes start in any order.
// `source` is the local address to use, or empty. The socket is non-blocking and has TCP_NODELAY.
Result<GuardedFd> connect_to(const Address& address, const std::string& source, Nanos deadline);

// Returns a non-blocking socket that is being connected to a literal address. The socket becomes
// writable once it is connected or has failed.
Result<GuardedFd> begin_connecting(const Address& address, const std::string& source);

// Finishes once a connecting socket is writable. Returns kPeerLost if the connection has failed.
Status finish_connecting(int fd);

// Raises the limit of open descriptors for this many connections. Returns kConfiguration, with the
// remedy, if the system does not even allow `least` connections.
Status want_descriptors(size_t connections, size_t least);
inline Status want_descriptors(size_t connections) {
  return want_descriptors(connections, connections);
}
// For connections that carry little: sends a lost packet again every retransmission timeout,
// instead of ever more rarely. So silence soon means something, even on a lossy link.
void repeat_steadily(int fd);
// Sends a lost packet again after timeout_beyond(), not only after the system's 200 ms. Needs Linux
// 6.15; on older systems, the system's timeout stays.
void repeat_soon(int fd);
Status make_flow_socket(int fd);  // non-blocking, TCP_NODELAY, keep-alive

// For flows that pause now and then, or that something else limits. BBR keeps to the rate and the
// bytes in flight that it measured on the flow before, and acknowledgements that wait behind data
// in the other direction slow it down. Other choices of the system are kept. BBR is kept, too, if
// cubic is not allowed; the flow is then slower, but not wrong.
void avoid_bbr(int fd);

// Returns the address of a named interface ("eth0"), or the text itself if it is an address.
Result<std::string> interface_address(const std::string& name_or_address);
// Returns the rate of the link with this address, in bits per second and direction; 0: unknown.
uint64_t link_rate(const std::string& address);

}  // namespace herring::transport::tcp
