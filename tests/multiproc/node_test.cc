// Tests src/node between real processes: every worker is forked, and one may be killed.
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/fork_guard.h"
#include "node/local_bus.h"
#include "node/shared_memory.h"

namespace herring {
namespace {

constexpr double kPatience = 60;  // seconds until a hanging test is ended

std::set<std::string> names_in(const char* directory) {
  std::set<std::string> names;
  if (DIR* dir = ::opendir(directory)) {
    while (dirent* entry = ::readdir(dir)) names.insert(entry->d_name);
    ::closedir(dir);
  }
  return names;
}

// Returns the names in /dev/shm that contain "herring": other programs also create and delete files
// there.
std::set<std::string> left_in_shm() {
  std::set<std::string> names;
  for (const std::string& name : names_in("/dev/shm")) {
    if (name.find("herring") != std::string::npos) names.insert(name);
  }
  return names;
}

// Returns the number of descriptors of this process that are sockets or memfds.
size_t sockets_and_memfds() {
  size_t n = 0;
  for (const std::string& name : names_in("/proc/self/fd")) {
    char target[256] = {};
    if (::readlink(("/proc/self/fd/" + name).c_str(), target, sizeof(target) - 1) <= 0) continue;
    n += std::strncmp(target, "socket:", 7) == 0 || std::strncmp(target, "/memfd:herring", 14) == 0;
  }
  return n;
}

// The state of a worker process. Failed checks end the process, because gtest's own would not reach
// the test.
struct Worker {
  std::unique_ptr<LocalBus> bus;
  uint32_t rank = 0;
  UniqueFd test;  // to the test: first the rendezvous, then bytes as signals
  size_t inherited = 0;  // sockets inherited from the test runner
  std::vector<LocalMessage> messages;
  std::map<uint32_t, Status> closed;

  void check(bool good, const std::string& what) const {
    if (good) return;
    std::fprintf(stderr, "local rank %u: %s\n", rank, what.c_str());
    ::_exit(1);
  }

  void loop_until(const std::function<bool()>& done) {
    while (!done()) {
      std::vector<pollfd> polled;
      for (int fd : bus->fds()) {
        const int events = bus->wants_write(fd) ? POLLIN | POLLOUT : POLLIN;
        polled.push_back({fd, static_cast<short>(events), 0});
      }
      check(::poll(polled.data(), polled.size(), static_cast<int>(kPatience * 1000)) > 0,
            "nothing happens any more");
      for (const pollfd& p : polled) {
        if (p.revents & POLLOUT) bus->on_writable(p.fd);
        if (p.revents & ~POLLOUT) bus->on_readable(p.fd);
      }
    }
  }

  void tell_test() { check(::send(test.get(), "x", 1, MSG_NOSIGNAL) == 1, "telling the test"); }
  void hear_test() {
    char byte;
    check(::recv(test.get(), &byte, 1, 0) == 1, "hearing from the test");
  }
};

struct Published {
  char name[64];
  std::array<uint8_t, 16> token;
};

// Forks `n` workers, plays the rendezvous for them, and runs `body` in each after they are
// connected.
class Node {
 public:
  Node(size_t n, const std::function<void(Worker&)>& body) {
    for (uint32_t r = 0; r < n; ++r) {
      int ends[2];
      EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
      const pid_t pid = ::fork();
      if (pid == 0) {
        tests_.clear();
        ::close(ends[0]);
        run_worker(r, n, UniqueFd(ends[1]), body);
      }
      ::close(ends[1]);
      pids_.push_back(pid);
      tests_.emplace_back(ends[0]);
    }
    std::vector<Published> all(n);
    for (size_t r = 0; r < n; ++r) {
      EXPECT_TRUE(wait_readable(tests_[r].get())) << "rank " << r << " does not register";
      EXPECT_EQ(::recv(tests_[r].get(), &all[r], sizeof(Published), 0),
                static_cast<ssize_t>(sizeof(Published)));
    }
    for (auto& test : tests_) {
      ::send(test.get(), all.data(), all.size() * sizeof(Published), MSG_NOSIGNAL);
    }
  }

  ~Node() {
    for (pid_t pid : pids_) {
      if (pid > 0) {
        ::kill(pid, SIGKILL);
        ::waitpid(pid, nullptr, 0);
      }
    }
  }

  pid_t pid(size_t rank) const { return pids_[rank]; }

  void hear(size_t rank) {
    char byte;
    EXPECT_TRUE(wait_readable(tests_[rank].get())) << "rank " << rank << " says nothing";
    EXPECT_EQ(::recv(tests_[rank].get(), &byte, 1, MSG_DONTWAIT), 1) << "rank " << rank;
  }
  void tell(size_t rank) { EXPECT_EQ(::send(tests_[rank].get(), "x", 1, MSG_NOSIGNAL), 1); }

