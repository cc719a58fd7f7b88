// Who is in the job, as far as messages for people need it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace herring::observe {

struct Process {
  bool is_server = false;
  uint32_t index = 0;  // rank, or number of the server

  friend auto operator<=>(const Process&, const Process&) = default;
};

struct Roster {
  struct Rank {
    std::string host;     // its name, or its address if that is not known
    uint32_t node = 0;
    int64_t pid = 0;
    std::string address = {};
  };
  struct Server {
    std::string host;     // likewise
    bool dedicated = true;
    uint32_t node = 0;   // of a colocated server
    int64_t pid = 0;
    double weight = 0;   // its share of the bytes, 0 to 1
    std::string address = {};
  };

  std::string job;           // what people call it; later jobs may have the same name
  std::string id;            // the name that keeps it apart from other jobs
  std::string version;       // of Herring; empty if not known
  std::string slurm_job_id;  // empty outside of Slurm
  uint32_t nodes = 1;
  bool failover = false;     // whether others stand in for servers that are lost
  std::vector<Rank> ranks;
  std::vector<Server> servers;

  uint32_t dedicated() const {
    uint32_t count = 0;
    for (const Server& server : servers) count += server.dedicated ? 1 : 0;
    return count;
  }
  // Returns whether this server is part of the process of a rank, which is judged instead.
  bool is_in_rank(uint32_t server) const;
  // "rank 3 (host1)" or "server 0 (host2)".
  std::string name(const Process& process) const;
};

// "rank 3 (host1)", "ranks 3 (host1) and 5 (host2)", "ranks 3 (host1), 4 (host1) and 7 others".
std::string name_ranks(const Roster& roster, const std::vector<uint32_t>& ranks);

}  // namespace herring::observe
