#include "transport/tcp/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string_view>

#include "base/interrupt.h"
#include "base/lists.h"
#include "transport/transport.h"

namespace herring::transport::tcp {
namespace {

struct AddrinfoDeleter {
  void operator()(addrinfo* info) const { freeaddrinfo(info); }
};
using AddrinfoPtr = std::unique_ptr<addrinfo, AddrinfoDeleter>;

Result<AddrinfoPtr> resolve(const Address& address, bool passive) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
  addrinfo* list = nullptr;
  const std::string port = std::to_string(address.port);
  const int error = getaddrinfo(address.host.c_str(), port.c_str(), &hints, &list);
  if (error != 0) {
    // A name server that does not answer now may do so later; a name that does not exist is wrong.
    return Status(error == EAI_AGAIN ? Code::kPeerLost : Code::kConfiguration,
                  concat("cannot resolve '", address.host, "': ", gai_strerror(error)));
  }
  return AddrinfoPtr(list);
}

Address from_sockaddr(const sockaddr_storage& from, socklen_t length) {
  sockaddr_storage storage = from;
  // An IPv4 peer of an IPv6 listener is shown, and can be reached, by its IPv4 address.
  if (const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&from);
      from.ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_port = v6->sin6_port;
    std::memcpy(&v4.sin_addr, v6->sin6_addr.s6_addr + 12, sizeof(v4.sin_addr));
    std::memcpy(&storage, &v4, sizeof(v4));
    length = sizeof(v4);
  }
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&storage), length, host, sizeof(host), port,
                  sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return {"?", 0};
  }
  return {host, static_cast<uint16_t>(std::stoi(port))};
}

// Returns a socket that is being connected, or kPeerLost if another attempt may succeed.
Result<GuardedFd> start_connecting(const addrinfo& info, const std::string& source) {
  GuardedFd fd = GuardedFd::open([&] {
    return socket(info.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, info.ai_protocol);
  });
  if (fd.get() < 0) {
    return Status(Code::kConfiguration, concat("cannot create a socket: ", strerror(errno)));
  }
  if (!source.empty()) {
    HERRING_ASSIGN_OR_RETURN(auto& local, resolve({source, 0}, true));
    if (local->ai_family != info.ai_family) {
      return Status(Code::kInvalidArgument, "");  // the caller tries the host's other addresses
    }
    if (bind(fd.get(), local->ai_addr, local->ai_addrlen) != 0) {
      return Status(Code::kConfiguration, concat("cannot use local address ", source, ": ",
                                                 strerror(errno)));
    }
  }
  if (connect(fd.get(), info.ai_addr, info.ai_addrlen) != 0 && errno != EINPROGRESS) {
    return Status(Code::kPeerLost, strerror(errno));
  }
  return fd;
}

// Makes one attempt. Returns kTimeout if the time is up, and kPeerLost if another may succeed.
Result<GuardedFd> connect_once(const addrinfo& info, const std::string& source, Nanos deadline) {
  HERRING_ASSIGN_OR_RETURN(auto& started, start_connecting(info, source));
  GuardedFd fd = std::move(started);
  pollfd waiting{fd.get(), POLLOUT, 0};
  const int n = poll_until(&waiting, 1, deadline);
  if (n == 0) return Status(Code::kTimeout, "no answer");
  if (n < 0) return Status(Code::kInternal, strerror(errno));
  HERRING_RETURN_IF_ERROR(finish_connecting(fd.get()));
  return fd;
}

// A virtual interface reports a made-up rate (a container's veth: 10 Gbit/s), so the rate counts
// only for hardware and for interfaces that stand for hardware.
uint64_t rate_of_interface(const std::string& name) {
  const std::filesystem::path folder = "/sys/class/net/" + name;
  std::error_code ignored;
  const bool hardware = std::filesystem::exists(folder / "device", ignored);
  const bool stands_for_hardware = std::filesystem::exists(folder / "bonding", ignored) ||
                                   std::filesystem::exists("/proc/net/vlan/" + name, ignored);
  int64_t megabits = -1;
  if (hardware || stands_for_hardware) std::ifstream(folder / "speed") >> megabits;
  return megabits > 0 ? static_cast<uint64_t>(megabits) * 1'000'000 : 0;
}

std::atomic<PortRange> g_listening_ports{PortRange{}};