  // Returns the worker's exit status, or minus the signal that ended it.
  int wait(size_t rank) {
    // The pipe closes at the end of the process (and of its children).
    while (wait_readable(tests_[rank].get())) {
      char bytes[16];
      if (::recv(tests_[rank].get(), bytes, sizeof(bytes), MSG_DONTWAIT) <= 0) {
        int status = 0;
        ::waitpid(std::exchange(pids_[rank], 0), &status, 0);
        return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
      }
    }
    return 1000;  // the worker hangs
  }
  void expect_success() {
    for (size_t r = 0; r < pids_.size(); ++r) {
      if (pids_[r] <= 0) continue;
      EXPECT_EQ(wait(r), 0) << "local rank " << r;
    }
  }

 private:
  static bool wait_readable(int fd) {
    pollfd polled{fd, POLLIN, 0};
    return ::poll(&polled, 1, static_cast<int>(kPatience * 1000)) == 1;
  }

  [[noreturn]] static void run_worker(uint32_t rank, size_t n, UniqueFd test,
                                      const std::function<void(Worker&)>& body) {
    Worker w;
    w.rank = rank;
    w.inherited = sockets_and_memfds() - 1;
    w.test = std::move(test);
    auto bus = LocalBus::listen();
    w.check(bus.ok(), bus.status().to_string());
    w.bus = std::move(*bus);
    Published mine{};
    std::snprintf(mine.name, sizeof(mine.name), "%s", w.bus->address().name.c_str());
    mine.token = w.bus->address().token;
    ::send(w.test.get(), &mine, sizeof(mine), MSG_NOSIGNAL);
    std::vector<Published> all(n);
    const ssize_t bytes = static_cast<ssize_t>(n * sizeof(Published));
    w.check(::recv(w.test.get(), all.data(), static_cast<size_t>(bytes), 0) == bytes, "rendezvous");
    std::vector<LocalAddress> addresses;
    for (const Published& p : all) addresses.push_back({p.name, p.token});
    const Status status =
        w.bus->connect(rank, addresses, monotonic_now() + from_seconds(kPatience));
    w.check(status.ok(), status.to_string());
    w.bus->set_handler([&w](const LocalMessage& m) { w.messages.push_back(m); },
                       [&w](uint32_t peer, const Status& why) { w.closed[peer] = why; });
    body(w);
    ::_exit(0);
  }

