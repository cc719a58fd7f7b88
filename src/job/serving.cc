#include "job/serving.h"

#include "job/options.h"
#include "transport/tcp/socket.h"

namespace herring::job {

Result<std::unique_ptr<Serving>> Serving::start(const control::Member::Options& member,
                                                 transport::Transport& transport) {
  std::string host = member.source;
  if (host.empty()) {
    HERRING_RETURN_IF_ERROR(control::Member::find_own_address(member).move_to(host));
  }
  auto started = server::Server::start({host, 0, member.credentials}, transport);
  if (!started.ok()) return started.status();
  return std::unique_ptr<Serving>(new Serving(std::move(*started)));
}

Status Serving::join(const control::Member::Options& member, uint32_t node,
                     uint32_t wanted) {
  control::ServerRegistration registration;
  registration.dedicated = node == kNoNode;
  registration.node = node;
  registration.wanted = wanted;
  registration.host = server_->address().host;
  registration.port = server_->address().port;
  HERRING_RETURN_IF_ERROR(control::Member::join(member, registration).move_to(member_));
  return {};
}

Status Serving::attach(size_t others) {
  const control::Cluster& cluster = member_->cluster();
  HERRING_ASSIGN_OR_RETURN(auto& shared, adopt(cluster.settings));
  const auto address = transport::parse_address(
      cluster.servers[member_->server_index()].address, "a server's address");
  const server::DataPlaneOptions plane =
      data_plane(shared, cluster, serving_host(address.ok() ? address->host : ""));
  HERRING_RETURN_IF_ERROR(
      transport::tcp::want_descriptors((size_t{cluster.size} + others) * plane.flows));
  server_->attach(cluster, member_->server_index(), plane);
  if (shared.get_bool("observe")) {
    reports_ = std::make_unique<ServerReports>(*server_);
    reporter_ = std::make_unique<Reporter>(*member_, *reports_);
  }
  return {};
}

}  // namespace herring::job
