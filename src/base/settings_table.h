// The one table of settings, for settings.cc. Python reads it through the bindings; the command's
// options and docs/settings.md are made from it.
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
inline constexpr double kMaxDescriptor = 1 << 20;
inline constexpr int64_t kAlignment = 64;  // of plan/plan.h, which this room may not include

inline constexpr std::string_view kLogLevels[] = {"debug", "info", "warning", "error"};
inline constexpr std::string_view kSimdLevels[] = {"auto", "baseline", "avx2", "avx512"};
inline constexpr std::string_view kNodeStages[] = {"auto", "host", "staged", "ipc"};
inline constexpr std::string_view kJaxCalls[] = {"auto", "ffi", "callback"};
inline constexpr std::string_view kTensorflowCalls[] = {"op", "function"};

inline constexpr SettingSpec kSpecs[] = {
    {"rendezvous", kAddress, kLauncher, "",
     "HOST:PORT where workers and servers meet; rank 0 listens there", {0, 300},
     "--rendezvous HOST:PORT"},
    {"rendezvous_fd", kInt, kLauncher, "-1",
     "Of rank 0: an inherited socket that listens at rendezvous; -1: there is none",
     {-1, kMaxDescriptor}},
    {"rank", kInt, kLauncher, "0", "This worker's rank in the job", {0, kMaxRanks - 1}},
    {"size", kInt, kLauncher, "1", "Number of workers in the job", {1, kMaxRanks},
     "-n --workers -np --num-proc N"},
    {"local_rank", kInt, kLauncher, "0", "This worker's rank among the workers of its node",
     {0, kMaxRanks - 1}},
    {"local_size", kInt, kLauncher, "1", "Number of workers on this node", {1, kMaxRanks}},
    {"servers", kInt, kLauncher, "0", "Number of dedicated servers the job waits for at its start",
     {0, kMaxServers}, "--servers S"},
    {"secret_file", kString, kLauncher, "",
     "File with the job's secret, readable by its owner only", {0, 4096}},
    {"secret", kSecret, kLauncher, "",
     "The job's secret in hexadecimal; set by the launcher for its children, prefer secret_file",
     {32, 4096}},
    {"job", kName, kLauncher, "herring",
     "Identifier of the job; other jobs' connections are refused", {1, 64}},
    {"ssh", kString, kLauncher, "ssh",
     "Command by which herring run reaches other hosts, such as 'ssh -F file'", {0, 4096},
     "--ssh-command COMMAND"},
    {"as_horovod", kBool, kLauncher, "false",
     "Whether 'import horovod' finds herring.horovod in what herring run starts", {}, "--horovod"},

    {"host_id", kString, kEnvironment, "",
     "Name that the workers of one node share; empty: boot id, host name and network namespace",
     {0, 255}},
    {"ports", kPorts, kEnvironment, "",
     "Ports that processes of the job listen on, but for rendezvous; empty: any", {0, 16},
     "--ports FIRST-LAST"},
    {"jax_impl", kEnum, kEnvironment, "auto",
     "How compiled JAX programs call: by a native handler, or by a callback of Python",
     {.choices = kJaxCalls}},
    {"tensorflow_impl", kEnum, kEnvironment, "op",
     "How TensorFlow's graphs call: by a native operation, or by a Python function",
     {.choices = kTensorflowCalls}},

    {"interface", kString, kProcess, "",
     "Network interface or address to advertise; empty: the one that reaches the rendezvous",
     {0, 255}, "--interface --network-interface --network-interfaces NAME"},
    {"log_level", kEnum, kProcess, "warning", "Least severe message that is logged",
     {.choices = kLogLevels}},
    {"simd", kEnum, kProcess, "auto",
     "Instruction set of the reductions; every one gives the same bits", {.choices = kSimdLevels}},
    {"node_stage", kEnum, kProcess, "auto",
     "What adds the planned gradients of a node's GPUs: host, its processors; staged, each GPU a "
     "part of them, which it gets through host memory; ipc, GPUs in each other's memory; auto: the "
     "last of these that works",
     {.choices = kNodeStages}},
    {"shm", kBool, kProcess, "true", "Whether the workers of a node meet in shared memory"},
    {"node_threads", kInt, kProcess, "0",
     "Threads of a worker that sum and copy in shared memory, the engine's included; 0: half of "
     "the worker's share of the cores, at most 4",
     {1, 64, true}},
    {"timeout", kSeconds, kProcess, "1800", "Deadline of every wait", {0.01, kWeek}},
    {"warn_after", kSeconds, kProcess, "60",
     "Time after which a wait warns and names the missing ranks; at the start 5 s, if this is more",
     {0.01, kWeek}},
    {"connect_timeout", kSeconds, kProcess, "60",
     "Time within which the rendezvous, workers and servers must be reached", {0.01, kWeek},
     "--start-timeout TIME"},
    {"heartbeat_interval", kSeconds, kProcess, "0.25", "Time between two signs of life",
     {0.01, 3600}},
    {"heartbeat_timeout", kSeconds, kProcess, "1.5",
     "Silence of a peer and of its system after which it is taken for dead", {0.02, kWeek}},

    {"buffer_bytes", kBytes, kJob, "0",
     "Size of a fusion buffer; 0: chosen from the sizes of model and cluster",
     {kKiB, 1024 * kGiB, true}},
    {"segment_bytes", kBytes, kJob, "8192",
     "Unit of summing; about the payload of a jumbo frame", {kKiB, kMiB, false, kAlignment}},
    {"frame_max", kBytes, kJob, "256KiB", "Largest payload of a frame", {kKiB, 64 * kMiB}},
    {"small_bytes", kBytes, kJob, "65536", "An operation up to this size goes whole to one server",
     {0, 64 * kMiB}},
    {"flows", kInt, kJob, "1", "Connections between a worker and a server", {1, 64}},
    {"proxies", kInt, kJob, "0",
     "Event-loop threads of a server; 0: one per 7 Gbit/s of its link (8 if that is not known), at "
     "most 16, half of the cores, and one per node",
     {1, 1024, true}},
    {"server_weights", kWeights, kJob, "",
     "Comma-separated share of each server, dedicated ones first, by address; empty: all links "
     "equally busy",
     {0, kMaxSettingBytes}},
    {"credit", kBytes, kJob, "0",
     "Bytes a flow may have outstanding, fixed, for experiments; 0: controls itself",
     {kKiB, kGiB, true}},
    {"credit_max", kBytes, kJob, "0",
     "Most that self-controlled credit grants one flow; 0: what server_memory allows",
     {kKiB, kGiB, true}},
    {"server_memory", kBytes, kJob, "1GiB",
     "What a server may keep of contributions and results; at least 2 MiB per flow",
     {16 * kMiB, 1024 * kGiB}},
};

}  // namespace herring::settings_table
