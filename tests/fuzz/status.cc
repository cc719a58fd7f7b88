// Fuzzes the service that answers `herring status`: questions and requests over HTTP that may be
// cut, mixed or nonsense, with and without a proof. Who hangs up after a short question must get a
// sound answer, and nobody may learn anything of a job without its secret.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "control/status_service.h"
#include "tests/fuzz/input.h"
#include "transport/epoll_loop.h"
#include "transport/tcp/socket.h"
#include "wire/hello.h"

using namespace herring;           // NOLINT: a fuzz target
using namespace herring::control;  // NOLINT
using namespace herring::fuzz;     // NOLINT

namespace {

constexpr char kSecret[] = "what the input does not know";
constexpr char kBody[] = "what only the job's people may know\n";
// Beyond this, a request is dropped.
constexpr size_t kMostRequest = 8192;

// What requests consist of. The last one stands for the right token.
const std::string kWords[] = {
    "GET ",      "HEAD ",   "POST ",   "/",      "/status", "/all",     "/json", "/status.json",
    "/metrics",  "status",  "all",     "json",   "metrics", "record",   "proof ", "prove ",
    " HTTP/1.1", "?a=b",    "\r\n",    "\n",     "\r",      " ",        "\t",    "Authorization:",
    "aUTHORIZATION: ", "Bearer ", "bearer", "Basic ", "00", std::string(1, '\0'), "\xff", ""};

class Jobs {
 public:
  Jobs() {
    static_cast<void>(wire::random_nonce());  // OpenSSL cleans up after what used it before
    std::string pattern = (std::filesystem::temp_directory_path() / "herring-fuzz-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    setenv("XDG_RUNTIME_DIR", folder_.c_str(), 1);
    const auto answer = [](StatusService::Question) { return std::string(kBody); };
    auto own = StatusService::listen_locally(loop_, "job", answer);
    auto guarded = StatusService::listen_at(loop_, {"0.0.0.0", 0}, kSecret, answer);
    expect(own.ok() && guarded.ok());
    own_ = std::move(*own);
    guarded_ = std::move(*guarded);
    port_ = transport::parse_address(guarded_->place(), "the place")->port;
    loop_.start("status");
  }
  ~Jobs() {
    loop_.join();
    own_.reset();
    std::filesystem::remove_all(folder_);
  }

  UniqueFd connect(bool guarded) {
    if (guarded) {
      const Nanos deadline = monotonic_now() + 10 * kSecond;
      auto fd = transport::tcp::connect_to({"127.0.0.1", port_}, "", deadline);
      expect(fd.ok());
      return fd->release();
    }
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    own_->place().copy(address.sun_path, sizeof address.sun_path - 1);
    expect(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    return fd;
  }
  // Lets the service read what it was sent.
  void pause() {
    loop_.ask([] { return true; });
  }

 private:
  std::string folder_;
  transport::EpollLoop loop_;
  std::unique_ptr<StatusService> own_, guarded_;
  uint16_t port_ = 0;
};

void say(int fd, const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = ::send(fd, text.data() + at, text.size() - at, MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN) return;  // the service has ended the connection
    pollfd waits{fd, POLLOUT, 0};
    if (n < 0) expect(::poll(&waits, 1, 10000) == 1);
    at += n > 0 ? static_cast<size_t>(n) : 0;
  }
}

// Reads until the service has said everything, or until a line has come.
std::string hear(int fd, bool line) {
  std::string text;
  char bytes[4096];
  for (;;) {
    pollfd waits{fd, POLLIN, 0};
    expect(::poll(&waits, 1, 10000) == 1);
    const ssize_t n = ::recv(fd, bytes, line ? 1 : sizeof bytes, 0);
    if (n <= 0) return text;
    text.append(bytes, static_cast<size_t>(n));
    if (line && bytes[0] == '\n') return text;
  }
}

// Returns whether an answer is sound, and has the body only if `may_know`.
bool sound(const std::string& answer, bool may_know) {
  const bool knows = answer.find(kBody) != std::string::npos;
  if (knows && !may_know) return false;
  if (!answer.starts_with("HTTP/1.1 ")) {
    return answer == kBody || answer.starts_with("error: ") || answer.starts_with("prove ");
  }
  const size_t end = answer.find("\r\n\r\n"), field = answer.find("\r\nContent-Length: ");
  if (end == std::string::npos || field > end) return false;
  const size_t length = std::strtoull(answer.c_str() + field + 18, nullptr, 10);
  const size_t body = answer.size() - end - 4;
  return body == length || body == 0;  // a HEAD has no body
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  be_quiet();
  static Jobs jobs;
  Input in(data, size);
  const uint8_t flags = in.byte();
  const bool guarded = flags & 1, knows = flags & 2;
  const UniqueFd fd = jobs.connect(guarded);
  if (guarded && knows && (flags & 4)) {
    // Asks, and proves that it may. Then it says anything.
    const std::string question = kWords[9 + in.below(5)];
    say(fd.get(), question + "\n");
    const std::string prove = hear(fd.get(), true);
    wire::Nonce nonce{};
    expect(prove.starts_with("prove ") && prove.size() == 7 + 2 * nonce.size());
    for (size_t i = 0; i < nonce.size(); ++i) {
      nonce[i] = static_cast<uint8_t>(std::stoi(prove.substr(6 + 2 * i, 2), nullptr, 16));
    }
    say(fd.get(), "proof " + wire::status_proof(kSecret, question, nonce) + "\n");
    jobs.pause();
  }
  std::string said;
  size_t all = 0;
  while (!in.empty()) {
    const uint8_t what = in.byte();
    if (what < 2 * std::size(kWords)) {
      const std::string& word = kWords[what / 2];
      said += word.empty() && knows ? wire::status_token(kSecret) : word;
    } else if (what < 240) {
      for (int n = what % 16; n >= 0 && !in.empty(); --n) said += static_cast<char>(in.byte());
    } else if (what < 250) {
      all += said.size();
      say(fd.get(), std::exchange(said, {}));
      jobs.pause();
    } else {
      said.append(1000, 'x');
    }
  }
  all += said.size();
  say(fd.get(), said);
  ::shutdown(fd.get(), SHUT_WR);
  const std::string answer = hear(fd.get(), false);
  count_frames(1);
  // Who hangs up before a proof may be cut off.
  const bool dropped = answer.empty() && (all > kMostRequest || guarded);
  expect(dropped || sound(answer, !guarded || knows));
  return 0;
}

std::vector<std::string> seeds() {
  const auto of = [](char flags, std::initializer_list<const char*> words) {
    std::string seed(1, flags);
    for (const std::string word : words) {
      const auto* const found = std::find(std::begin(kWords), std::end(kWords), word);
      seed += static_cast<char>(2 * (found - std::begin(kWords)));
    }
    return seed;
  };
  return {
      of(0, {"status", "\n"}), of(0, {"json", "\n"}), of(0, {"record", "\r\n"}), of(0, {}),
      of(0, {"GET ", "/metrics", "?a=b", " HTTP/1.1", "\r\n", "\r\n"}),
      of(0, {"HEAD ", "/", " HTTP/1.1", "\n", "\n"}),
      of(1, {"json", "\n"}), of(1, {"all", "\n", "proof ", "00", "\n"}),
      of(1, {"GET ", "/json", " HTTP/1.1", "\r\n", "\r\n"}),
      of(3, {"GET ", "/json", " HTTP/1.1", "\n", "Authorization:", "Bearer ", "", "\n", "\n"}),
      of(7, {"json", "\n"}),
  };
}
