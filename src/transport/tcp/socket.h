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

// Of this process (HERRING_PORTS): where it listens unless a port is named; at first, any.
void set_listening_ports(PortRange ports);

// A listening socket on one local address; port 0 picks a free one of the listening ports. Errors
// name the address ("port 29500 of 10.0.0.1 is in use: ...") or the range that is used up.
Result<GuardedFd> listen_on(const Address& address, int backlog);
// Takes over an inherited listening descriptor (from a launcher).
Result<GuardedFd> adopt_listener(int fd);
Result<Address> local_address(int fd);
Result<Address> peer_address(int fd);

// Of one attempt to connect: the system repeats the first packet of a connection ever more rarely.
inline constexpr Nanos kAttempt = 5 * kSecond;

// Connects by `deadline`, trying again while nobody listens yet (start-up order is not ours to
// choose). `source`: local address to use, or empty. The socket is non-blocking with TCP_NODELAY.
Result<GuardedFd> connect_to(const Address& address, const std::string& source, Nanos deadline);

// A non-blocking socket on its way to a literal address; writable once it is there, or has failed.
Result<GuardedFd> begin_connecting(const Address& address, const std::string& source);

// What is left to do once a connecting socket is writable. kPeerLost: it is not there.
Status finish_connecting(int fd);

// Raises the limit of open descriptors for this many connections. kConfiguration when the system
// does not let it have `least`: the error says what does.
Status want_descriptors(size_t connections, size_t least);
inline Status want_descriptors(size_t connections) {
  return want_descriptors(connections, connections);
}
// Makes a lost packet of a connection that carries little be sent again every retransmission
// time-out, instead of ever more rarely: on a lossy link too, silence soon means something.
void repeat_steadily(int fd);
// Sends a lost packet again as soon as timeout_beyond() says, not only after the system's 200 ms.
// Takes Linux 6.15; on an older one the system's time-out stays.
void repeat_soon(int fd);
Status make_flow_socket(int fd);  // non-blocking, TCP_NODELAY, keep-alive

// For flows that rest now and then, or that something else holds back. BBR sends as fast, and has
// as much on its way, as it measured on the flow before, and acknowledgements that wait behind data
// the other way make it slow. Other choices of the system's are kept, and so is BBR where cubic is
// not allowed: slower, not wrong.
void avoid_bbr(int fd);

// The address of a named interface ("eth0"), or the text itself when it is an address.
Result<std::string> interface_address(const std::string& name_or_address);
// Bits per second and direction of the link that has this address; 0 where the system does not say.
uint64_t link_rate(const std::string& address);

}  // namespace herring::transport::tcp
