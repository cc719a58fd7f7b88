#include "collective/mesh.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <utility>

namespace herring::collective {
namespace {

using transport::tcp::Address;

// For one hello. The other side listens already, so only a busy machine needs long.
constexpr Nanos kPatience = 60 * kSecond;
// What the system takes beyond what is on its way.
constexpr int kMostUnsent = 128 << 10;

}  // namespace

Mesh::Mesh(transport::EventLoop& loop, MeshOptions options, transport::FlowHandler& handler,
           OnFlow on_flow, OnFailed on_failed)
    : loop_(loop),
      options_(std::move(options)),
      handler_(handler),
      on_flow_(std::move(on_flow)),
      on_failed_(std::move(on_failed)) {}

Result<std::string> Mesh::listen() {
  auto listener = transport::tcp::listen_on({options_.host, 0}, 1024);
  if (!listener.ok()) return listener.status();
  acceptor_ = std::make_unique<transport::tcp::Acceptor>(
      loop_, std::move(*listener), options_.credentials,
      [this](const wire::Hello& hello) {
        const bool expected = hello.role == wire::Role::kWorker && hello.rank < options_.rank &&
                              hello.flow == 0 && hello.epoch == options_.epoch &&
                              flows_.count(hello.rank) == 0;
        return expected ? wire::Verdict::kAccepted : wire::Verdict::kUnexpected;
      },
      [this](GuardedFd fd, const wire::Hello& hello, const Address& peer) {
        adopt(hello.rank, std::move(fd), peer.to_string());
      });
  return acceptor_->address().to_string();
}

Status Mesh::meet(const std::vector<std::string>& addresses) {
  std::vector<Address> parsed;
  for (const std::string& text : addresses) {
    auto address = transport::tcp::parse_address(text, "a worker's address");
    if (!address.ok()) return address.status();
    parsed.push_back(std::move(*address));
  }
  addresses_ = std::move(parsed);
  return {};
}

void Mesh::want(uint32_t rank) {
  // The lower rank connects; it needs the flow for the same schedule.
  if (rank <= options_.rank || flows_.count(rank) != 0 || connecting_.count(rank) != 0) return;
  const wire::Hello hello{wire::Role::kWorker, options_.rank, 0, options_.epoch};
  connecting_[rank] = std::make_unique<transport::tcp::Connector>(
      loop_, addresses_[rank], options_.source, hello, options_.credentials, kPatience,
      [this, rank](Result<GuardedFd> fd) {
        const auto connector = std::move(connecting_[rank]);
        connecting_.erase(rank);
        if (!fd.ok()) return on_failed_(rank, fd.status());
        adopt(rank, std::move(*fd), addresses_[rank].to_string());
      });
}

void Mesh::adopt(uint32_t rank, GuardedFd fd, const std::string& peer) {
  // What waits in the socket of one flow would leave together with what goes to others later.
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kMostUnsent, sizeof(kMostUnsent));
  // A schedule's flow rests for whole steps, and shares the link with its neighbours where one step
  // meets the next: with BBR, a butterfly's steps were measured not to fill the link.
  transport::tcp::avoid_bbr(fd.get());
  auto flow =
      std::make_unique<transport::tcp::TcpFlow>(loop_, std::move(fd), handler_, peer);
  flow->user_index = rank;
  flows_[rank] = std::move(flow);
  on_flow_(rank);
}

transport::Flow* Mesh::flow(uint32_t rank) {
  const auto found = flows_.find(rank);
  return found == flows_.end() || found->second->closed() ? nullptr : found->second.get();
}

void Mesh::clear() {
  // Closed, not destroyed: this may run inside a callback of one of them.
  if (acceptor_) acceptor_->close();
  connecting_.clear();
  for (auto& [rank, flow] : flows_) flow->close({});
}

transport::FlowCounters Mesh::counters() const {
  transport::FlowCounters sum;
  for (const auto& [rank, flow] : flows_) {
    sum.bytes_sent += flow->counters().bytes_sent;
    sum.bytes_received += flow->counters().bytes_received;
  }
  return sum;
}

}  // namespace herring::collective
