#include "control/status_service.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "transport/tcp/socket.h"
#include "wire/hello.h"

namespace herring::control {
namespace {

using transport::kForReading;
using transport::kForWriting;

constexpr size_t kMostRequest = 8192;
// How long a client may take, and how long one that says nothing is waited for.
constexpr Nanos kPatience = 5 * kSecond, kSilence = kSecond;
// The least time of a client that has not shown that it may ask, if others want its place; and the
// same if the last clients from its host have all failed to show it.
constexpr Nanos kFair = 100 * kMillisecond, kHurried = 10 * kMillisecond;
// How many clients the system keeps waiting for a place.
constexpr int kBacklog = 1024;

Status system_error(const std::string& what) {
  return {Code::kConfiguration, concat(what, ": ", std::strerror(errno))};
}

Result<sockaddr_un> unix_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return Status(Code::kConfiguration, concat("the path ", path, " is too long for a socket"));
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

GuardedFd unix_socket() {
  return GuardedFd::open(
      [] { return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
}

// Removes sockets on which nobody listens any more, because their process was killed.
void remove_stale(const std::string& folder) {
  DIR* const entries = opendir(folder.c_str());
  if (entries == nullptr) return;
  while (const dirent* entry = readdir(entries)) {
    const std::string path = folder + "/" + entry->d_name;
    struct stat about {};
    if (!path.ends_with(".sock") || lstat(path.c_str(), &about) != 0 || !S_ISSOCK(about.st_mode)) {
      continue;
    }
    auto address = unix_address(path);
    if (!address.ok()) continue;
    const GuardedFd probe = unix_socket();
    if (probe.valid() &&
        ::connect(probe.get(), reinterpret_cast<sockaddr*>(&*address), sizeof *address) != 0 &&
        errno == ECONNREFUSED) {
      unlink(path.c_str());
    }
  }
  closedir(entries);
}

bool same(std::string_view a, std::string_view b) {  // in a time that does not depend on contents
  unsigned different = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    different |= static_cast<unsigned>(a[i] ^ b[i]);
  }
  return different == 0;
}

// The first words of a line.
std::pair<std::string, std::string> two_words(const std::string& line) {
  const auto word = [&line](size_t from) {
    const size_t begin = line.find_first_not_of(" \t\r\n", from);
    if (begin == std::string::npos) return std::pair<size_t, std::string>{line.size(), ""};
    const size_t end = std::min(line.find_first_of(" \t\r\n", begin), line.size());
    return std::pair<size_t, std::string>{end, line.substr(begin, end - begin)};
  };
  const auto [end, first] = word(0);
  return {first, word(end).second};
}

bool starts_with_ignoring_case(std::string_view text, std::string_view lower) {
  return text.size() >= lower.size() &&
         std::equal(lower.begin(), lower.end(), text.begin(), [](char a, char b) {
           return a == std::tolower(static_cast<unsigned char>(b));
         });
}

// Returns the value of "Authorization: Bearer VALUE" in the header of a request.
std::string bearer(std::string_view request) {
  for (size_t end; (end = request.find('\n')) != std::string_view::npos;) {
    request.remove_prefix(end + 1);
    std::string_view line = request.substr(0, request.find_first_of("\r\n"));
    for (const std::string_view part : {"authorization:", "bearer"}) {
      if (!starts_with_ignoring_case(line, part)) {
        line = {};
        break;
      }
      line.remove_prefix(part.size());
      line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    }
    if (!line.empty()) return std::string(line.substr(0, line.find_first_of(" \t")));
  }
  return {};
}

}  // namespace

Status make_own_folder(const std::string& folder) {
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return system_error(concat("cannot make the folder ", folder));
  }
  struct stat found {};
  if (lstat(folder.c_str(), &found) != 0) {
    return system_error(concat("cannot look at the folder ", folder));
  }
  if (!S_ISDIR(found.st_mode) || found.st_uid != getuid() || (found.st_mode & 077) != 0) {
    return {Code::kConfiguration,
            concat(folder, " is not a folder that belongs to this user alone (mode 0700)")};
  }
  return {};
}

Result<std::string> runtime_folder() {
  const char* const given = std::getenv("XDG_RUNTIME_DIR");
  // The variable may be left over from another session, whose folder is gone.
  const bool usable = given != nullptr && *given == '/' && access(given, W_OK | X_OK) == 0;
  const std::string folder = usable ? concat(given, "/herring") : concat("/tmp/herring-", getuid());
  HERRING_RETURN_IF_ERROR(make_own_folder(folder));
  return folder;
}

// One connection: reads a question, answers it, and waits until the client has closed.
class StatusService::Client : private transport::DescriptorHandler {
 public:
  // `host`: where the client runs; empty for a local socket.
  Client(StatusService& service, GuardedFd fd, std::string host)
      : service_(service), loop_(service.loop_), fd_(std::move(fd)), host_(std::move(host)) {
    loop_.add(fd_.get(), kForReading, this);
    timer_ = loop_.call_after(kSilence, [this] { be_patient(); });
  }
  ~Client() override { end(); }

