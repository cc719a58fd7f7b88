#include "switch/switch.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "switch/frame.h"
#include "switch/tap.h"
#include "virtual/network.h"

#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441
#endif

namespace herring::lab {

using transport::virtual_time::kNever;
using transport::virtual_time::Link;
using transport::virtual_time::LinkCounters;
using transport::virtual_time::LinkSettings;
using transport::virtual_time::Network;
using transport::virtual_time::Parcel;
using transport::virtual_time::PathSettings;

namespace {

constexpr int kBatch = 32;  // frames read from one host before the next host's turn
constexpr Nanos kShort = 2 * kMicrosecond;  // shorter waits do not sleep
constexpr uint32_t kInput = ~0u;

Status failed(const char* what) {
  return {Code::kInternal, concat(what, ": ", std::strerror(errno))};
}

double processor_seconds() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

// Memory for frames. Buffers keep their addresses and are reused.
class Buffers {
 public:
  void set_size(size_t size) { size_ = size; }
  size_t size() const { return size_; }
  uint8_t* at(uint32_t buffer) { return memory_[buffer].get(); }
  uint32_t take() {
    if (free_.empty()) {
      memory_.push_back(std::make_unique<uint8_t[]>(size_));
      return static_cast<uint32_t>(memory_.size() - 1);
    }
    uint32_t buffer = free_.back();
    free_.pop_back();
    return buffer;
  }
  void give_back(uint32_t buffer) { free_.push_back(buffer); }

 private:
  size_t size_ = 0;
  std::vector<std::unique_ptr<uint8_t[]>> memory_;
  std::vector<uint32_t> free_;
};

// Statistics of how late deliveries were, relative to the model.
struct Lateness {
  Nanos start = 0;
  double processor = 0;
  uint64_t delivered = 0;
  uint64_t late = 0;
  Nanos sum = 0;
  Nanos worst = 0;
  Nanos turn = 0;  // the longest time for which nothing was read
};

class Switch {
 public:
  Switch(int input, int output) : input_(input), output_(output) {}

  Status run() {
    epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
    if (!epoll_) return failed("epoll_create1");
    fcntl(input_, F_SETFL, fcntl(input_, F_GETFL) | O_NONBLOCK);
    HERRING_RETURN_IF_ERROR(watch(input_, kInput));
    while (!ended_) {
      std::array<epoll_event, 64> events;
      int ready = wait(&events);
      if (ready < 0 && errno != EINTR) return failed("epoll_pwait2");
      Nanos begin = monotonic_now();
      for (int i = 0; i < ready; ++i) {
        uint32_t host = events[static_cast<size_t>(i)].data.u32;
        if (host == kInput) {
          HERRING_RETURN_IF_ERROR(read_commands());
        } else {
          read_host(static_cast<uint16_t>(host));
        }
      }
      if (network_) deliver();
      lateness_.turn = std::max(lateness_.turn, monotonic_now() - begin);
    }
    return {};
  }

 private:
  Status watch(int fd, uint32_t name) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u32 = name;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return failed("epoll_ctl");
    return {};
  }

  int wait(std::array<epoll_event, 64>* events) {
    Nanos next = network_ ? network_->next() : kNever;
    timespec time{};
    if (next != kNever) {
      Nanos left = next - monotonic_now();
      if (left > kShort) time = {left / kSecond, left % kSecond};
    }
    return static_cast<int>(syscall(SYS_epoll_pwait2, epoll_.get(), events->data(), events->size(),
                                    next == kNever ? nullptr : &time, nullptr, 0));
  }

  void read_host(uint16_t host) {
    for (int i = 0; i < kBatch; ++i) {
      uint32_t buffer = buffers_.take();
      ssize_t count = ::read(taps_[host].get(), buffers_.at(buffer), buffers_.size());
      if (count <= static_cast<ssize_t>(kTapHeader)) {
        buffers_.give_back(buffer);
        return;
      }
      size_t bytes = static_cast<size_t>(count) - kTapHeader;
      FrameInfo info = read_frame(buffers_.at(buffer) + kTapHeader, bytes, network_->hosts());
      Parcel parcel{buffer, static_cast<uint32_t>(bytes), host, info.destination, info.flow,
                    !info.ip};
      if (info.destination == kEveryone) {
        flood(parcel);
      } else if (info.destination == kNobody || !network_->enter(parcel, monotonic_now())) {
        buffers_.give_back(buffer);
      }
    }
  }

  void flood(const Parcel& parcel) {
    for (uint16_t host = 0; host < network_->hosts(); ++host) {
      if (host == parcel.source) continue;
      Parcel copy = parcel;
      copy.destination = host;
      copy.buffer = buffers_.take();
      std::memcpy(buffers_.at(copy.buffer), buffers_.at(parcel.buffer), kTapHeader + parcel.bytes);
      if (!network_->enter(copy, monotonic_now())) buffers_.give_back(copy.buffer);
    }
    buffers_.give_back(parcel.buffer);
  }

