#include "control/assembly.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <string_view>

#include "base/lists.h"
#include "base/settings.h"
#include "plan/plan.h"

namespace herring::control {
namespace {

// Returns "4 (ranks 0, 1), 3 (rank 2)" for the values that `value` returns for the workers.
template <typename Value>
std::string who_has_what(const std::vector<RegisteredWorker>& workers, Value value) {
  std::map<decltype(value(workers[0].registration)), std::vector<uint32_t>> ranks_by_value;
  for (const RegisteredWorker& worker : workers) {
    ranks_by_value[value(worker.registration)].push_back(worker.registration.rank);
  }
  return list_of(ranks_by_value, [](const auto& one) {
    return concat(one.first, " (", list_ranks(one.second, kMostRanges), ")");
  });
}

// Lists every rank of a node with its given local rank and size.
std::string local_values(const std::vector<const RegisteredWorker*>& node) {
  constexpr size_t kMost = 16;
  const auto value = [](int given) { return given < 0 ? "unset" : std::to_string(given); };
  const std::string text =
      list_of(std::span(node).first(std::min(node.size(), kMost)), [&](const auto* worker) {
        const WorkerRegistration& given = worker->registration;
        return concat("rank ", given.rank, " has local rank ", value(given.local_rank), " of ",
                      value(given.local_size));
      });
  return node.size() > kMost ? concat(text, " and ", node.size() - kMost, " more") : text;
}

// Returns the local ranks of one node's workers, which are in order of rank. Given local ranks
// stay; workers without one get the remaining numbers.
Result<std::vector<uint32_t>> local_ranks(const std::vector<const RegisteredWorker*>& node) {
  const size_t size = node.size();
  const auto contradiction = [&](const std::string& what) {
    return Status(Code::kConfiguration,
                  concat(what, " on the host of ", describe(*node.front()), ", where ", size,
                         " of the job's workers run: ", local_values(node),
                         "; check HERRING_LOCAL_RANK, HERRING_LOCAL_SIZE and HERRING_HOST_ID"));
  };
  std::vector<uint32_t> result(size);
  std::vector<bool> taken(size);
  for (size_t i = 0; i < size; ++i) {
    const WorkerRegistration& given = node[i]->registration;
    if (given.local_size >= 0 && static_cast<size_t>(given.local_size) != size) {
      return contradiction("the local size is wrong");
    }
    if (given.local_rank < 0) continue;
    if (static_cast<size_t>(given.local_rank) >= size) {
      return contradiction("a local rank is too large");
    }
    if (taken[given.local_rank]) return contradiction("a local rank occurs twice");
    taken[given.local_rank] = true;
    result[i] = given.local_rank;
  }
  size_t next = 0;
  for (size_t i = 0; i < size; ++i) {
    if (node[i]->registration.local_rank >= 0) continue;
    while (taken[next]) ++next;
    taken[next] = true;
    result[i] = static_cast<uint32_t>(next);
  }
  return result;
}

}  // namespace

std::string describe(const RegisteredWorker& worker) {
  return concat("rank ", worker.registration.rank, " (", worker.host, ", pid ", worker.pid, ")");
}

std::string objects_of(const WorkerRegistration& worker) {
  const auto given = worker.settings.find("objects");
  return given == worker.settings.end() ? default_of("objects").text : given->second;
}

Status find_contradiction(const std::vector<RegisteredWorker>& workers, uint32_t size,
                          uint32_t dedicated_servers) {
  const auto differs = [&](uint32_t WorkerRegistration::*field, uint32_t expected) {
    return std::any_of(workers.begin(), workers.end(), [&](const RegisteredWorker& worker) {
      return worker.registration.*field != expected;
    });
  };
  if (differs(&WorkerRegistration::size, size)) {
    return {Code::kConfiguration,
            concat("the ranks disagree about the number of workers (HERRING_SIZE): ",
                   who_has_what(workers, [](const auto& w) { return w.size; }),
                   "; the rendezvous expects ", size)};
  }
  if (differs(&WorkerRegistration::dedicated_servers, dedicated_servers)) {
    return {Code::kConfiguration,
            concat("the ranks disagree about the number of dedicated servers (HERRING_SERVERS): ",
                   who_has_what(workers, [](const auto& w) { return w.dedicated_servers; }),
                   "; the rendezvous expects ", dedicated_servers)};
  }
  if (std::any_of(workers.begin(), workers.end(), [&](const RegisteredWorker& worker) {
        return objects_of(worker.registration) != objects_of(workers[0].registration);
      })) {
    return {Code::kConfiguration,
            concat("the ranks disagree about how objects are sent (HERRING_OBJECTS): ",
                   who_has_what(workers, objects_of), "; give all ranks the same value")};
  }
  std::map<uint32_t, const RegisteredWorker*> by_rank;
  for (const RegisteredWorker& worker : workers) {
    const uint32_t rank = worker.registration.rank;
    if (rank >= size) {
      return {Code::kConfiguration,
              concat(describe(worker), " cannot be in a job of ", counted(size, "worker"),
                     ": HERRING_RANK must be from 0 to HERRING_SIZE - 1")};
    }
    const auto [first, is_new] = by_rank.emplace(rank, &worker);
    if (!is_new) {
      return {Code::kConfiguration,
              concat("rank ", rank, " has registered twice: (", first->second->host, ", pid ",
                     first->second->pid, ") and (", worker.host, ", pid ", worker.pid,
                     "); every worker needs a HERRING_RANK of its own")};
    }
  }
  return {};
}

void Refusals::add(const std::string& host, const std::string& why) {
  constexpr size_t kMostShown = 3;
  if (count_++ >= kMostShown) return;
  shown_ += concat(shown_.empty() ? "" : ", ", host, " (", why, ")");
}

std::string Refusals::text() const {
  if (count_ == 0) return {};
  return concat("; ", count_, count_ == 1 ? " connection was" : " connections were", " refused: ",
                shown_);
}

std::string list_missing(const std::vector<RegisteredWorker>& workers, uint32_t size,
                         uint32_t dedicated, uint32_t dedicated_servers) {
  std::vector<bool> here(size);
  for (const RegisteredWorker& worker : workers) {
    if (worker.registration.rank < size) here[worker.registration.rank] = true;
  }
  std::vector<uint32_t> ranks;
  for (uint32_t rank = 0; rank < size; ++rank) {
    if (!here[rank]) ranks.push_back(rank);
  }
  std::string missing;
  if (!ranks.empty()) {
    missing = concat(list_ranks(ranks, kMostRanges), " of ", size);
  }
  if (dedicated < dedicated_servers) {
    missing += concat(missing.empty() ? "" : " and ", dedicated_servers - dedicated, " of ",
                      counted(dedicated_servers, "dedicated server"));
  }
  return missing;
}

Result<Cluster> assemble(const std::vector<RegisteredWorker>& workers) {
  Cluster cluster;
  cluster.size = static_cast<uint32_t>(workers.size());
  std::vector<const RegisteredWorker*> by_rank(workers.size());
  for (const RegisteredWorker& worker : workers) by_rank[worker.registration.rank] = &worker;

  std::map<std::string, uint32_t> node_of_host;
  std::vector<std::vector<const RegisteredWorker*>> nodes;
  for (const RegisteredWorker* worker : by_rank) {
    const auto [place, is_new] = node_of_host.emplace(worker->registration.host_id,
                                                      static_cast<uint32_t>(nodes.size()));
    if (is_new) nodes.emplace_back();
    nodes[place->second].push_back(worker);
  }
  cluster.nodes = static_cast<uint32_t>(nodes.size());
  cluster.workers.resize(workers.size());
  for (uint32_t node = 0; node < cluster.nodes; ++node) {
    HERRING_ASSIGN_OR_RETURN(auto& locals, local_ranks(nodes[node]));
    for (size_t i = 0; i < nodes[node].size(); ++i) {
      const RegisteredWorker& worker = *nodes[node][i];
      cluster.workers[worker.registration.rank] = {worker.registration.rank, node,     locals[i],
                                                   worker.host,              worker.pid,
                                                   worker.registration.bus};
    }
  }
  cluster.settings = by_rank.front()->registration.settings;
  return cluster;
}

std::vector<uint32_t> colocated_nodes(uint32_t nodes, uint32_t dedicated_servers) {
  std::vector<uint32_t> all;
  if (dedicated_servers >= nodes) return all;  // includes one node with a dedicated server
  for (uint32_t node = 0; node < nodes; ++node) all.push_back(node);
  return all;
}

bool address_before(std::string_view a, std::string_view b) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  // Takes a run of digits without its leading zeros. The longer of two runs is the larger number.
  const auto number = [&](std::string_view& text) {
    while (text.size() > 1 && text[0] == '0' && digit(text[1])) text.remove_prefix(1);
    size_t length = 0;
    while (length < text.size() && digit(text[length])) ++length;
    const std::string_view run = text.substr(0, length);
    text.remove_prefix(length);
    return run;
  };
  while (!a.empty() && !b.empty()) {
    if (digit(a[0]) && digit(b[0])) {
      const std::string_view left = number(a), right = number(b);
      if (left.size() != right.size()) return left.size() < right.size();
      if (left != right) return left < right;
    } else {
      if (a[0] != b[0]) return a[0] < b[0];
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  return a.empty() && !b.empty();
}

std::vector<uint32_t> number_servers(const std::vector<NamedServer>& servers) {
  std::vector<uint32_t> order(servers.size()), numbers(servers.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const NamedServer &one = servers[a], &other = servers[b];
    if (one.wanted != other.wanted) return one.wanted < other.wanted;
    return address_before(one.address, other.address);
  });
  for (uint32_t i = 0; i < order.size(); ++i) numbers[order[i]] = i;
  return numbers;
}

Result<std::vector<double>> choose_weights(const Settings& settings, uint32_t nodes,
                                           uint32_t dedicated_servers) {
  const auto given = settings.find("server_weights");
  const std::string text = given == settings.end() ? std::string() : given->second;
  auto weights = parse_weights(text);
  if (weights.ok() && weights->empty()) return plan::server_weights(nodes, dedicated_servers);
  const size_t count = dedicated_servers + colocated_nodes(nodes, dedicated_servers).size();
  if (weights.ok() && weights->size() == count) return weights;
  const std::string why = weights.ok() ? concat("it has ", weights->size(), " numbers")
                                       : weights.status().message();
  return Status(Code::kConfiguration,
                concat("server_weights is '", text, "': ", why, "; it needs ", count,
                       " comma-separated numbers, none negative, not all 0: ", dedicated_servers,
                       " for the dedicated servers, then ", count - dedicated_servers,
                       " for the colocated ones"));
}

}  // namespace herring::control