  // Returns until when the client keeps its place although others want one.
  Nanos kept_until() const {
    if (serves()) return since_ + kSilence + kPatience;
    return since_ + (service_.suspects_.suspect(host_, since_) ? kHurried : kFair);
  }
  // Returns whether an answer is on its way to a client that may have it.
  bool serves() const { return allowed_ && sent_ < out_.size(); }

  // Reads what may have come while the thread was busy.
  void hear() { on_ready(kForReading); }

  // No callback follows. The service may then be destroyed before the client.
  void end() {
    if (std::exchange(ended_, true)) return;
    allowed_ ? service_.suspects_.proved(host_) : service_.suspects_.failed(host_, monotonic_now());
    loop_.cancel(timer_);
    loop_.remove(fd_.get());
  }

 private:
  void on_ready(uint32_t readiness) override {
    attempt([&] {
      if ((readiness & kForReading) && !read()) return false;
      return !(readiness & kForWriting) || write();
    });
  }

  // Ends the connection if `call` returns false or lacks memory. The job goes on in any case.
  template <typename Call>
  void attempt(const Call& call) {
    bool goes_on = false;
    static_cast<void>(without_exceptions([&] {
      goes_on = call();
      return Status();
    }));
    if (!goes_on) service_.forget(fd_.get());
  }

  // A client that only connects wants to know what is worth telling.
  void be_patient() {
    attempt([this] {
      timer_ = loop_.call_after(kPatience, [this] { service_.forget(fd_.get()); });
      if (answered_ || !request_.empty() || !question_.empty()) return true;
      answer("status\n");
      return write();
    });
  }

  bool read() {
    char bytes[4096];
    const ssize_t got = recv(fd_.get(), bytes, sizeof bytes, 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) hung_up_ = true;
    if (answered_) {
      // The client closes when it has read the answer, or it has said before that it asks no more.
      if (hung_up_ && sent_ < out_.size()) loop_.modify(fd_.get(), kForWriting);
      return !hung_up_ || sent_ < out_.size();
    }
    request_.append(bytes, static_cast<size_t>(got));
    if (request_.size() > kMostRequest) return false;
    const bool http = request_.starts_with("GET ") || request_.starts_with("HEAD ");
    const auto has = [this](const char* text) {
      return request_.find(text) != std::string::npos;
    };
    if (!hung_up_ && !(http ? has("\r\n\r\n") || has("\n\n") : has("\n"))) return true;
    answer(request_.empty() ? "status\n" : request_);
    return write();
  }