  void deliver() {
    dropped_.clear();
    network_->advance(monotonic_now(), &dropped_);
    for (uint32_t buffer : dropped_) buffers_.give_back(buffer);
    Nanos now = monotonic_now();
    while (auto delivery = network_->deliver(now)) {
      const Parcel& parcel = delivery->parcel;
      Nanos late = now - delivery->due;
      ++lateness_.delivered;
      lateness_.late += late > late_limit_;
      lateness_.sum += late;
      lateness_.worst = std::max(lateness_.worst, late);
      // A device that is down refuses the frame; like a real network, the switch ignores this.
      [[maybe_unused]] ssize_t written = ::write(taps_[parcel.destination].get(),
                                                 buffers_.at(parcel.buffer),
                                                 kTapHeader + parcel.bytes);
      buffers_.give_back(parcel.buffer);
      now = monotonic_now();
    }
  }

  Status read_commands() {
    char text[4096];
    ssize_t count = 0;
    while ((count = ::read(input_, text, sizeof text)) > 0) {
      line_.append(text, static_cast<size_t>(count));
    }
    ended_ = count == 0;
    size_t begin = 0;
    for (size_t end; (end = line_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      std::string line = line_.substr(begin, end - begin);
      Status status = command(line);
      if (!status.ok()) return {status.code(), concat("'", line, "': ", status.message())};
    }
    line_.erase(0, begin);
    return {};
  }

  Status command(const std::string& line) {
    std::istringstream words(line);
    std::string verb, space;
    words >> verb;
    size_t a = 0, b = 0;
    PathSettings path;
    LinkSettings link;
    auto read_path = [&] { words >> path.delay >> path.jitter >> path.loss; };
    auto check = [&](bool in_range) -> Status {
      if (words && in_range) return {};
      return {Code::kInvalidArgument, "no such command, or a number is missing or out of range"};
    };
    if (verb == "network") {
      uint64_t seed = 0;
      size_t frame = 0;
      words >> a >> b >> seed >> frame >> late_limit_;
      HERRING_RETURN_IF_ERROR(check(!network_ && a > 0 && a < kNobody && frame < 1 << 20));
      network_ = std::make_unique<Network>(a, b, seed);
      taps_.resize(a);
      buffers_.set_size(kTapHeader + frame);
      reset();
      return {};
    }
    HERRING_RETURN_IF_ERROR(check(network_ != nullptr));
    size_t hosts = network_->hosts();
    if (verb == "tap") {
      words >> a >> space;
      HERRING_RETURN_IF_ERROR(check(a < hosts && !taps_[a]));
      HERRING_RETURN_IF_ERROR(open_tap(space, "eth0", static_cast<uint16_t>(a)).move_to(taps_[a]));
      return watch(taps_[a].get(), static_cast<uint32_t>(a));
    }
    if (verb == "link") {
      words >> a >> link.bits_per_second >> link.queue;
      HERRING_RETURN_IF_ERROR(check(a < network_->links()));
      network_->link(a).set(link);
    } else if (verb == "path") {
      read_path();
      HERRING_RETURN_IF_ERROR(check(true));
      network_->set_all_paths(path);
    } else if (verb == "pair") {
      words >> a >> b;
      read_path();
      HERRING_RETURN_IF_ERROR(check(a < hosts && b < hosts));
      network_->set_path(a, b, path);
    } else if (verb == "spine") {
      words >> a;
      read_path();
      HERRING_RETURN_IF_ERROR(check(2 * (hosts + a) < network_->links()));
      network_->set_spine_path(a, path);
    } else if (verb == "sync") {
      return answer("ok\n");
    } else if (verb == "reset") {
      reset();
    } else if (verb == "report") {
      return answer(report());
    } else {
      return check(false);
    }
    return {};
  }

  void reset() {
    lateness_ = {.start = monotonic_now(), .processor = processor_seconds()};
  }

  Status answer(const std::string& text) {
    // The output is a pipe whose reader waits for this answer, so the write does not block.
    if (::write(output_, text.data(), text.size()) < 0) return failed("write");
    return {};
  }

  std::string report() const {
    std::ostringstream out;
    out << "{\"seconds\": " << to_seconds(monotonic_now() - lateness_.start)
        << ", \"processor_seconds\": " << processor_seconds() - lateness_.processor
        << ", \"packets\": " << lateness_.delivered << ", \"late\": " << lateness_.late
        << ", \"late_sum\": " << to_seconds(lateness_.sum)
        << ", \"worst\": " << to_seconds(lateness_.worst)
        << ", \"turn\": " << to_seconds(lateness_.turn) << ", \"lost\": " << network_->lost()
        << ", \"links\": [";
    for (size_t i = 0; i < network_->links(); ++i) {
      const LinkCounters& counters = network_->link(i).counters();
      out << (i ? ", [" : "[") << counters.packets << ", " << counters.bytes << ", "
          << counters.drops << "]";
    }
    out << "]}\n";
    return out.str();
  }

  int input_;
  int output_;
  UniqueFd epoll_;
  bool ended_ = false;
  std::string line_;
  std::unique_ptr<Network> network_;
  std::vector<UniqueFd> taps_;
  Buffers buffers_;
  std::vector<uint32_t> dropped_;
  Nanos late_limit_ = 0;
  Lateness lateness_;
};

}  // namespace

Status run_switch(int input, int output) { return Switch(input, output).run(); }

}  // namespace herring::lab