  std::vector<pid_t> pids_;
  std::vector<UniqueFd> tests_;
};

class NodeOf : public testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Workers, NodeOf, testing::Values(2u, 4u, 7u));

// Does an all-reduce by hand, twice over the same memory. Each worker sums its slice over all
// arrays, writes the sum into all of them, and tells the others.
TEST_P(NodeOf, ReducesInSharedMemory) {
  const uint32_t n = GetParam();
  const auto shm = left_in_shm();
  Node node(n, [n](Worker& w) {
    SharedHeap heap;
    const uint64_t count = 40000 * n;
    auto block = heap.allocate(count * sizeof(int));
    w.check(block.ok(), block.status().to_string());
    int* array = static_cast<int*>(*block);
    const auto location = *heap.locate(array, count * sizeof(int));
    w.bus->export_region(heap.region(location.region));

    enum : uint8_t { kFilled = 1, kSummed = 2 };
    for (uint32_t round = 0; round < 2; ++round) {
      for (uint64_t i = 0; i < count; ++i) array[i] = static_cast<int>(i * (w.rank + 1) + round);
      LocalMessage m;
      m.kind = kFilled;
      m.round = round;
      m.region = location.region;
      m.offset = location.offset;
      m.bytes = count * sizeof(int);
      w.bus->send_to_all(m);
      auto heard = [&](uint8_t kind) {
        return std::count_if(w.messages.begin(), w.messages.end(), [&](const LocalMessage& got) {
                 return got.kind == kind && got.round == round;
               }) == n - 1;
      };
      w.loop_until([&] { return heard(kFilled); });
      std::vector<int*> all{array};
      for (const LocalMessage& got : w.messages) {
        if (got.kind != kFilled || got.round != round) continue;
        auto memory = w.bus->peer_memory(got.from, got.region, got.offset, got.bytes);
        w.check(memory.ok(), memory.status().to_string());
        all.push_back(reinterpret_cast<int*>(memory->get()));
      }
      const uint64_t slice = count / n;
      for (uint64_t i = w.rank * slice; i < (w.rank + 1) * slice; ++i) {
        int sum = 0;
        for (const int* a : all) sum += a[i];
        for (int* a : all) a[i] = sum;
      }
      m.kind = kSummed;
      w.bus->send_to_all(m);
      w.loop_until([&] { return heard(kSummed); });
      for (uint64_t i = 0; i < count; ++i) {
        w.check(array[i] == static_cast<int>(i * n * (n + 1) / 2 + n * round), "a wrong sum");
      }
    }
  });
  node.expect_success();
  EXPECT_EQ(left_in_shm(), shm);
}

// One worker is killed while all wait. Its forked child (a data loader's worker, say) lives on and
// holds the descriptors it inherited. Every survivor learns who died, and goes on with the others.
TEST_P(NodeOf, AllSurvivorsLearnOfAKilledWorker) {
  const uint32_t n = GetParam();
  const uint32_t victim = n / 2;
  const auto shm = left_in_shm();
  Node node(n, [victim, n](Worker& w) {
    SharedHeap heap;
    auto block = heap.allocate(3 << 20);
    w.check(block.ok(), block.status().to_string());
    static_cast<char*>(*block)[5] = static_cast<char>(w.rank + 1);
    const uint32_t region = heap.locate(*block, 1)->region;
    w.bus->export_region(heap.region(region));
    LocalMessage m;
    m.kind = 1;
    m.region = region;
    w.bus->send_to_all(m);
    w.loop_until([&] { return w.messages.size() == n - 1; });
    if (w.rank == victim) {
      const pid_t loader = ::fork();
      if (loader == 0) {
        w.check(static_cast<char*>(*block)[5] == static_cast<char>(victim + 1), "loader's memory");
        w.tell_test();
        w.hear_test();  // The end of the test ends this wait.
        ::_exit(0);
      }
      ::pause();
    }
    w.tell_test();
    uint32_t victims_region = 0;
    for (const LocalMessage& got : w.messages) {
      if (got.from == victim) victims_region = got.region;
    }
    auto memory = w.bus->peer_memory(victim, victims_region, 0, 3 << 20);
    w.check(memory.ok(), memory.status().to_string());
    w.loop_until([&] { return !w.closed.empty(); });
    w.check(w.closed.count(victim) == 1 && w.closed[victim].code() == Code::kPeerLost,
            w.closed.begin()->second.to_string());
    w.check(memory->get()[5] == static_cast<char>(victim + 1), "the victim's memory is gone");
    w.check(w.bus->peer_memory(victim, victims_region, 0, 1).status().code() == Code::kPeerLost,
            "addresses in a dead worker's memory are still given out");
    m.kind = 2;
    w.bus->send_to_all(m);
    w.loop_until([&] { return w.messages.size() == n - 1 + n - 2; });
    // The workers leave together, so that none takes a departure for a death.
    w.bus->close();
  });
  for (uint32_t r = 0; r < n; ++r) node.hear(r);
  ::kill(node.pid(victim), SIGKILL);
  for (uint32_t r = 0; r < n; ++r) {
    if (r == victim) continue;
    EXPECT_EQ(node.wait(r), 0) << "local rank " << r;
  }
  node.tell(victim);  // to its child
  EXPECT_EQ(node.wait(victim), -SIGKILL);
  EXPECT_EQ(left_in_shm(), shm);
}

// The receiver sleeps until the sender's socket would be full many times over. Messages go both
// ways at once.
TEST_P(NodeOf, AFloodLosesNothingAndKeepsOrder) {
  const uint32_t n = GetParam();
  Node node(n, [n](Worker& w) {
    constexpr uint32_t kMessages = 5000;
    std::vector<uint32_t> seen(n, 0);
    w.bus->set_handler(
        [&](const LocalMessage& m) {
          w.check(m.round == seen[m.from]++, "out of order");
          auto memory = w.bus->peer_memory(m.from, m.region, 0, 4096);
          w.check(memory.ok(), memory.status().to_string());
          w.check(*memory->get() == static_cast<char>(m.round / 100), "another region's content");
        },
        nullptr);
    std::shared_ptr<SharedRegion> region, previous;
    for (uint32_t i = 0; i < kMessages; ++i) {
      if (i % 100 == 0) {
        if (previous != nullptr) w.bus->release_region(previous->id());
        previous = region;
        auto made = SharedRegion::create(4096);
        w.check(made.ok(), made.status().to_string());
        region = *made;
        *region->data() = static_cast<char>(i / 100);
        w.bus->export_region(region);
      }
      LocalMessage m;
      m.kind = 1;
      m.round = i;
      m.region = region->id();
      w.bus->send_to_all(m);
    }
    w.check(w.bus->queued() > 1000, "the sockets took everything; send more");
    w.tell_test();
    w.hear_test();  // All workers have filled the sockets.
    w.loop_until([&] {
      uint32_t sum = 0;
      for (uint32_t s : seen) sum += s;
      return sum == kMessages * (n - 1) && w.bus->queued() == 0;
    });
  });
  for (uint32_t r = 0; r < n; ++r) node.hear(r);
  for (uint32_t r = 0; r < n; ++r) node.tell(r);
  node.expect_success();
}

TEST(NodeProcesses, AForkedChildHasNoneOfTheDescriptors) {
  Node node(3, [](Worker& w) {
    SharedHeap heap;
    auto block = heap.allocate(3 << 20);
    w.check(block.ok(), block.status().to_string());
    w.bus->export_region(heap.region(heap.locate(*block, 1)->region));
    w.check(sockets_and_memfds() == w.inherited + 4, "two peers, the test, a region");
    const pid_t child = ::fork();
    if (child == 0) {
      w.test.reset();
      std::memset(*block, 1, 3 << 20);  // still mapped
      w.check(w.bus->fds().empty(), "the bus still has descriptors");
      w.bus.reset();
      heap.free(*block);
      ::_exit(sockets_and_memfds() == w.inherited ? 0 : 7);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    w.check(status == 0, concat("the child found ", status));
    w.check(w.bus->fds().size() == 2, "the parent lost descriptors");
    LocalMessage m;
    m.kind = 1;
    w.bus->send_to_all(m);
    w.loop_until([&] { return w.messages.size() == 2; });
  });
  node.expect_success();
}

// A worker without free descriptors still hears its peers. The region is unusable, and the error
// says why.
TEST(NodeProcesses, RunningOutOfDescriptorsIsAnErrorNotADeath) {
  Node node(2, [](Worker& w) {
    if (w.rank == 1) {
      rlimit limit{};
      ::getrlimit(RLIMIT_NOFILE, &limit);
      UniqueFd lowest(::open("/dev/null", O_RDONLY | O_CLOEXEC));
      const rlim_t before = std::exchange(limit.rlim_cur, static_cast<rlim_t>(lowest.get()));
      lowest.reset();
      for (int fd = 0; fd < static_cast<int>(limit.rlim_cur); ++fd) {
        w.check(::fcntl(fd, F_GETFD) >= 0, "a hole in the table");
      }
      w.check(::setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
      w.tell_test();
      w.loop_until([&] { return w.messages.size() == 1; });
      limit.rlim_cur = before;  // The sanitizers also need descriptors.
      w.check(::setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
      auto memory = w.bus->peer_memory(0, w.messages[0].region, 0, 1);
      w.check(!memory.ok(), "mapped without a descriptor");
      w.check(memory.status().message().find("limit of open files") != std::string::npos,
              memory.status().to_string());
      return;
    }
    w.hear_test();
    auto region = SharedRegion::create(4096);
    LocalMessage m;
    m.kind = 1;
    m.region = w.bus->export_region(*region);
    w.bus->send_to_all(m);
    w.loop_until([&] { return !w.closed.empty(); });
    w.check(w.closed[1].code() == Code::kPeerLost, "exited without goodbye");
  });
  node.hear(1);
  node.tell(0);
  node.expect_success();
}

// Many arrays are allocated and freed. Neither descriptors nor mappings may pile up on either side.
TEST(NodeProcesses, ManyRegionsComeAndGo) {
  Node node(2, [](Worker& w) {
    SharedHeap heap(0);
    auto mappings = [] {
      size_t lines = 0;
      if (FILE* maps = std::fopen("/proc/self/maps", "r")) {
        char line[1024];
        while (std::fgets(line, sizeof(line), maps)) {
          lines += std::strstr(line, "memfd:herring") != nullptr;
        }
        std::fclose(maps);
      }
      return lines;
    };
    size_t heard = 0, mapped = 0;
    w.bus->set_handler(
        [&](const LocalMessage& m) {
          ++heard;
          // This happens here, because the peer may release the region a moment later.
          mapped += m.kind == 1 && w.bus->peer_memory(m.from, m.region, 0, 1).ok();
        },
        nullptr);
    const size_t fds = names_in("/proc/self/fd").size();
    for (uint32_t i = 0; i < 500; ++i) {
      auto block = heap.allocate(SharedHeap::kLargeBytes);
      w.check(block.ok(), block.status().to_string());
      LocalMessage m;
      m.kind = 1;
      m.region = heap.locate(*block, 1)->region;
      w.bus->export_region(heap.region(m.region));
      w.bus->send_to_all(m);
      w.loop_until([&] { return heard >= 2 * i + 1; });
      w.check(mappings() <= 3, "mappings pile up");  // own, the peer's, and the peer's next
      w.check(heap.free(*block), "free");
      for (uint32_t region : heap.take_released()) w.bus->release_region(region);
      w.bus->send_to_all(LocalMessage{});
      w.loop_until([&] { return heard >= 2 * i + 2; });
      w.check(names_in("/proc/self/fd").size() <= fds, "descriptors pile up");
      w.check(mapped >= i + 1, "not mapped");
      if (i == 0) w.check(mappings() <= 1, "released, but mapped");  // the peer's next
    }
  });
  node.expect_success();
}

}  // namespace
}  // namespace herring