  void answer(const std::string& request) {
    const auto [word, rest] = two_words(request);
    const bool http = word == "GET" || word == "HEAD";
    std::string what = http ? rest.substr(0, rest.find('?')) : word;
    only_head_ = word == "HEAD";
    if (!service_.secret_.empty()) {
      if (http) {
        if (!same(bearer(request), wire::status_token(service_.secret_))) {
          answered_ = true;
          return reply(true, "401 Unauthorized", "text/plain",
                       "this address needs the job's token (herring status --token)\n",
                       "WWW-Authenticate: Bearer\r\n");
        }
      } else if (question_.empty()) {
        question_ = what.empty() ? "status" : what;
        nonce_ = wire::random_nonce();
        request_.clear();
        return reply(false, "", "",
                     concat("prove ", wire::in_hexadecimal(nonce_.data(), nonce_.size()), "\n"));
      } else if (word != "proof" ||
                 !same(rest, wire::status_proof(service_.secret_, question_, nonce_))) {
        answered_ = true;
        return reply(false, "", "", "error: this address answers who knows the job's secret\n");
      } else {
        what = question_;
      }
    }
    answered_ = allowed_ = true;
    static const std::map<std::string, Question> kQuestions = {
        {"", Question::kText},         {"status", Question::kText}, {"/", Question::kText},
        {"/status", Question::kText},  {"all", Question::kAll},     {"/all", Question::kAll},
        {"json", Question::kJson},     {"/json", Question::kJson},
        {"/status.json", Question::kJson},
        {"metrics", Question::kMetrics}, {"/metrics", Question::kMetrics},
        {"record", Question::kRecord}};
    // At an address the service only tells.
    const auto found = kQuestions.find(what);
    if (found == kQuestions.end() ||
        (found->second == Question::kRecord && service_.path_.empty())) {
      return reply(http, "404 Not Found", "text/plain",
                   concat(http ? "" : "error: ",
                          "this address answers status, all, json and metrics\n"));
    }
    const char* const type = found->second == Question::kJson ? "application/json"
                             : found->second == Question::kMetrics
                                 ? "text/plain; version=0.0.4"
                                 : "text/plain; charset=utf-8";
    // The job goes on if there is no memory for an answer.
    std::string text;
    const Status status = without_exceptions([&] {
      text = service_.answer_(found->second);
      return Status();
    });
    if (!status.ok()) {
      return reply(http, "500 Internal Server Error", "text/plain",
                   concat(http ? "" : "error: ", status.message(), "\n"));
    }
    reply(http, "200 OK", type, text);
  }

  void reply(bool http, const char* status, const char* type, const std::string& body,
             const char* field = "") {
    out_.clear();
    sent_ = 0;
    if (http) {
      out_ = concat("HTTP/1.1 ", status, "\r\nContent-Type: ", type, "\r\nContent-Length: ",
                    body.size(), "\r\n", field, "Connection: close\r\n\r\n");
    }
    if (!only_head_) out_ += body;
  }

  bool write() {
    while (sent_ < out_.size()) {
      const ssize_t sent = send(fd_.get(), out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0) {
        if (errno != EAGAIN) return false;
        loop_.modify(fd_.get(), hung_up_ ? kForWriting : kForReading | kForWriting);
        return true;
      }
      sent_ += static_cast<size_t>(sent);
    }
    loop_.modify(fd_.get(), kForReading);
    if (!answered_) return !hung_up_;  // the client must still prove something
    if (hung_up_) return false;
    // Closing now could drop what the client has not read yet.
    shutdown(fd_.get(), SHUT_WR);
    return true;
  }

  StatusService& service_;
  transport::DescriptorLoop& loop_;
  const GuardedFd fd_;
  const std::string host_;
  transport::EventLoop::TimerId timer_ = 0;
  std::string request_, question_, out_;
  wire::Nonce nonce_{};
  size_t sent_ = 0;
  const Nanos since_ = monotonic_now();
  bool allowed_ = false;  // the client may have an answer
  bool answered_ = false, ended_ = false;
  bool hung_up_ = false;    // the client will send nothing more
  bool only_head_ = false;  // the client wants no body
};

Result<std::unique_ptr<StatusService>> StatusService::listen_locally(
    transport::DescriptorLoop& loop, const std::string& job, Answer answer) {
  HERRING_ASSIGN_OR_RETURN(auto& folder, runtime_folder());
  remove_stale(folder);
  const std::string path = concat(folder, "/", job, "-", getpid(), ".sock");
  // Until it listens, a socket looks like a stale one, so it gets its name only then.
  const std::string early = path + ".new";
  HERRING_ASSIGN_OR_RETURN(auto& address, unix_address(early));
  GuardedFd listener = unix_socket();
  unlink(early.c_str());
  if (!listener.valid() ||
      ::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener.get(), kBacklog) != 0 || rename(early.c_str(), path.c_str()) != 0) {
    const Status why = system_error(concat("cannot listen on ", path));
    unlink(early.c_str());
    return why;
  }
  return std::unique_ptr<StatusService>(new StatusService(loop, std::move(listener), path, path,
                                                          "", std::move(answer)));
}

