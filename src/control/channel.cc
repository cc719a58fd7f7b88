#include "control/channel.h"

namespace herring::control {

using wire::FrameType;

Channel::Channel(transport::EventLoop& loop, transport::Connection& connection, uint32_t limit,
                 Owner& owner)
    : loop_(loop), owner_(owner), limit_(limit), heard_at_(loop.now()),
      acknowledged_at_(heard_at_),
      flow_(connection.open(loop, *this, transport::Traffic::kControl)) {}

void Channel::check_acknowledged(Nanos late, Nanos now) {
  const transport::PathInfo path = flow_->path_info();
  const Nanos acknowledged = path.unacknowledged == 0 ? now : now - path.acknowledged_ago;
  heard_at_ = std::min(heard_at_ + late, now);
  acknowledged_at_ = std::max(std::min(acknowledged_at_ + late, now), acknowledged);
}

void Channel::send(FrameType type, std::string payload, uint8_t flags) {
  wire::FrameHeader header{.type = type, .flags = flags};
  flow_->send_owned(header, std::move(payload));
}

void Channel::send(FrameType type, std::string own, std::shared_ptr<const std::string> common) {
  const Shared& kept = shared_.emplace_back(std::move(own), std::move(common));  // until the end
  const std::string& rest = *kept.second;
  wire::FrameHeader header{.type = type,
                           .payload = static_cast<uint32_t>(kept.first.size() + rest.size())};
  const iovec pieces[] = {{const_cast<char*>(kept.first.data()), kept.first.size()},
                          {const_cast<char*>(rest.data()), rest.size()}};
  flow_->send(header, pieces, 2, 0);
}

Status Channel::on_header(transport::Flow&, const wire::FrameHeader& header,
                          transport::Destinations& out) {
  heard_at_ = loop_.now();
  const bool control = header.type >= FrameType::kWarning && header.type <= FrameType::kAbort;
  if (!control && header.type < FrameType::kReport) {
    return breach("it sent a frame of type ", wire::name_of(header.type),
                  " on a control connection");
  }
  if (header.payload > limit_) {
    return breach("it sent a message of ", header.payload, " bytes, more than ", limit_);
  }
  payload_.resize(header.payload);
  if (header.payload > 0) out.add(payload_.data(), header.payload);
  return {};
}

void Channel::on_payload(transport::Flow&, const wire::FrameHeader&, size_t) {
  heard_at_ = loop_.now();
}

Status Channel::on_frame(transport::Flow&, const wire::FrameHeader& header) {
  const std::string payload = std::move(payload_);  // so that no large buffer stays behind
  payload_ = {};
  return owner_.on_message(*this, header.type, header.flags, payload);
}

void Channel::on_closed(transport::Flow&, const Status& why) { owner_.on_dropped(*this, why); }

}  // namespace herring::control
