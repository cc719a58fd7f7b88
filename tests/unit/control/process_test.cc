// Tests with real processes: killed, stopped, and with children that keep inherited descriptors.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <linux/filter.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>

#include "job.h"
#include "tests/unit/text.h"

namespace herring::control {
namespace {

using testing::Witness;

constexpr int kDeadlineMs = 600'000;
constexpr int kMaxDescriptor = 256;

// Behaves like a machine whose cable is pulled. The process stands still, and its system
// acknowledges nothing, until the process is continued.
void die_as_a_machine(int) {
  const int interrupted = errno;
  sock_filter drop_all = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog program{1, &drop_all};
  for (int fd = 3; fd < kMaxDescriptor; ++fd) {
    setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program));
  }
  raise(SIGSTOP);
  const int unused = 0;
  for (int fd = 3; fd < kMaxDescriptor; ++fd) {
    setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof(unused));
  }
  errno = interrupted;
}

// A forked process that runs `body` and reports in lines. It must be created before this process
// has threads.
class Process {
 public:
  using Say = std::function<void(const std::string&)>;

  explicit Process(const std::function<void(const Say&)>& body) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      alarm(60);  // ends the child even if the test hangs
      ::signal(SIGUSR2, die_as_a_machine);
      body([&](const std::string& line) {
        const std::string text = line + "\n";
        if (write(ends[1], text.data(), text.size()) < 0) _exit(3);
      });
      _exit(0);
    }
    close(ends[1]);
    lines_ = UniqueFd(ends[0]);
  }
  ~Process() {
    signal(SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) { kill(pid_, number); }
  // Stops the process and waits until it has stopped.
  void stop(int number = SIGSTOP) {
    signal(number);
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, WUNTRACED), pid_);
    EXPECT_TRUE(WIFSTOPPED(status));
  }

  std::string line() {
    for (;;) {
      if (const size_t end = buffer_.find('\n'); end != std::string::npos) {
        std::string line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return line;
      }
      pollfd waiting{lines_.get(), POLLIN, 0};
      if (poll(&waiting, 1, kDeadlineMs) != 1) return "(nothing said in time)";
      char chunk[4096];
      const ssize_t n = read(lines_.get(), chunk, sizeof(chunk));
      if (n <= 0) return "(ended)";
      buffer_.append(chunk, n);
    }
  }

 private:
  pid_t pid_ = -1;
  UniqueFd lines_;
  std::string buffer_;
};

// The whole life of a worker: it joins and reports what it hears until it is killed.
struct Life {
  transport::Address rendezvous;
  uint32_t rank = 0, size = 0;
  Nanos interval = 100 * kMillisecond, timeout = 60 * kSecond;

  Member::Options options() const {
    Member::Options options;
    options.rendezvous = rendezvous;
    options.credentials = testing::credentials();
    options.connect_timeout = testing::kPatience;
    options.heartbeat_interval = interval;
    options.heartbeat_timeout = timeout;
    return options;
  }
  RendezvousOptions hosting() const {
    RendezvousOptions hosting;
    static_cast<Timings&>(hosting) = options();
    hosting.credentials = testing::credentials();
    hosting.size = size;
    hosting.dedicated_servers = 1;
    return hosting;
  }
  Result<std::unique_ptr<Member>> join() const {
    WorkerRegistration registration;
    registration.rank = rank;
    registration.size = size;
    registration.dedicated_servers = 1;
    registration.host_id = "host";
    return Member::join(options(), registration, nullptr);
  }
  void run(const Process::Say& say, const std::function<void()>& then = [] {}) const {
    auto joined = join();
    if (!joined.ok()) return say("failed: " + joined.status().to_string());
    (*joined)->watch(
        [&](const Loss& loss) {
          say(concat(loss.left ? "left " : "lost ", loss.index, ": ", loss.text));
        },
        [&](const Status& why) { say("aborted: " + why.message()); }, [](Member::End) {});
    say("joined");
    then();
    for (;;) pause();
  }
};

Result<std::unique_ptr<Member>> join_server(const Life& life) {
  ServerRegistration registration;
  registration.port = 7000;
  return Member::join(life.options(), registration);
}

