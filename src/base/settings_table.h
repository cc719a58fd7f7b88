// All settings, for settings.cc. The docs page and what the launcher checks before there is a core
// are written from here, by tools/make_settings_doc.py.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/settings.h"

namespace herring::settings_table {

using enum SettingType;
using enum SettingScope;

inline constexpr double kKiB = 1024;
inline constexpr double kMiB = 1024 * kKiB;
inline constexpr double kGiB = 1024 * kMiB;
inline constexpr double kWeek = 7 * 24 * 3600;
inline constexpr double kMaxRanks = 1 << 20;
inline constexpr double kMaxServers = (1 << 16) - 1;
inline constexpr double kMaxDescriptor = 1 << 20;
// What travels of a setting of the job (control/messages.h).
inline constexpr double kMaxText = 4096;
inline constexpr int64_t kAlignment = 64;  // of plan/plan.h, which this room may not include

inline constexpr std::string_view kLogLevels[] = {"debug", "info", "warning", "error"};
inline constexpr std::string_view kSimdLevels[] = {"auto", "baseline", "avx2", "avx512"};
inline constexpr std::string_view kJaxCalls[] = {"auto", "ffi", "callback"};
inline constexpr std::string_view kTensorflowCalls[] = {"op", "function"};

inline constexpr SettingSpec kSpecs[] = {
    {"rendezvous", kAddress, kEnvironment, "",
     "HOST:PORT where workers and servers meet; rank 0 listens there", 0, 300},
    {"rendezvous_fd", kInt, kEnvironment, "-1",
     "Of rank 0: an inherited socket that listens at rendezvous; -1: there is none", -1,
     kMaxDescriptor},
    {"ports", kPorts, kEnvironment, "",
     "Ports that processes of the job listen on, but for rendezvous; empty: any", 0, 16},
    {"rank", kInt, kEnvironment, "0", "This worker's rank in the job", 0, kMaxRanks - 1},
    {"size", kInt, kEnvironment, "1", "Number of workers in the job", 1, kMaxRanks},
    {"local_rank", kInt, kEnvironment, "0", "This worker's rank among the workers of its node", 0,
     kMaxRanks - 1},
    {"local_size", kInt, kEnvironment, "1", "Number of workers on this node", 1, kMaxRanks},
    {"servers", kInt, kEnvironment, "0",
     "Number of dedicated servers the job waits for at its start", 0, kMaxServers},
    {"secret_file", kString, kEnvironment, "",
     "File with the job's secret, readable by its owner only", 0, 4096},
    {"secret", kHex, kEnvironment, "",
     "The job's secret in hexadecimal; set by the launcher for its children, prefer secret_file",
     32, 4096, false, 1, {}, true},
    {"host_id", kString, kEnvironment, "",
     "Name that the workers of one node share; empty: boot id, host name and network namespace", 0,
     255},
    {"job", kName, kEnvironment, "herring",
     "Identifier of the job; other jobs' connections are refused", 1, 64},
    {"ssh", kString, kEnvironment, "ssh",
     "Command by which herring run reaches other hosts; --ssh-command wins", 0, 4096},
    {"as_horovod", kBool, kEnvironment, "false",
     "Whether herring run lets 'import horovod' find herring.horovod"},
    {"jax_impl", kEnum, kEnvironment, "auto",
     "How compiled JAX programs call: by a native handler, or by a callback of Python", 0, 0, false,
     1, kJaxCalls},
    {"tensorflow_impl", kEnum, kEnvironment, "op",
     "How TensorFlow's graphs call: by a native operation, or by a Python function", 0, 0, false,
     1, kTensorflowCalls},
    {"interface", kString, kProcess, "",
     "Network interface or address to advertise; empty: the one that reaches the rendezvous", 0,
     255},
    {"log_level", kEnum, kProcess, "warning", "Least severe message that is logged", 0, 0, false, 1,
     kLogLevels},
    {"timeout", kSeconds, kProcess, "1800", "Deadline of every wait", 0.01, kWeek},
    {"warn_after", kSeconds, kProcess, "60",
     "Time after which a wait warns and names the missing ranks; at the start 5 s, if this is more",
     0.01, kWeek},
    {"connect_timeout", kSeconds, kProcess, "60",
     "Time within which the rendezvous, workers and servers must be reached", 0.01, kWeek},
    {"heartbeat_interval", kSeconds, kProcess, "0.25", "Time between two signs of life", 0.01,
     3600},
    {"heartbeat_timeout", kSeconds, kProcess, "1.5",
     "Silence of a peer and of its system after which it is taken for dead", 0.02, kWeek},
    {"proxies", kInt, kJob, "0",
     "Event-loop threads of a server; 0: one per 7 Gbit/s of its link (8 if that is not known), at "
     "most 16, half of the cores, and one per node",
     1, 1024, true},
    {"flows", kInt, kJob, "1", "Connections between a worker and a server", 1, 64},
    {"segment_bytes", kBytes, kJob, "8192",
     "Unit of summing; about the payload of a jumbo frame", kKiB, kMiB, false, kAlignment},
    {"buffer_bytes", kBytes, kJob, "0",
     "Size of a fusion buffer; 0: chosen from the sizes of model and cluster", kKiB, 1024 * kGiB,
     true},
    {"credit", kBytes, kJob, "0",
     "Bytes a flow may have outstanding, fixed, for experiments; 0: controls itself", kKiB, kGiB,
     true},
    {"credit_max", kBytes, kJob, "0",
     "Most that self-controlled credit grants one flow; 0: what server_memory allows", kKiB, kGiB,
     true},
    {"server_memory", kBytes, kJob, "1GiB",
     "What a server may keep of contributions and results; at least 2 MiB per flow", 16 * kMiB,
     1024 * kGiB},
    {"frame_max", kBytes, kJob, "256KiB", "Largest payload of a frame", kKiB, 64 * kMiB},
    {"small_bytes", kBytes, kJob, "65536", "An operation up to this size goes whole to one server",
     0, 64 * kMiB},
    {"simd", kEnum, kProcess, "auto",
     "Instruction set of the reductions; every one gives the same bits", 0, 0, false, 1,
     kSimdLevels},
    {"shm", kBool, kProcess, "true", "Whether the workers of a node meet in shared memory"},
    {"server_weights", kWeights, kJob, "",
     "Comma-separated share of each server, dedicated ones first, by address; empty: all links "
     "equally busy",
     0, kMaxText},
};

}  // namespace herring::settings_table
