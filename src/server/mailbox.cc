#include "server/mailbox.h"

#include <algorithm>

#include "wire/handover.h"

namespace herring::server {
namespace {

std::string name_of_array(const wire::Announce& a) {
  return concat(counted(a.arrays.front().elements(), "element"), " of ",
                name_of(a.arrays.front().dtype));
}

}  // namespace

Mailbox::Mailbox(const control::Cluster& cluster, const Whereabouts& whereabouts)
    : cluster_(cluster), whereabouts_(whereabouts), loads_(cluster.size) {}

std::optional<uint32_t> Mailbox::Post::other() const {
  return wire::other_of(message.what);
}

std::optional<uint64_t> Mailbox::Post::tag() const {
  const auto* send = std::get_if<wire::Send>(&message.what);
  return send != nullptr ? send->tag : std::get<wire::Receive>(message.what).tag;
}

// Returns whether the two posts, a send and a receive in the same box, can be paired.
bool Mailbox::Post::fits(const Post& other) const {
  const Post& send = sends() ? *this : other;
  const Post& receive = sends() ? other : *this;
  return receive.other().value_or(send.index) == send.index &&
         receive.tag().value_or(*send.tag()) == *send.tag();
}

std::string Mailbox::describe(const JobGroup& group, const Post& post) const {
  const auto other = post.other();
  const auto tag = post.tag();
  return concat(post.sends() ? "send to " : "receive from ",
                other ? concat("rank ", group.members.ranks()[*other]) : "any rank", " (",
                tag ? concat("tag ", *tag) : "any tag", ")", group.members.suffix());
}

// Says where the other rank is held up, if the post names one and it is.
std::string Mailbox::where_other(const JobGroup& group, const Post& post) const {
  const auto other = post.other();
  return other ? whereabouts_.describe({group.members.ranks()[*other]}) : std::string();
}

Status Mailbox::gone(const JobGroup& group, const Post& post) const {
  const auto is_gone = [&](uint32_t index) { return index == post.index || group.is_gone(index); };
  const auto other = post.other();
  uint32_t missing = other.value_or(0);
  if (!other) {
    for (uint32_t index = 0; index < group.members.size(); ++index) {
      if (!is_gone(index)) return {};
    }
    if (group.gone.empty()) return {};
    missing = group.gone.front().index;
  } else if (!group.is_gone(missing)) {
    return {};
  }
  const auto how = std::find_if(group.gone.begin(), group.gone.end(),
                                [missing](const auto& one) { return one.index == missing; });
  return {Code::kPeerLost,
          concat(describe(group, post), " cannot complete: ",
                 cluster_.describe_rank(group.members.ranks()[missing]), " ", how->how)};
}

void Mailbox::post(const std::shared_ptr<JobGroup>& group, uint32_t stream, Announcement call,
                   Nanos now, std::vector<Answer>& out) {
  Post post{std::move(call)};
  post.since = now;
  const uint32_t rank = group->members.ranks()[post.index];
  const auto peer = post.other();
  const auto refuse = [&](Status why) {
    out.push_back(error_answer(rank, post.message.id, why));
  };
  if (post.message.arrays.size() != 1 || post.message.listed ||
      (peer && (*peer >= group->members.size() || *peer == post.index))) {
    return refuse({Code::kInvalidArgument,
                   concat("rank ", rank, " cannot send to or receive from ",
                          peer ? concat("rank ", *peer) : "any rank", group->members.suffix())});
  }
  if (Status why = gone(*group, post); !why.ok()) return refuse(why);
  if (const Load& load = loads_.of(rank); !load.admits(post.text.size())) {
    return refuse({Code::kInvalidArgument,
                   concat(describe(*group, post), " exceeds the limit: ", load.calls,
                          " messages of ", cluster_.describe_rank(rank), " with ", load.bytes,
                          " bytes already wait")});
  }
  const auto place =
      boxes_.try_emplace({group->members.id(), post.sends() ? *peer : post.index}).first;
  Box& box = place->second;
  box.group = group;
  box.stream = stream;
  std::deque<Post>& others = post.sends() ? box.receives : box.sends;
  const auto fits = std::find_if(others.begin(), others.end(),
                                 [&post](const Post& other) { return post.fits(other); });
  if (fits == others.end()) {
    loads_.add(*group, post);
    (post.sends() ? box.sends : box.receives).push_back(std::move(post));
    return;
  }
  post.sends() ? pair(box, post, *fits, out) : pair(box, *fits, post, out);
  loads_.remove(*group, *fits);
  others.erase(fits);
  if (box.sends.empty() && box.receives.empty()) boxes_.erase(place);
}

// Says in an answer which call of the other rank it is about. An error has the rank in place of a
// ticket.
void Mailbox::tell_met(wire::FrameHeader& header, const Box& box, const Post& other) {
  header.flags = wire::kFlagMet;
  header.group = box.group->members.id();
  header.stream = box.stream;
  header.round = other.index;
  wire::set_answer_number(header, other.message.id);
}

void Mailbox::pair(const Box& box, const Post& send, const Post& receive,
                   std::vector<Answer>& out) {
  JobGroup& group = *box.group;
  const uint32_t from = group.members.ranks()[send.index];
  const uint32_t to = group.members.ranks()[receive.index];
  const wire::Array& sent = send.message.arrays.front();
  const wire::Array& received = receive.message.arrays.front();
  if (sent.dtype != received.dtype || sent.elements() != received.elements()) {
    const Status why(Code::kMismatch,
                     concat("ranks disagree", group.members.suffix(), ": ",
                            cluster_.describe_rank(from), " sends ", name_of_array(send.message),
                            " (tag ", *send.tag(), "), ",
                            cluster_.describe_rank(to), " receives ",
                            name_of_array(receive.message),
                            "; both need the same dtype and number of elements"));
    Answer one = error_answer(from, send.message.id, why);
    tell_met(one.header, box, receive);
    out.push_back(std::move(one));
    one = error_answer(to, receive.message.id, why);
    tell_met(one.header, box, send);
    out.push_back(std::move(one));
    return;
  }
  const bool rode_along = send.message.inline_payload;
  wire::FrameHeader header{.type = rode_along ? wire::FrameType::kReply : wire::FrameType::kGo};
  const uint64_t tag = *send.tag();
  tell_met(header, box, receive);
  if (!rode_along) header.round = group.next_ticket++;
  out.push_back({from, header,
                 encode(wire::Go{send.message.id, {receive.index, tag}}) +
                     (rode_along ? std::string() : receive.message.address)});
  wire::set_answer_number(header, send.message.id);
  out.push_back({to, header,
                 encode(wire::Go{receive.message.id, {send.index, tag}}) +
                     (rode_along ? std::string(send.message.payload) : send.message.address)});
}

void Mailbox::fail_where(const std::function<Status(const Box&, Post&)>& why,
                         std::vector<Answer>& out) {
  for (auto box = boxes_.begin(); box != boxes_.end();) {
    const JobGroup& group = *box->second.group;
    for (std::deque<Post>* posts : {&box->second.sends, &box->second.receives}) {
      for (auto post = posts->begin(); post != posts->end();) {
        const Status status = why(box->second, *post);
        if (status.ok()) {
          ++post;
          continue;
        }
        loads_.remove(group, *post);
        out.push_back(
            error_answer(group.members.ranks()[post->index], post->message.id, status));
        post = posts->erase(post);
      }
    }
    const bool empty = box->second.sends.empty() && box->second.receives.empty();
    box = empty ? boxes_.erase(box) : std::next(box);
  }
}

void Mailbox::overdue(Nanos now, std::vector<Answer>& out) {
  fail_where([&](const Box& box, Post& post) -> Status {
    const JobGroup& group = *box.group;
    const Nanos age = now - post.since;
    if (age > post.message.timeout_ms * kMillisecond) {
      return {Code::kTimeout,
              concat(describe(group, post), " waited ", in_seconds(age), "; no matching ",
                     post.sends() ? "receive was posted" : "send was posted",
                     where_other(group, post),
                     ": check tags and ranks, or give it more time (timeout=, HERRING_TIMEOUT)")};
    }
    if (!post.warned && age > post.message.warn_ms * kMillisecond) {
      post.warned = true;
      out.push_back(warning_answer(group.members.ranks()[post.index],
                                   concat(describe(group, post), " has waited ", in_seconds(age),
                                          where_other(group, post))));
    }
    return {};
  }, out);
}

void Mailbox::report(Nanos now, ServerView& view) const {
  std::vector<std::pair<const JobGroup*, const Post*>> waiting;
  for (const auto& [place, box] : boxes_) {
    for (const std::deque<Post>* posts : {&box.sends, &box.receives}) {
      for (const Post& post : *posts) {
        if (now - post.since <= ServerView::kLeastWait) break;  // later posts are younger
        waiting.emplace_back(box.group.get(), &post);
      }
    }
  }
  const size_t told = std::min(waiting.size(), ServerView::kMostMessages);
  std::partial_sort(waiting.begin(), waiting.begin() + static_cast<ptrdiff_t>(told), waiting.end(),
                    [](const auto& a, const auto& b) { return a.second->since < b.second->since; });
  for (size_t i = 0; i < told; ++i) {
    const auto& [group, post] = waiting[i];
    const std::vector<uint32_t>& ranks = group->members.ranks();
    std::vector<uint32_t> other;
    if (const auto index = post->other()) other.push_back(ranks[*index]);
    view.messages.push_back({describe(*group, *post), now - post->since, std::move(other),
                             ranks[post->index]});
  }
}

void Mailbox::fail_gone(std::vector<Answer>& out) {
  fail_where([this](const Box& box, Post& post) { return gone(*box.group, post); }, out);
}

}  // namespace herring::server