// This process hosts the rendezvous and the server. The workers are processes of their own.
struct Fixture {
  explicit Fixture(uint32_t size, Nanos timeout = 60 * kSecond) {
    life.size = size;
    life.timeout = timeout;
    bind();
  }
  void bind() {
    auto bound = transport::tcp::listen_on({"127.0.0.1", 0}, 16);
    EXPECT_TRUE(bound.ok());
    listener = std::move(*bound);
    life.rendezvous = *transport::tcp::local_address(listener.get());
  }
  // Hosts the rendezvous in a forked process and reports its address. The fork has closed the
  // parent's listener.
  std::unique_ptr<Rendezvous> host(const Process::Say& say) {
    bind();
    auto started = Rendezvous::start(std::move(listener), life.hosting());
    if (!started.ok()) _exit(4);
    say(std::to_string(life.rendezvous.port));
    return std::move(*started);
  }
  void meet_at(const std::string& port) {
    listener.reset();
    life.rendezvous.port = static_cast<uint16_t>(std::stoi(port));
  }
  Life worker(uint32_t rank) const {
    Life one = life;
    one.rank = rank;
    return one;
  }
  void start() {
    auto started = Rendezvous::start(std::move(listener), life.hosting());
    ASSERT_TRUE(started.ok());
    rendezvous = std::move(*started);
    auto joined = join_server(life);
    ASSERT_TRUE(joined.ok()) << joined.status().to_string();
    server = std::move(*joined);
  }

  GuardedFd listener;
  Life life;
  std::unique_ptr<Rendezvous> rendezvous;
  std::unique_ptr<Member> server;
};

TEST(Processes, AKilledWorkerIsReportedToAll) {
  Fixture job(2);
  Process zero([&](const auto& say) { job.worker(0).run(say); });
  Process one([&](const auto& say) { job.worker(1).run(say); });
  job.start();
  ASSERT_EQ(zero.line(), "joined");
  ASSERT_EQ(one.line(), "joined");
  Witness server(*job.server);
  one.signal(SIGKILL);
  const std::string expected = concat("lost 1: rank 1 (127.0.0.1, pid ", one.pid(), ") is lost");
  EXPECT_TRUE(contains(zero.line(), expected));
  ASSERT_TRUE(server.wait_losses(1));
  EXPECT_EQ(server.losses()[0].index, 1u);
}

// A data loader's workers inherit every descriptor and outlive a killed parent for a while. The
// heartbeat timeout is a minute here, so only the closed connection can report the death in time.
TEST(Processes, AKilledWorkerIsReportedAlthoughItsChildrenLive) {
  Fixture job(2);
  Process zero([&](const auto& say) { job.worker(0).run(say); });
  Process one([&](const auto& say) {
    job.worker(1).run(say, [&] {
      const pid_t child = fork();
      if (child == 0) {
        say(concat(getpid()));
        for (;;) pause();
      }
    });
  });
  job.start();
  ASSERT_EQ(zero.line(), "joined");
  ASSERT_EQ(one.line(), "joined");
  const pid_t child = std::stoi(one.line());
  one.signal(SIGKILL);
  EXPECT_TRUE(contains(zero.line(), "lost 1: rank 1"));
  EXPECT_EQ(kill(child, SIGKILL), 0) << "the child had ended before, and proves nothing";
}

TEST(Processes, ADeadMachineIsNoticedByItsSilence) {
  Fixture job(2, kSecond);
  Process zero([&](const auto& say) { job.worker(0).run(say); });
  Process one([&](const auto& say) { job.worker(1).run(say); });
  job.start();
  ASSERT_EQ(zero.line(), "joined");
  ASSERT_EQ(one.line(), "joined");
  one.stop(SIGUSR2);
  const std::string line = zero.line();
  EXPECT_TRUE(contains(line, "lost 1: rank 1")) << line;
  EXPECT_TRUE(contains(line, "nothing was heard from it or its system for")) << line;
  // When the process continues, it learns that it was given up.
  one.signal(SIGCONT);
  const std::string news = one.line();
  EXPECT_TRUE(contains(news, "aborted: this machine was not heard from for")) << news;
}