// Sets `error` to the reason if the system refused. It stays 0 if the address has no meaning.
Result<GuardedFd> try_to_listen(const Address& address, int backlog, int& error) {
  HERRING_ASSIGN_OR_RETURN(auto& info, resolve(address, true));
  // A name may stand for several addresses: "localhost" also for ::1, even on hosts without IPv6.
  for (const addrinfo* one = info.get(); one != nullptr; one = one->ai_next) {
    GuardedFd fd = GuardedFd::open([&] {
      return socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    });
    const int on = 1;
    if (fd.valid() && setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
        bind(fd.get(), one->ai_addr, one->ai_addrlen) == 0 && listen(fd.get(), backlog) == 0) {
      return fd;
    }
    error = errno;
    if (error == EADDRINUSE) break;
  }
  return Status(Code::kConfiguration, "");  // the caller says what the error means
}

// Returns what `call` says about a socket. `code` is the code of its error, `name` the call's name.
Result<Address> address_by(int (*call)(int, sockaddr*, socklen_t*), int fd, Code code,
                           const char* name) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  if (call(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) {
    return Status(code, concat(name, ": ", strerror(errno)));
  }
  return from_sockaddr(storage, length);
}

}  // namespace

Status finish_connecting(int fd) {
  int error = 0;
  socklen_t length = sizeof(error);
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) return {Code::kPeerLost, strerror(error)};
  // A socket that tries an unused local port may connect to itself (simultaneous open).
  auto here = local_address(fd);
  auto there = peer_address(fd);
  if (!there.ok() || (here.ok() && here->host == there->host && here->port == there->port)) {
    return {Code::kPeerLost, strerror(ECONNREFUSED)};
  }
  return make_flow_socket(fd);
}

Status make_flow_socket(int fd) {
  const int on = 1;
  // Seconds until a quiet connection is probed, and between probes. A host that has vanished ends
  // it within two minutes, also where no rendezvous tells of it.
  const int idle = 60, probe = 10, probes = 6;
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return {Code::kInternal, concat("cannot make a socket non-blocking: ", strerror(errno))};
  }
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &probe, sizeof(probe));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
  return {};
}

Status want_descriptors(size_t connections, size_t least) {
  constexpr size_t kOthers = 1024, kFewOthers = 64;  // other descriptors of a process
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return {};
  const rlim_t wanted = connections + kOthers;
  if (limit.rlim_cur < wanted && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = std::min(limit.rlim_max, wanted);
    setrlimit(RLIMIT_NOFILE, &limit);
    getrlimit(RLIMIT_NOFILE, &limit);
  }
  if (limit.rlim_cur >= least + kFewOthers) return {};
  return {Code::kConfiguration,
          concat(least, " connections need more open files than this process's limit of ",
                 limit.rlim_cur, "; raise the hard limit (ulimit -Hn, LimitNOFILE= of systemd, "
                 "--ulimit nofile= of containers) to ", wanted)};
}

// The system does so six times, which takes 1.4 s unless repeat_soon() shortens the timeout. With
// BBR it never does. Reno is allowed everywhere.
void repeat_steadily(int fd) {
  const int on = 1;
  constexpr std::string_view kAlgorithm = "reno";
  setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kAlgorithm.data(), kAlgorithm.size());
  setsockopt(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &on, sizeof(on));
}

void repeat_soon(int fd) {
  constexpr int kLeastTimeoutOption = 45;  // TCP_RTO_MIN_US, which older headers lack
  tcp_info info{};
  socklen_t length = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return;
  const Nanos beyond = timeout_beyond(static_cast<Nanos>(info.tcpi_rtt) * kMicrosecond);
  const auto least = static_cast<int>(beyond / kMicrosecond);
  setsockopt(fd, IPPROTO_TCP, kLeastTimeoutOption, &least, sizeof(least));
}

void avoid_bbr(int fd) {
  constexpr std::string_view kInstead = "cubic";
  char name[16] = {};  // the longest name in the system
  socklen_t length = sizeof(name) - 1;
  if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) != 0) return;
  if (std::string_view(name) != "bbr") return;
  setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kInstead.data(), kInstead.size());
}

void set_listening_ports(PortRange ports) { g_listening_ports.store(ports); }

Result<GuardedFd> listen_on(const Address& address, int backlog) {
  const PortRange range = address.port == 0 ? g_listening_ports.load() : PortRange{};
  if (range.any()) {
    int error = 0;
    auto fd = try_to_listen(address, backlog, error);
    if (fd.ok() || error == 0) return fd;
    const char* hint = error == EADDRINUSE ? "; choose another port or end the process that uses it"
                       : error == EADDRNOTAVAIL ? "; this host has no such address" : "";
    return Status(Code::kConfiguration, concat("cannot listen on ", address.to_string(), ": ",
                                               strerror(error), hint));
  }
  for (uint32_t port = range.first; port <= range.last; ++port) {
    int error = 0;
    auto fd = try_to_listen({address.host, static_cast<uint16_t>(port)}, backlog, error);
    if (fd.ok() || error == 0) return fd;
    if (error == EADDRINUSE || error == EACCES) continue;  // a port below 1024 may be forbidden
    return Status(Code::kConfiguration,
                  concat("cannot listen on ", address.host, " at a port of HERRING_PORTS=",
                         range.to_string(), ": ", strerror(error)));
  }
  return Status(Code::kConfiguration,
                concat("HERRING_PORTS=", range.to_string(), " is used up: none of its ",
                       range.last - range.first + 1, " ports is free on ", address.host,
                       "; a host needs one port for each worker and server, and three "
                       "more for rank 0; use a wider range, or end what listens there"));
}