Result<std::unique_ptr<StatusService>> StatusService::listen_at(
    transport::DescriptorLoop& loop, const transport::Address& address, std::string secret,
    Answer answer) {
  HERRING_ASSIGN_OR_RETURN(auto& listener, transport::tcp::listen_on(address, kBacklog));
  HERRING_ASSIGN_OR_RETURN(auto& local, transport::tcp::local_address(listener.get()));
  const bool loopback = local.host.starts_with("127.") || local.host == "::1";
  return std::unique_ptr<StatusService>(
      new StatusService(loop, std::move(listener), local.to_string(), "",
                        loopback ? std::string() : std::move(secret), std::move(answer)));
}

StatusService::StatusService(transport::DescriptorLoop& loop, GuardedFd listener,
                             std::string place, std::string path, std::string secret, Answer answer)
    : loop_(loop), listener_(std::move(listener)), place_(std::move(place)),
      path_(std::move(path)), secret_(std::move(secret)), answer_(std::move(answer)) {
  loop_.add(listener_.get(), kForReading, this);
}

StatusService::~StatusService() {
  clients_.clear();
  loop_.cancel(pause_);
  if (pause_ == 0) loop_.remove(listener_.get());
  if (!path_.empty()) unlink(path_.c_str());
}

void StatusService::on_ready(uint32_t) {
  while (make_room()) {
    GuardedFd fd = GuardedFd::open([this] {
      return accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    });
    if (!fd.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      // The process has no descriptor left.
      if (errno != EAGAIN) pause(kSilence);
      return;
    }
    // The job goes on if the system cannot watch one more connection.
    static_cast<void>(without_exceptions([&] {
      std::string host;
      if (path_.empty()) {
        const auto peer = transport::tcp::peer_address(fd.get());
        if (!peer.ok()) return peer.status();  // it is gone
        host = peer->host;
      }
      const int number = fd.get();
      clients_.emplace(number, std::make_unique<Client>(*this, std::move(fd), std::move(host)));
      return Status();
    }));
  }
}

// Strangers who say nothing, or prove nothing, keep nobody out: the oldest one gives up its place.
// Who comes while all have time left waits in the system's queue.
bool StatusService::make_room() {
  while (clients_.size() >= kMostClients) {
    const auto soonest = std::min_element(
        clients_.begin(), clients_.end(), [](const auto& one, const auto& other) {
          return one.second->kept_until() < other.second->kept_until();
        });
    const auto [fd, client] = std::pair(soonest->first, soonest->second.get());
    const Nanos until = client->kept_until(), left = until - monotonic_now();
    if (left > 0) {
      pause(left);
      return false;
    }
    client->hear();
    if (clients_.count(fd) != 0 && client->kept_until() <= until) forget(fd);
  }
  return true;
}

// Stops watching the listener: a client that waits there would wake the loop again and again.
void StatusService::pause(Nanos time) {
  loop_.remove(listener_.get());
  pause_ = loop_.call_after(time, [this] { resume(); });
}

void StatusService::resume() {
  if (pause_ == 0) return;
  loop_.cancel(std::exchange(pause_, 0));
  loop_.add(listener_.get(), kForReading, this);
}

void StatusService::forget(int fd) {
  // The client may be the caller, so it is destroyed after it has returned.
  const auto found = clients_.extract(fd);
  if (found.empty()) return;
  found.mapped()->end();
  loop_.post([gone = std::shared_ptr<Client>(std::move(found.mapped()))] {});
  if (clients_.size() + 1 == kMostClients) resume();
}

}  // namespace herring::control
