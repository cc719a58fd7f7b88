#include "collective/mesh.h"

#include <utility>

#include "transport/delivery.h"

namespace herring::collective {
namespace {

using transport::Address;
using transport::Connection;

// Limit for one hello. The other side already listens, so only a busy machine takes long.
constexpr Nanos kPatience = 60 * kSecond;

}  // namespace

Mesh::Mesh(transport::Transport& transport, transport::EventLoop& loop, MeshOptions options,
           transport::FlowHandler& handler, OnFlow on_flow, OnFailed on_failed,
           OnStarved on_starved)
    : transport_(transport),
      loop_(loop),
      options_(std::move(options)),
      handler_(handler),
      on_flow_(std::move(on_flow)),
      on_failed_(std::move(on_failed)),
      on_starved_(std::move(on_starved)) {}

Result<std::string> Mesh::listen() {
  auto listener = transport_.listen(
      loop_, {options_.host, 0}, options_.credentials,
      [this](const wire::Hello& hello) {
        if (hello.incarnation != options_.incarnation) return wire::Verdict::kOtherStart;
        const bool expected = hello.role == wire::Role::kWorker && hello.rank < options_.rank &&
                              hello.flow == 0 && flows_.count(hello.rank) == 0;
        return expected ? wire::Verdict::kAccepted : wire::Verdict::kUnexpected;
      },
      [this](std::unique_ptr<Connection> connection, const wire::Hello& hello, const Address&) {
        adopt(hello.rank, *connection);
      });
  if (!listener.ok()) return listener.status();
  listener_ = std::move(*listener);
  listener_->on_starved(on_starved_);
  return listener_->address().to_string();
}

Status Mesh::meet(const std::vector<uint32_t>& ranks, const std::vector<std::string>& addresses) {
  for (size_t i = 0; i < ranks.size(); ++i) {
    auto address = transport::parse_address(addresses[i], "a worker's address");
    if (!address.ok()) return address.status();
    addresses_.insert_or_assign(ranks[i], std::move(*address));
  }
  return {};
}

void Mesh::want(uint32_t rank) {
  // The lower rank connects. It needs the flow for the same schedule.
  if (rank <= options_.rank || flows_.count(rank) != 0 || connecting_.count(rank) != 0) return;
  const wire::Hello hello{wire::Role::kWorker, options_.rank, 0, options_.incarnation};
  connecting_[rank] = transport_.connect(
      loop_, addresses_.at(rank), options_.source, hello, options_.credentials, kPatience,
      [this, rank](Result<std::unique_ptr<Connection>> connection) {
        const auto connecting = std::move(connecting_[rank]);
        connecting_.erase(rank);
        if (!connection.ok()) return on_failed_(rank, connection.status());
        adopt(rank, **connection);
      });
}

void Mesh::adopt(uint32_t rank, Connection& connection) {
  auto flow = connection.open(loop_, handler_, transport::Traffic::kSchedule);
  flow->user_index = rank;
  flows_[rank] = std::move(flow);
  on_flow_(rank);
}

transport::Flow* Mesh::flow(uint32_t rank) {
  const auto found = flows_.find(rank);
  return found == flows_.end() || found->second->closed() ? nullptr : found->second.get();
}

void Mesh::close(uint32_t rank) {
  connecting_.erase(rank);
  if (const auto found = flows_.find(rank); found != flows_.end()) found->second->close({});
}

void Mesh::clear() {
  // Flows are closed, not destroyed, because this may run inside a callback of one of them.
  if (listener_) listener_->close();
  connecting_.clear();
  for (auto& [rank, flow] : flows_) flow->close({});
}

void Mesh::finish(const std::function<bool(uint32_t rank)>& writes_queued) {
  if (listener_) listener_->close();
  connecting_.clear();
  for (auto& [rank, flow] : flows_) flow->finish(writes_queued(rank));
}

size_t Mesh::undelivered() const {
  size_t left = 0;
  for (const auto& [rank, flow] : flows_) left += transport::undelivered(*flow);
  return left;
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
