#include "job/newcomers.h"

#include <pthread.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/fork_guard.h"
#include "base/signals.h"
#include "transport/tcp/connector.h"

namespace herring::job {
namespace {

constexpr Nanos kMargin = 250 * kMillisecond;

}  // namespace

Newcomers::Newcomers(control::Member::Options member, transport::tcp::TcpTransport& transport,
                     uint32_t rank, uint32_t incarnation, uint32_t flows, Connected connected)
    : member_(std::move(member)), transport_(transport), rank_(rank), incarnation_(incarnation),
      flows_(flows), connected_(std::move(connected)), generation_(fork_generation()) {}

Newcomers::~Newcomers() {
  for (auto& [number, attempt] : attempts_) {
    if (generation_ != fork_generation()) {
      static_cast<void>(attempt.release());
      continue;
    }
    attempt->given_up = true;
    attempt->thread.join();
  }
}

void Newcomers::come(const control::Replacement& news) {
  std::erase_if(attempts_, [](const auto& one) {
    if (one.second->ended) one.second->thread.join();
    return one.second->ended.load();
  });
  auto attempt = std::make_unique<Attempt>();
  const WithoutSignals without_signals;
  try {
    attempt->thread = std::thread([this, news, self = attempt.get()] {
      pthread_setname_np(pthread_self(), "herring-connect");
      // What fails for lack of memory is noticed by the rendezvous, which does not wait for ever.
      static_cast<void>(without_exceptions([&] {
        auto made = connect(news, *self);
        if (!self->given_up) connected_(news, std::move(made));
        return Status();
      }));
      self->ended = true;
    });
  } catch (const std::system_error& error) {
    const std::string why = concat("no thread to connect: ", error.what());
    return connected_(news, Status(Code::kInternal, why));
  }
  attempts_.emplace(news.number, std::move(attempt));
}

void Newcomers::give_up(const control::Replacement& news) {
  const auto found = attempts_.find(news.number);
  if (found != attempts_.end()) found->second->given_up = true;
}

Result<Newcomers::Connections> Newcomers::connect(const control::Replacement& news,
                                                  const Attempt& attempt) const {
  auto address = transport::parse_address(news.address, "a server's address");
  if (!address.ok()) return address.status();
  std::vector<transport::tcp::Wanted> wanted;
  for (uint32_t flow = 0; flow < flows_; ++flow) {
    wanted.push_back({*address, {wire::Role::kWorker, rank_, flow, incarnation_}});
  }
  // The rendezvous waits a moment longer, and hears why.
  const Nanos patience = member_.connect_timeout - std::min(member_.connect_timeout / 10, kMargin);
  auto connected = transport::tcp::connect_all(
      wanted, member_.source, member_.credentials, monotonic_now() + patience, 0,
      [&attempt] {
        return attempt.given_up ? Status(Code::kShutdown, "nobody waits any more") : Status();
      });
  if (!connected.ok()) return connected.status();
  Connections made;
  for (size_t i = 0; i < connected->size(); ++i) {
    made.push_back(transport_.make_connection(std::move((*connected)[i]), news.address,
                                              wanted[i].hello));
  }
  return made;
}

}  // namespace herring::job