Result<GuardedFd> adopt_listener(int fd) {
  int listening = 0;
  socklen_t length = sizeof(listening);
  if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &length) != 0 || !listening) {
    return Status(Code::kConfiguration, concat("descriptor ", fd, " is not a listening socket"));
  }
  // A listener that blocks would hold up the whole rendezvous.
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
      fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
    return Status(Code::kInternal, concat("cannot make descriptor ", fd,
                                          " non-blocking: ", strerror(errno)));
  }
  return GuardedFd(UniqueFd(fd));
}

Result<Address> local_address(int fd) {
  return address_by(getsockname, fd, Code::kInternal, "getsockname");
}

Result<Address> peer_address(int fd) {
  return address_by(getpeername, fd, Code::kPeerLost, "getpeername");
}

Result<GuardedFd> connect_to(const Address& address, const std::string& source, Nanos deadline) {
  Nanos pause = 5 * kMillisecond;
  std::string last = "no attempt was made";
  do {
    auto info = resolve(address, false);
    if (!info.ok()) {
      if (info.status().code() == Code::kConfiguration) return info.status();
      last = info.status().message();
    }
    bool usable = !info.ok();
    for (const addrinfo* one = info.ok() ? info->get() : nullptr; one != nullptr;
         one = one->ai_next) {
      // Bounded, so that the next address of a name is tried if the first leads nowhere.
      auto fd = connect_once(*one, source, std::min(deadline, monotonic_now() + kAttempt));
      if (fd.ok()) return fd;
      if (fd.status().code() == Code::kConfiguration) return fd.status();
      if (fd.status().code() == Code::kInvalidArgument) continue;
      usable = true;
      last = fd.status().message();
    }
    if (!usable) {
      return Status(Code::kConfiguration,
                    concat("local address ", source, " cannot reach ", address.to_string(),
                           ": one is IPv4, the other IPv6"));
    }
    poll_until(nullptr, 0, std::min(deadline, monotonic_now() + pause));
    pause = std::min<Nanos>(pause * 2, 200 * kMillisecond);
  } while (monotonic_now() < deadline && !interrupted());
  return Status(Code::kTimeout, concat("no connection to ", address.to_string(),
                                       " (last error: ", last, ")"));
}

Result<GuardedFd> begin_connecting(const Address& address, const std::string& source) {
  HERRING_ASSIGN_OR_RETURN(auto& info, resolve(address, false));
  auto fd = start_connecting(*info, source);
  if (fd.ok() || fd.status().code() != Code::kInvalidArgument) return fd;
  return Status(Code::kConfiguration, concat("local address ", source, " cannot reach it: one is "
                                             "IPv4, the other IPv6"));
}

Result<std::string> interface_address(const std::string& name) {
  unsigned char scratch[sizeof(in6_addr)];
  if (inet_pton(AF_INET, name.c_str(), scratch) == 1 ||
      inet_pton(AF_INET6, name.c_str(), scratch) == 1) {
    return name;
  }
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    return Status(Code::kInternal, concat("getifaddrs: ", strerror(errno)));
  }
  std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  std::string found;
  std::set<std::string> names;
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    names.insert(one->ifa_name);
    if (one->ifa_addr == nullptr || name != one->ifa_name) continue;
    const int family = one->ifa_addr->sa_family;
    if (family != AF_INET && (family != AF_INET6 || !found.empty())) continue;
    sockaddr_storage storage{};
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&storage, one->ifa_addr, length);
    found = from_sockaddr(storage, length).host;
    if (family == AF_INET) break;
  }
  if (!found.empty()) return found;
  return Status(Code::kConfiguration,
                concat("HERRING_INTERFACE is '", name, "', which is neither an address nor an "
                       "interface that has one; this host has ", list_of(names)));
}

uint64_t link_rate(const std::string& address) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return 0;
  std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    const int family = one->ifa_addr == nullptr ? AF_UNSPEC : one->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    sockaddr_storage storage{};
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&storage, one->ifa_addr, length);
    if (from_sockaddr(storage, length).host == address) return rate_of_interface(one->ifa_name);
  }
  return 0;
}

}  // namespace herring::transport::tcp
