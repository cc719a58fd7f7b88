// The table of all settings, included by settings.cc only. Python reads the table through the
// bindings; the command's options and docs/settings.md are generated from it.
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
inline constexpr int64_t kAlignment = 64;  // same as in plan/plan.h, which base/ may not include

inline constexpr std::string_view kLogLevels[] = {"debug", "info", "warning", "error"};
inline constexpr std::string_view kSimdLevels[] = {"auto", "baseline", "avx2", "avx512"};
inline constexpr std::string_view kNodeStages[] = {"auto", "host", "staged", "ipc"};
inline constexpr std::string_view kEncryptions[] = {"off", "psk", "certificates"};
inline constexpr std::string_view kGpuWaits[] = {"auto", "kernels"};
inline constexpr std::string_view kJaxCalls[] = {"auto", "ffi", "callback"};
inline constexpr std::string_view kObjects[] = {"pickle", "json", "none"};
inline constexpr std::string_view kTensorflowCalls[] = {"op", "function"};

inline constexpr SettingSpec kSpecs[] = {
    {"rendezvous", kAddress, kLauncher, "",
     "HOST:PORT where workers and servers meet; rank 0 listens there", {0, 300},
     "--rendezvous HOST:PORT"},
    {"rendezvous_fd", kInt, kLauncher, "-1",
     "Descriptor of an inherited socket that already listens at rendezvous, for rank 0; -1: none",
     {-1, kMaxDescriptor}},
    {"rank", kInt, kLauncher, "0", "This worker's rank in the job", {0, kMaxRanks - 1}},
    {"size", kInt, kLauncher, "1", "Number of workers in the job", {1, kMaxRanks},
     "-n --workers -np --num-proc N"},
    {"local_rank", kInt, kLauncher, "0", "This worker's rank among the workers of its node",
     {0, kMaxRanks - 1}},
    {"local_size", kInt, kLauncher, "1", "Number of workers on this node", {1, kMaxRanks}},
    {"servers", kInt, kLauncher, "0",
     "Number of dedicated servers that the job waits for when it starts", {0, kMaxServers},
     "--servers S"},
    {"server_number", kInt, kLauncher, "-1",
     "Number that a dedicated server asks for, so that the launcher and the job call it the same; "
     "-1: none. Servers that ask for none are numbered by their addresses",
     {-1, kMaxServers - 1}},
    {"secret_file", kString, kLauncher, "",
     "File that contains the job's secret and that only its owner can read", {0, 4096}},
    {"secret", kSecret, kLauncher, "",
     "The job's secret in hexadecimal, which launchers set for their children; prefer secret_file",
     {32, 4096}},
    {"job", kName, kLauncher, "herring",
     "Identifier of the job; connections from other jobs are refused", {1, 64}},
    {"elastic", kAddress, kLauncher, "",
     "HOST:PORT of the lobby of an elastic job, where its processes wait for its generations",
     {0, 300}},
    {"ssh", kString, kLauncher, "ssh",
     "Command that herring run uses to reach other hosts, such as 'ssh -F file'", {0, 4096},
     "--ssh-command COMMAND"},
    {"as_horovod", kBool, kLauncher, "false",
     "Makes 'import horovod' load herring.horovod in processes that herring run starts", {},
     "--horovod"},

    {"host_id", kString, kEnvironment, "",
     "Name that all workers of a node share; empty: boot id, host name and network namespace",
     {0, 255}},
    {"ports", kPorts, kEnvironment, "",
     "Ports that processes of the job listen on, except for the rendezvous; empty: any", {0, 16},
     "--ports FIRST-LAST"},
    {"jax_impl", kEnum, kEnvironment, "auto",
     "How compiled JAX programs call Herring. ffi: a native handler; callback: a Python callback; "
     "auto: ffi on CPUs and on NVIDIA GPUs that can wait, callback elsewhere",
     {.choices = kJaxCalls}},
    {"gpu_waits", kEnum, kEnvironment, "auto",
     "How streams of GPUs wait for words in host memory. auto: by memory operations on streams, or "
     "by kernels on GPUs without them; kernels: by kernels on all GPUs",
     {.choices = kGpuWaits}},
    {"tensorflow_impl", kEnum, kEnvironment, "op",
     "How TensorFlow graphs call Herring. op: a native operation; function: a Python function",
     {.choices = kTensorflowCalls}},

    {"notice", kString, kEnvironment, "",
     "Signal, such as SIGTERM or USR1@30, after which a worker or server of an elastic job leaves "
     "at the next commit; it is ended after the time behind @ (10 s if none is given). Empty: none",
     {0, 64},
     "--notice SIGNAL@TIME"},

    {"interface", kString, kProcess, "",
     "Network interface or address to advertise; empty: the one that reaches the rendezvous",
     {0, 255}, "--interface --network-interface --network-interfaces NAME"},
    {"tls", kEnum, kProcess, "off",
     "Whether TLS 1.3 encrypts the connections between processes, which must all have the same "
     "value. psk: with a key that follows from the job's secret; certificates: with certificates "
     "of both sides", {.choices = kEncryptions}},
    {"tls_certificate", kString, kProcess, "",
     "File with this process's certificate and those between it and tls_ca, for tls=certificates",
     {0, 4096}},
    {"tls_key", kString, kProcess, "",
     "File with the private key of tls_certificate, without a pass phrase", {0, 4096}},
    {"tls_ca", kString, kProcess, "",
     "File with the certificates of the authorities that vouch for the job's processes",
     {0, 4096}},
    {"log_level", kEnum, kProcess, "warning", "Lowest severity of messages that are logged",
     {.choices = kLogLevels}},
    {"simd", kEnum, kProcess, "auto",
     "Instruction set for reductions; all of them give the same bits", {.choices = kSimdLevels}},
    {"node_stage", kEnum, kProcess, "auto",
     "Where planned gradients of a node's GPUs are summed. host: on the CPU; staged: on the GPUs, "
     "which copy through host memory; ipc: on the GPUs, which access each other's memory; auto: "
     "ipc, else staged, else host. With staged and host, cuda-butterfly goes through host memory",
     {.choices = kNodeStages}},
    {"shm", kBool, kProcess, "true",
     "Whether the workers of a node communicate through shared memory"},
    {"node_threads", kInt, kProcess, "0",
     "Threads of a worker that sum and copy in shared memory, including the engine's; 0: half of "
     "the worker's share of the cores, at most 4",
     {1, 64, true}},
    {"timeout", kSeconds, kProcess, "1800", "Longest time that any wait may take", {0.01, kWeek}},
    {"warn_after", kSeconds, kProcess, "60",
     "Time after which a wait warns and names the missing ranks; at most 5 s while the job starts",
     {0.01, kWeek}},
    {"connect_timeout", kSeconds, kProcess, "60",
     "Longest time to reach the rendezvous, the workers and the servers", {0.01, kWeek},
     "--start-timeout TIME"},
    {"report_every", kSeconds, kProcess, "300",
     "Shortest pause between two lines of the log about late ranks and what limits the speed; rank "
     "0 writes them", {0.1, kWeek}},
    {"status", kString, kProcess, "local",
     "Where rank 0 answers herring status. local: on a socket in the user's runtime folder; "
     "HOST:PORT: at that address besides, which beyond the loopback interface asks for the job's "
     "token; off: nowhere", {1, 300}},
    {"label", kName, kProcess, "",
     "The job's name in status and metrics, which rank 0 reads; it may be reused. Empty: job",
     {1, 64}, "--name NAME"},
    {"flight_folder", kString, kProcess, "",
     "Folder in which rank 0 writes the flight record when something fails; empty: herring-UID in "
     "the system's folder for temporary files; off: no record", {0, 4096}},
    {"timeline", kString, kProcess, "",
     "File to which rank 0 writes a Chrome trace of all ranks and servers; empty: none", {0, 4096},
     "--timeline FILE"},
    {"heartbeat_interval", kSeconds, kProcess, "0.25", "Time between two heartbeats of a process",
     {0.01, 3600}},
    {"heartbeat_timeout", kSeconds, kProcess, "1.5",
     "Time after which a process counts as dead if neither it nor its system responds",
     {0.02, kWeek}},

    {"buffer_bytes", kBytes, kJob, "0",
     "Size of a fusion buffer; 0: chosen from the sizes of the model and the cluster",
     {kKiB, 1024 * kGiB, true}},
    {"segment_bytes", kBytes, kJob, "8192",
     "Size of a segment, the unit of summing; the default is about a jumbo frame's payload",
     {kKiB, kMiB, false, kAlignment}},
    {"frame_max", kBytes, kJob, "256KiB", "Largest payload of a frame", {kKiB, 64 * kMiB}},
    {"small_bytes", kBytes, kJob, "65536",
     "Operations of at most this size go as a whole to one server", {0, 64 * kMiB}},
    {"flows", kInt, kJob, "1", "Number of connections between a worker and a server", {1, 64}},
    {"proxies", kInt, kJob, "0",
     "Event-loop threads of a server; 0: one per 7 Gbit/s of its link (8 if its speed is unknown), "
     "but at most 16, half of the cores, and one per node",
     {1, 1024, true}},
    {"server_weights", kWeights, kJob, "",
     "Relative share of each server, separated by commas: dedicated servers first, by their "
     "numbers; empty: shares that keep all links equally busy",
     {0, kMaxSettingBytes}},
    {"credit", kBytes, kJob, "0",
     "Fixed number of bytes that a flow may have outstanding, for experiments; 0: adjusted "
     "automatically",
     {kKiB, kGiB, true}},
    {"credit_max", kBytes, kJob, "0",
     "Largest credit that automatic control grants one flow; 0: as much as server_memory allows, "
     "with failover 1 MiB",
     {kKiB, kGiB, true}},
    {"server_memory", kBytes, kJob, "1GiB",
     "Memory that a server may use for contributions and results; at least 2 MiB per flow",
     {16 * kMiB, 1024 * kGiB}},
    {"objects", kEnum, kJob, "pickle",
     "How programs may send objects (broadcast_object and the like); all ranks must give the same. "
     "pickle: any object, but who receives it trusts all ranks; json: what JSON can carry exactly; "
     "none: not at all",
     {.choices = kObjects}},
    {"observe", kBool, kJob, "true",
     "Whether workers and servers record what they do and report it to rank 0"},
    {"failover", kBool, kJob, "false",
     "Whether a job goes on when a dedicated server dies: others stand in for it, and a new one "
     "may take its place"},
};

}  // namespace herring::settings_table