// A laptop may pause, a debugger may stop a process, or a checkpoint may wait for a slow disk.
// Whichever process stands still, it does not count as dead while its system answers.
TEST(Processes, AStoppedProcessIsNotDead) {
  Fixture job(3, 500 * kMillisecond);
  Process zero([&](const auto& say) {
    auto rendezvous = job.host(say);
    job.worker(0).run(say);
  });
  job.meet_at(zero.line());
  Process one([&](const auto& say) { job.worker(1).run(say); });
  Process two([&](const auto& say) { job.worker(2).run(say); });
  auto server = join_server(job.life);
  ASSERT_TRUE(server.ok()) << server.status().to_string();
  for (Process* process : {&zero, &one, &two}) ASSERT_EQ(process->line(), "joined");
  for (Process* process : {&zero, &one}) {
    process->stop();
    poll(nullptr, 0, 3000);  // the pause: six timeouts
    process->signal(SIGCONT);
  }
  poll(nullptr, 0, 1500);  // the others check for dead members many times
  two.signal(SIGKILL);  // the first loss that is reported
  EXPECT_TRUE(contains(one.line(), "lost 2: rank 2"));
  EXPECT_TRUE(contains(zero.line(), "lost 2: rank 2"));
}

TEST(Processes, AKilledRankZeroTakesTheRendezvousWithIt) {
  for (const bool stopped : {false, true}) {
    Fixture job(2, stopped ? kSecond : 60 * kSecond);
    Process zero([&](const auto& say) {
      auto rendezvous = job.host(say);
      job.worker(0).run(say);
    });
    job.meet_at(zero.line());
    Process one([&](const auto& say) { job.worker(1).run(say); });
    auto joined = join_server(job.life);
    ASSERT_TRUE(joined.ok()) << joined.status().to_string();
    ASSERT_EQ(zero.line(), "joined");
    ASSERT_EQ(one.line(), "joined");
    Witness server(**joined);
    stopped ? zero.stop(SIGUSR2) : zero.signal(SIGKILL);
    const std::string line = one.line();
    EXPECT_TRUE(contains(line, "lost 0: rank 0 (127.0.0.1, pid")) << line;
    EXPECT_TRUE(contains(line, "which hosts the rendezvous")) << line;
    EXPECT_TRUE(contains(line, stopped ? "nothing was heard" : "ended without a goodbye")) << line;
    ASSERT_TRUE(server.wait_losses(1));
    EXPECT_FALSE(server.losses()[0].left);
  }
}

// The whole machine stands still for longer than the timeout. No process may be reported as dead.
TEST(Processes, AStalledMachineAccusesNobody) {
  Fixture job(2, 2 * kSecond);
  Process zero([&](const auto& say) {
    auto rendezvous = job.host(say);
    auto server = std::async(std::launch::async, [&] { return join_server(job.life); });
    job.worker(0).run(say);
  });
  job.meet_at(zero.line());
  Process one([&](const auto& say) {
    auto joined = job.worker(1).join();
    if (!joined.ok()) return say(joined.status().to_string());
    (*joined)->watch([&](const Loss& loss) { say("unexpected: " + loss.text); },
                     [&](const Status& why) { say("unexpected: " + why.message()); },
                     [](Member::End) {});
    say("joined");
    // Waits for SIGUSR1, which was blocked before any thread started, and then leaves.
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGUSR1);
    int number = 0;
    sigwait(&wanted, &number);
    (*joined)->goodbye();
    say("left");
    for (;;) pause();
  });
  ASSERT_EQ(zero.line(), "joined");
  ASSERT_EQ(one.line(), "joined");
  zero.stop();
  one.stop();
  poll(nullptr, 0, 3500);  // the stall: well beyond the timeout
  zero.signal(SIGCONT);
  one.signal(SIGCONT);
  poll(nullptr, 0, 1000);  // the watchers check several times
  one.signal(SIGUSR1);
  EXPECT_EQ(one.line(), "left");
  const std::string line = zero.line();
  EXPECT_TRUE(contains(line, "left 1: rank 1")) << line;
}

class Signals : public ::testing::Environment {
 public:
  void SetUp() override {
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
  }
};
const auto* const kSignals = ::testing::AddGlobalTestEnvironment(new Signals);

}  // namespace
}  // namespace herring::control
