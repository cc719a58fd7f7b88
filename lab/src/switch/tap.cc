#include "switch/tap.h"

#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <sched.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <cstring>

#include "switch/frame.h"

namespace herring::lab {
namespace {

Status failed(const std::string& what) {
  return {Code::kConfiguration, concat(what, ": ", std::strerror(errno))};
}

Result<UniqueFd> make(const std::string& name, uint16_t host) {
  UniqueFd fd(::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (!fd) return failed("/dev/net/tun");
  ifreq request{};
  request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
  name.copy(request.ifr_name, IFNAMSIZ - 1);
  if (::ioctl(fd.get(), TUNSETIFF, &request) != 0) return failed("TUNSETIFF " + name);
  if (::ioctl(fd.get(), TUNSETOFFLOAD, TUN_F_CSUM) != 0) return failed("TUNSETOFFLOAD " + name);
  int header = kTapHeader;
  if (::ioctl(fd.get(), TUNSETVNETHDRSZ, &header) != 0) return failed("TUNSETVNETHDRSZ " + name);
  auto address = host_address(host);
  request.ifr_hwaddr.sa_family = ARPHRD_ETHER;
  std::memcpy(request.ifr_hwaddr.sa_data, address.data(), address.size());
  if (::ioctl(fd.get(), SIOCSIFHWADDR, &request) != 0) return failed("SIOCSIFHWADDR " + name);
  return fd;
}

}  // namespace

Result<UniqueFd> open_tap(const std::string& space, const std::string& name, uint16_t host) {
  UniqueFd own(::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC));
  UniqueFd there(::open(("/run/netns/" + space).c_str(), O_RDONLY | O_CLOEXEC));
  if (!own) return failed("/proc/self/ns/net");
  if (!there) return failed("/run/netns/" + space);
  if (::setns(there.get(), CLONE_NEWNET) != 0) return failed("setns " + space);
  auto tap = make(name, host);
  if (::setns(own.get(), CLONE_NEWNET) != 0) return failed("setns back from " + space);
  return tap;
}

}  // namespace herring::lab
