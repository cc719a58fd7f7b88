// Tests the service that answers `herring status`, with raw clients: sound ones, rude ones, and
// ones that lack the job's secret.
#include "control/status_service.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <new>
#include <set>
#include <thread>

#include "job.h"
#include "tests/unit/text.h"
#include "transport/epoll_loop.h"
#include "wire/hello.h"

namespace herring::control {
namespace {

using Question = StatusService::Question;

constexpr int kMostMs = 600'000;
const std::string kSecret = "a test's secret";

// A folder of the test's own, which $XDG_RUNTIME_DIR names.
class Folder {
 public:
  Folder() {
    char made[] = "/tmp/hs-XXXXXX";
    EXPECT_NE(mkdtemp(made), nullptr);
    path_ = made;
    setenv("XDG_RUNTIME_DIR", made, 1);
  }
  ~Folder() {
    unsetenv("XDG_RUNTIME_DIR");
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  std::vector<std::string> sockets() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(*this / "herring")) {
      found.push_back(entry.path().filename());
    }
    return found;
  }

 private:
  std::string path_;
};

class Client {
 public:
  explicit Client(const std::string& path) {
    fd_ = UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    connected_ = connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  explicit Client(const transport::Address& address) {
    auto fd = transport::tcp::connect_to(address, "", monotonic_now() + testing::kPatience);
    EXPECT_TRUE(fd.ok()) << fd.status().to_string();
    connected_ = fd.ok();
    if (!fd.ok()) return;
    fd_ = fd->release();
    fcntl(fd_.get(), F_SETFL, fcntl(fd_.get(), F_GETFL) & ~O_NONBLOCK);
  }
  bool connected() const { return connected_; }
  int fd() const { return fd_.get(); }
  Client& say(const std::string& text) {
    EXPECT_EQ(send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
    return *this;
  }
  Client& hang_up() {
    shutdown(fd_.get(), SHUT_WR);
    return *this;
  }
  // Reads until the service ends the connection, or until `most` bytes are there.
  std::string hear(size_t most = SIZE_MAX) {
    std::string text;
    while (text.size() < most) {
      pollfd waiting{fd_.get(), POLLIN, 0};
      if (poll(&waiting, 1, kMostMs) != 1) return text + "(no end)";
      char bytes[65536];
      const ssize_t got = recv(fd_.get(), bytes, std::min(sizeof bytes, most - text.size()), 0);
      if (got <= 0) break;
      text.append(bytes, static_cast<size_t>(got));
    }
    return text;
  }

 private:
  UniqueFd fd_;
  bool connected_ = false;
};

// A service on a loop with a thread of its own. It says which question it answers.
class Service {
 public:
  explicit Service(const std::string& job = "resnet") {
    start([&] { return StatusService::listen_locally(loop_, job, answer()); });
  }
  Service(const transport::Address& address, const std::string& secret) {
    start([&] { return StatusService::listen_at(loop_, address, secret, answer()); });
  }
  ~Service() {
    end();
    loop_.join();
  }
  void end() {
    loop_.ask([this] {
      service_.reset();
      return true;
    });
  }
  bool ok() const { return service_ != nullptr; }
  const std::string& why() const { return why_; }
  std::string place() const { return service_->place(); }
  transport::Address address() const {
    return *transport::parse_address(service_->place(), "the place");
  }
  std::string ask(const std::string& request) {
    return Client(place()).say(request).hear();
  }
  transport::EpollLoop& loop() { return loop_; }

  std::string body = "all is well\n";
  bool exhausted = false;  // there is no memory for an answer
  std::atomic<int> answered{0};

 private:
  StatusService::Answer answer() {
    return [this](Question question) {
      ++answered;
      if (exhausted) throw std::bad_alloc();
      static const char* const kNames[] = {"text ", "all ", "json ", "metrics ", "record "};
      return kNames[static_cast<int>(question)] + body;
    };
  }
  template <typename Listen>
  void start(const Listen& listen) {
    auto service = listen();
    if (service.ok()) {
      service_ = std::move(*service);
    } else {
      why_ = service.status().message();
    }
    loop_.on_exhausted([](const Status& why) { ADD_FAILURE() << why.to_string(); });
    loop_.start("test");
  }

  transport::EpollLoop loop_;
  std::unique_ptr<StatusService> service_;
  std::string why_;
};

TEST(StatusService, AnswersEachQuestionAndEndsTheConnection) {
  Folder folder;
  Service service;
  ASSERT_TRUE(service.ok()) << service.why();
  EXPECT_EQ(service.place(), folder / concat("herring/resnet-", getpid(), ".sock"));
  for (const auto& [request, begin] : {std::pair{"status\n", "text "},
                                       {"\n", "text "},
                                       {"  all \r\n", "all "},
                                       {"json\n", "json "},
                                       {"metrics and more\n", "metrics "},
                                       {"record\n", "record "}}) {
    EXPECT_EQ(service.ask(request), begin + service.body) << request;
  }
  for (const char* const request : {"proof 123\n", "JSON\n", "POST /status HTTP/1.1\r\n\r\n"}) {
    EXPECT_TRUE(service.ask(request).starts_with("error: this address answers status"));
  }
}

TEST(StatusService, AnswersHttp) {
  Folder folder;
  Service service;
  const std::string text = "text " + service.body;
  EXPECT_EQ(service.ask("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
            concat("HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\n"
                   "Content-Length: ", text.size(), "\r\nConnection: close\r\n\r\n", text));
  const std::string head = service.ask("HEAD /metrics HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(contains(head, "text/plain; version=0.0.4\r\n")) << head;
  EXPECT_TRUE(contains(head, concat("Content-Length: ", 8 + service.body.size(), "\r\n"))) << head;
  EXPECT_TRUE(head.ends_with("\r\n\r\n")) << head;
  EXPECT_TRUE(contains(service.ask("GET /status.json HTTP/1.1\r\n\r\n"), "application/json"));
  EXPECT_TRUE(service.ask("GET /metrics?a=b HTTP/1.0\n\n").ends_with("metrics " + service.body));
  const std::string none = service.ask("GET /etc/passwd HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(none.starts_with("HTTP/1.1 404 Not Found\r\n")) << none;
  EXPECT_TRUE(none.ends_with("json and metrics\n")) << none;
  EXPECT_TRUE(service.ask("HEAD /none HTTP/1.1\r\n\r\n").ends_with("\r\n\r\n"));
  EXPECT_EQ(service.answered, 4);
}

TEST(StatusService, ARequestMayComeInPieces) {
  Folder folder;
  Service service;
  Client client(service.place());
  for (const char* const piece : {"GET /js", "on HTTP/1.1\r\nA: b\r", "\n", "\r\n"}) {
    client.say(piece);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_TRUE(client.hear().ends_with("json " + service.body));
}

TEST(StatusService, AClientThatHangsUpGetsItsWholeAnswer) {
  Folder folder;
  Service service;
  service.body = std::string(20'000'000, 'x') + "\n";
  // As `echo json | nc -N -U SOCKET` does.
  EXPECT_EQ(Client(service.place()).say("json\n").hang_up().hear(), "json " + service.body);
  EXPECT_EQ(Client(service.place()).say("json").hang_up().hear(), "json " + service.body);
  EXPECT_EQ(Client(service.place()).hang_up().hear(), "text " + service.body);
  EXPECT_EQ(service.ask("all\n"), "all " + service.body);
}

TEST(StatusService, AClientThatSaysNothingIsToldSoon) {
  Folder folder;
  Service service;
  // A client that has not asked in time is dropped without a word.
  EXPECT_EQ(Client(service.place()).hear(), "text " + service.body);
}

TEST(StatusService, SlowAndLargeRequestsAreDropped) {
  Folder folder;
  Service service;
  EXPECT_EQ(Client(service.place()).say("GET /" + std::string(9000, 'x')).hear(), "");
  Client slow(service.place());
  slow.say("js");
  EXPECT_EQ(slow.hear(), "");
  EXPECT_EQ(service.answered, 0);
}

TEST(StatusService, AClientThatNeverReadsIsDroppedAndTroublesNobody) {
  Folder folder;
  Service service;
  service.body = std::string(20'000'000, 'x');
  Client deaf(service.place());
  deaf.say("json\n");
  EXPECT_EQ(service.ask("all\n").size(), service.body.size() + 4);
  const uint64_t before = *service.loop().ask([&] { return service.loop().wakeups(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(*service.loop().ask([&] { return service.loop().wakeups(); }) - before, 20u);
  pollfd dropped{deaf.fd(), POLLRDHUP, 0};
  ASSERT_EQ(poll(&dropped, 1, 60'000), 1);
  EXPECT_LT(deaf.hear().size(), service.body.size());
}

TEST(StatusService, RudeClientsDoNotSpinTheLoop) {
  Folder folder;
  Service service;
  service.body = std::string(5'000'000, 'x');
  Client half(service.place());
  half.say("json\n").hang_up();  // and does not read for a while
  Client open(service.place());
  open.say("all\n");
  EXPECT_EQ(open.hear().size(), service.body.size() + 4);  // and stays
  const uint64_t before = *service.loop().ask([&] { return service.loop().wakeups(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(*service.loop().ask([&] { return service.loop().wakeups(); }) - before, 20u);
  EXPECT_EQ(half.hear().size(), service.body.size() + 5);
  for (int i = 0; i < 50; ++i) Client(service.place()).say("json\n");  // and is gone
  EXPECT_EQ(service.ask("all\n").size(), service.body.size() + 4);
}

TEST(StatusService, ClientsThatAskNothingKeepNobodyOut) {
  Folder folder;
  Service service;
  // They would be dropped only after 6 s. A busy machine may take as long for all this, but hardly
  // each time.
  bool soon = false;
  for (int attempt = 0; attempt < 5 && !soon; ++attempt) {
    const Nanos start = monotonic_now();
    std::vector<Client> many;
    for (int i = 0; i < 150; ++i) {
      many.emplace_back(service.place());
      send(many.back().fd(), "js", 2, MSG_NOSIGNAL);  // it may have been dropped already
    }
    std::string answer;
    while (answer.empty()) {
      Client again(service.place());
      const std::string request = "json\n";
      if (send(again.fd(), request.data(), request.size(), MSG_NOSIGNAL) < 0) continue;
      answer = again.hear();
    }
    EXPECT_EQ(answer, "json " + service.body);
    soon = monotonic_now() - start < 5 * kSecond;
  }
  EXPECT_TRUE(soon);
}

TEST(StatusService, EndsWithClientsInAllStates) {
  Folder folder;
  auto service = std::make_unique<Service>();
  service->body = std::string(20'000'000, 'x');
  const std::string place = service->place();
  Client silent(place), asks(place), reads(place), gone(place);
  asks.say("js");
  reads.say("json\n").hear(5);
  gone.say("json\n").hear();
  service->end();
  EXPECT_LT(silent.hear().size(), service->body.size());  // it is told after a second
  EXPECT_EQ(asks.hear(), "");
  EXPECT_LT(reads.hear().size(), service->body.size());
  EXPECT_FALSE(Client(place).connected());
  EXPECT_TRUE(folder.sockets().empty());
  service.reset();
}

TEST(StatusService, NoMemoryForAnAnswerIsAnErrorForTheClientOnly) {
  Folder folder;
  Service service;
  service.exhausted = true;
  EXPECT_TRUE(service.ask("json\n").starts_with("error: ")) << service.ask("json\n");
  EXPECT_TRUE(service.ask("GET /json HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 500 "));
}

TEST(StatusService, NoDescriptorsLeftIsABreakAndNoEndlessLoop) {
  Folder folder;
  Service service;
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  UniqueFd socket_fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(socket_fd.get()) + 1;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  service.place().copy(address.sun_path, sizeof address.sun_path - 1);
  EXPECT_EQ(connect(socket_fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const uint64_t wakeups = *service.loop().ask([&] { return service.loop().wakeups(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(*service.loop().ask([&] { return service.loop().wakeups(); }) - wakeups, 20u);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(send(socket_fd.get(), "all\n", 4, MSG_NOSIGNAL), 4);
  char bytes[4] = {};
  EXPECT_EQ(recv(socket_fd.get(), bytes, 4, MSG_WAITALL), 4);  // after the break
  EXPECT_EQ(std::string(bytes, 4), "all ");
}

// ---- addresses ----

TEST(StatusService, OnLoopbackNobodyMustProveAnything) {
  Service service({"127.0.0.1", 0}, kSecret);
  ASSERT_TRUE(service.ok()) << service.why();
  EXPECT_EQ(Client(service.address()).say("json\n").hear(), "json " + service.body);
  // At an address, the service only tells.
  EXPECT_TRUE(Client(service.address()).say("record\n").hear().starts_with("error: "));
  EXPECT_EQ(service.answered, 1);
}

TEST(StatusService, BeyondLoopbackTheSecretMustBeKnown) {
  Service service({"0.0.0.0", 0}, kSecret);
  ASSERT_TRUE(service.ok()) << service.why();
  const transport::Address address{"127.0.0.1", service.address().port};
  const auto challenge = [&](Client& client, const std::string& question) {
    const std::string text = client.say(question).hear(71);
    EXPECT_TRUE(text.starts_with("prove ") && text.size() == 71 && text[70] == '\n') << text;
    wire::Nonce nonce{};
    for (size_t i = 0; i < nonce.size(); ++i) {
      nonce[i] = static_cast<uint8_t>(std::stoi(text.substr(6 + 2 * i, 2), nullptr, 16));
    }
    return nonce;
  };
  {
    Client client(address);
    const auto nonce = challenge(client, "json\n");
    const std::string proof = wire::status_proof(kSecret, "json", nonce);
    EXPECT_EQ(client.say(concat("proof ", proof, "\n")).hear(), "json " + service.body);
    // The proof of another connection is worth nothing.
    Client other(address);
    challenge(other, "json\n");
    EXPECT_TRUE(other.say(concat("proof ", proof, "\n")).hear().starts_with("error: "));
  }
  for (const char* const wrong : {"proof \n", "proof 00\n", "json\n", "\n"}) {
    Client client(address);
    challenge(client, "json\n");
    EXPECT_EQ(client.say(wrong).hear(), "error: this address answers who knows the job's secret\n");
  }
  {
    Client client(address);  // a proof for one question does not open another one
    const auto nonce = challenge(client, "status\n");
    EXPECT_TRUE(client.say(concat("proof ", wire::status_proof(kSecret, "json", nonce), "\n"))
                    .hear().starts_with("error: "));
  }
  {
    Client client(address);  // a client that hangs up cannot prove anything
    const std::string text = client.hang_up().hear();
    EXPECT_TRUE(text.starts_with("prove ") && text.size() == 71) << text;
    EXPECT_FALSE(contains(Client(address).say("json\n").hang_up().hear(), service.body));
  }
  {
    Client client(address);  // one that says nothing is asked, and dropped
    EXPECT_EQ(client.hear().size(), 71u);
  }
  EXPECT_EQ(service.answered, 1);
}

// Strangers who say nothing, and connect again as soon as they are dropped.
class Strangers {
 public:
  Strangers(const transport::Address& address, const std::string& source, size_t count)
      : thread_([=, this] {
          std::vector<UniqueFd> all(count);
          while (!over_) {
            for (UniqueFd& one : all) {
              char byte;
              if (one.get() >= 0 && recv(one.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0 &&
                  errno == EAGAIN) {
                continue;
              }
              auto fd = transport::tcp::begin_connecting(address, source);
              one = fd.ok() ? fd->release() : UniqueFd();
              ++came_;
            }
          }
        }) {}
  ~Strangers() {
    over_ = true;
    thread_.join();
  }
  size_t came() const { return came_; }

 private:
  std::atomic<bool> over_{false};
  std::atomic<size_t> came_{0};
  std::thread thread_;
};

TEST(StatusService, WhileStrangersCrowdInMembersAreAnswered) {
  Service service({"0.0.0.0", 0}, kSecret);
  const transport::Address address{"127.0.0.1", service.address().port};
  constexpr size_t kStrangers = 500;  // the system keeps all of them in its queue
  const Strangers strangers(address, "127.0.0.2", kStrangers);
  while (strangers.came() < 2 * kStrangers) std::this_thread::yield();
  const std::string token = wire::status_token(kSecret);
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(Client(address)
                    .say("GET /metrics HTTP/1.1\r\nAuthorization: Bearer " + token + "\r\n\r\n")
                    .hear()
                    .starts_with("HTTP/1.1 200 OK\r\n"))
        << i;
  }
  EXPECT_EQ(service.answered, 10);
}

TEST(StatusService, HttpBeyondLoopbackNeedsTheToken) {
  Service service({"0.0.0.0", 0}, kSecret);
  const transport::Address address{"127.0.0.1", service.address().port};
  const std::string token = wire::status_token(kSecret);
  const auto get = [&](const std::string& fields) {
    return Client(address).say("GET /metrics HTTP/1.1\r\n" + fields + "\r\n").hear();
  };
  for (const std::string& right : {"Authorization: Bearer " + token + "\r\n",
                                   "A: b\r\nAUTHORIZATION:bearer  " + token + " \r\nC: d\r\n"}) {
    EXPECT_TRUE(get(right).starts_with("HTTP/1.1 200 OK\r\n")) << right;
  }
  for (const std::string& wrong :
       {std::string(), "Authorization: Bearer \r\n" + std::string(), "Authorization: Basic " +
        token + "\r\n", "X-Authorization: Bearer " + token + "\r\n", "Authorization: Bearer x" +
        token + "\r\n", "Authorization: Bearer " + token.substr(1) + "\r\n",
        "Authorization\r\n: Bearer " + token + "\r\n"}) {
    const std::string answer = get(wrong);
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 401 Unauthorized\r\n")) << wrong;
    EXPECT_TRUE(contains(answer, "WWW-Authenticate: Bearer\r\n")) << answer;
    EXPECT_FALSE(contains(answer, service.body));
  }
  EXPECT_EQ(service.answered, 2);
}

TEST(StatusService, ATakenPortIsAnErrorThatNamesIt) {
  Service first({"127.0.0.1", 0}, kSecret);
  Service second(first.address(), kSecret);
  ASSERT_FALSE(second.ok());
  EXPECT_TRUE(contains(second.why(), first.place())) << second.why();
}

// ---- the folder ----

TEST(StatusService, TheFolderBelongsToTheUserAlone) {
  Folder folder;
  const std::string place = folder / "herring";
  {
    Service service;
    struct stat found {};
    ASSERT_EQ(stat(place.c_str(), &found), 0);
    EXPECT_EQ(found.st_mode & 07777, 0700u);
  }
  chmod(place.c_str(), 0755);
  EXPECT_TRUE(contains(Service().why(), place + " is not a folder that belongs to this user"));
  rmdir(place.c_str());
  ASSERT_EQ(symlink("/tmp", place.c_str()), 0);
  EXPECT_TRUE(contains(Service().why(), place + " is not a folder")) << Service().why();
  unlink(place.c_str());
  if (getuid() == 0) {
    mkdir(place.c_str(), 0700);
    ASSERT_EQ(chown(place.c_str(), 12345, 12345), 0);
    EXPECT_TRUE(contains(Service().why(), place + " is not a folder that belongs to this user"));
  }
}

TEST(StatusService, AFolderThatIsGoneIsReplacedByOneInTmp) {
  setenv("XDG_RUNTIME_DIR", "/nowhere/at/all", 1);
  EXPECT_EQ(*runtime_folder(), concat("/tmp/herring-", getuid()));
  setenv("XDG_RUNTIME_DIR", "relative", 1);
  EXPECT_EQ(*runtime_folder(), concat("/tmp/herring-", getuid()));
  unsetenv("XDG_RUNTIME_DIR");
  EXPECT_EQ(*runtime_folder(), concat("/tmp/herring-", getuid()));
}

TEST(StatusService, APathThatIsTooLongIsAnError) {
  Folder folder;
  Service service(std::string(100, 'j'));
  ASSERT_FALSE(service.ok());
  EXPECT_TRUE(contains(service.why(), "is too long for a socket")) << service.why();
}

TEST(StatusService, ASocketThatCannotHaveItsNameLeavesNothingBehind) {
  Folder folder;
  mkdir((folder / "herring").c_str(), 0700);
  const std::string taken = folder / concat("herring/resnet-", getpid(), ".sock");
  ASSERT_EQ(mkdir(taken.c_str(), 0700), 0);
  Service service;
  EXPECT_TRUE(contains(service.why(), "cannot listen on " + taken)) << service.why();
  EXPECT_EQ(folder.sockets().size(), 1u) << "the folder that was there";
}

TEST(StatusService, RemovesStaleSocketsAndNothingElse) {
  Folder folder;
  const auto leave = [&](const std::string& name, bool listens) {
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    (folder / ("herring/" + name)).copy(address.sun_path, sizeof address.sun_path - 1);
    EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    if (listens) listen(fd.get(), 1);
    return fd;
  };
  mkdir((folder / "herring").c_str(), 0700);
  leave("killed-1.sock", true);
  const UniqueFd alive = leave("alive-2.sock", true);
  leave("other", true);
  close(open((folder / "herring/file.sock").c_str(), O_CREAT | O_WRONLY, 0600));
  Service service;
  const std::vector<std::string> found = folder.sockets();
  const std::set<std::string> names(found.begin(), found.end());
  EXPECT_EQ(names.count("killed-1.sock"), 0u);
  EXPECT_EQ(names.count("alive-2.sock"), 1u);
  EXPECT_EQ(names.count("other"), 1u);
  EXPECT_EQ(names.count("file.sock"), 1u);
  EXPECT_EQ(names.size(), 4u) << "and the service's own";
}

TEST(StatusService, JobsThatStartAtOnceDoNotTakeEachOthersSockets) {
  Folder folder;
  std::vector<pid_t> children;
  for (int i = 0; i < 8; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      for (int n = 0; n < 40; ++n) {
        Service service;
        if (!service.ok() || service.ask("json\n").empty()) _exit(1);
      }
      _exit(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
}

TEST(StatusService, AForkedChildDoesNotKeepTheSocketNorItsClients) {
  Folder folder;
  auto service = std::make_unique<Service>();
  const std::string place = service->place();
  Client client(place);
  client.say("js");
  EXPECT_EQ(service->ask("all\n"), "all " + service->body);  // so `client` is accepted
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  service->end();
  EXPECT_EQ(client.hear(), "");
  EXPECT_FALSE(Client(place).connected());
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace herring::control
