#include "cost.h"

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <future>
#include <string>
#include <utility>

#include "base/clock.h"
#include "transport/epoll_loop.h"
#include "transport/tcp/flow.h"
#include "transport/tcp/socket.h"

namespace herring::bindings {
namespace {

using transport::Destinations, transport::EpollLoop, transport::Flow, transport::FlowHandler;
using transport::tcp::Socket, transport::tcp::TcpFlow, transport::tcp::TlsSession;

constexpr size_t kFrame = 256 << 10;
constexpr Nanos kPatience = 60 * kSecond;

double thread_cpu() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// One end of the connection. The receiving one counts frames.
class End final : public FlowHandler {
 public:
  explicit End(size_t frames) : left_(frames), memory_(kFrame, '\1') {}

  Status on_header(Flow&, const wire::FrameHeader& header, Destinations& out) override {
    out.add(memory_.data(), header.payload);
    return {};
  }
  Status on_frame(Flow&, const wire::FrameHeader&) override {
    if (--left_ == 0) done.set_value({});
    return {};
  }
  void on_closed(Flow&, const Status& why) override {
    if (left_ > 0) done.set_value(why);
  }

  iovec memory() { return {memory_.data(), memory_.size()}; }

  std::promise<Status> done;

 private:
  size_t left_;
  std::string memory_;
};

Status shake_hands(TlsSession& client, TlsSession& server) {
  using Step = TlsSession::Step;
  Step one = Step::kReads, other = Step::kReads;
  const Nanos until = monotonic_now() + kPatience;
  while (one != Step::kDone || other != Step::kDone) {
    if (one != Step::kDone) one = client.shake();
    if (other != Step::kDone) other = server.shake();
    if (one == Step::kFailed || other == Step::kFailed || monotonic_now() > until) {
      return {Code::kInternal, concat("no TLS over loopback: ", client.complaint())};
    }
  }
  client.trust();
  server.trust();
  return {};
}

Result<std::pair<Socket, Socket>> connected_pair() {
  HERRING_ASSIGN_OR_RETURN(auto& listener, transport::tcp::listen_on({"127.0.0.1", 0}, 1));
  HERRING_ASSIGN_OR_RETURN(auto& address, transport::tcp::local_address(listener.get()));
  auto client = transport::tcp::connect_to(address, "", monotonic_now() + kPatience);
  if (!client.ok()) return client.status();
  GuardedFd server = GuardedFd::open(
      [&] { return accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); });
  if (!server.valid()) return Status(Code::kInternal, "nobody connected over loopback");
  HERRING_RETURN_IF_ERROR(transport::tcp::make_flow_socket(server.get()));
  return std::pair<Socket, Socket>(std::move(*client), std::move(server));
}

}  // namespace

Result<Cost> measure_cost(const std::shared_ptr<const transport::tcp::Tls>& tls, size_t bytes) {
  HERRING_ASSIGN_OR_RETURN(auto& made, connected_pair());
  auto& [near, far] = made;
  if (tls) {
    near.encrypt(*tls, false);
    far.encrypt(*tls, true);
    HERRING_RETURN_IF_ERROR(shake_hands(*near.tls(), *far.tls()));
  }
  const size_t frames = std::max<size_t>(bytes / kFrame, 1);
  End sender(frames), receiver(frames);
  EpollLoop sending, receiving;
  TcpFlow out(sending, std::move(near), sender, "receiver");
  const TcpFlow in(receiving, std::move(far), receiver, "sender");
  std::future<Status> done = receiver.done.get_future();
  sending.start("herring-cost");
  receiving.start("herring-cost");
  const auto cpu = [&] {
    return sending.ask(thread_cpu).value_or(0) + receiving.ask(thread_cpu).value_or(0);
  };
  const double cpu_before = cpu();
  const Nanos start = monotonic_now();
  sending.post([&] {
    wire::FrameHeader header;
    header.type = wire::FrameType::kData;
    header.segments = 1;
    header.payload = kFrame;
    const iovec piece = sender.memory();
    for (size_t i = 0; i < frames; ++i) out.lend(header, &piece, 1);
  });
  const bool ended =
      done.wait_for(std::chrono::nanoseconds(kPatience)) == std::future_status::ready;
  const double seconds = to_seconds(monotonic_now() - start), spent = cpu() - cpu_before;
  sending.join();
  receiving.join();
  if (!ended) return Status(Code::kTimeout, "loopback is too slow to measure");
  HERRING_RETURN_IF_ERROR(done.get());
  const double sent = static_cast<double>(frames * kFrame);
  return Cost{sent / seconds, spent / (sent / 1e9)};
}

}  // namespace herring::bindings
