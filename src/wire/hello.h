// How two processes of a job recognise each other, with four fixed-size messages:
//
//   client -> server  ClientHello  magic, version, job, role, rank, flow, incarnation, nonce
//   server -> client  ServerHello  magic, version, verdict, nonce
//   client -> server  ClientProof  HMAC(secret, "client" ...)
//   server -> client  Verdict      accepted, or why not; HMAC(secret, "server" ...) for a member
//
// Both MACs cover both hellos, so neither MAC can be replayed or used in another connection. The
// secret itself is never sent. The client proves itself first: a stranger who connects, even with
// the job's name, gets nothing that depends on the secret and could be used to test guesses. Before
// the proof is verified, nothing is allocated and nothing else is read.
//
// If connections are encrypted, all four messages travel inside TLS. In front of TLS, the client
// sends the first bytes of its hello, up to `encryption`. So a process with another version or
// another HERRING_TLS can say so in a ServerHello that is not encrypted, and ends the connection.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace herring::wire {

inline constexpr uint16_t kProtocolVersion = 20;

using Nonce = std::array<uint8_t, 32>;
using Mac = std::array<uint8_t, 32>;
using JobId = std::array<uint8_t, 16>;  // leading bytes of SHA-256 of the job's name

// The values of HERRING_TLS.
enum class Encryption : uint8_t { kOff = 0, kPsk = 1, kCertificates = 2 };
const char* name_of(Encryption encryption);  // "off", "psk", "certificates"

enum class Role : uint8_t { kWorker = 1, kServer = 2 };

enum class Verdict : uint16_t {
  kAccepted = 0,
  kWrongMagic,
  kWrongVersion,
  kWrongJob,
  kWrongSecret,
  kUnexpected,  // right secret, but no process of this role and rank is expected here
  kOtherEncryption,
  kOtherStart,  // right secret, but another start of the job
};
const char* describe(Verdict verdict);

struct Hello {
  Role role = Role::kWorker;
  uint32_t rank = 0;   // of the worker, or index of the server; ~0 while not known
  uint32_t flow = 0;   // which of the K flows between this worker and server
  uint32_t incarnation = 0;  // random number of this start of the job; 0 while not known
};

struct ClientHello {
  uint8_t magic[8];
  uint16_t version;
  uint8_t role;
  uint8_t encryption;
  uint32_t rank;
  uint32_t flow;
  uint32_t incarnation;
  uint8_t job[16];
  uint8_t nonce[32];
};
static_assert(sizeof(ClientHello) == 72);
// What precedes TLS.
inline constexpr size_t kOpeningBytes = offsetof(ClientHello, rank);
static_assert(kOpeningBytes == 12);

// Processes of other versions also read this message to learn the version. Its length is that of
// version 7.
struct ServerHello {
  uint8_t magic[8];
  uint16_t version;
  uint16_t verdict;
  uint8_t encryption;
  uint8_t reserved[3];
  uint8_t nonce[32];
  uint8_t unused[32];
};
static_assert(sizeof(ServerHello) == 80);

struct ClientProof {
  uint8_t mac[32];
};

struct VerdictMessage {
  uint16_t verdict;
  uint8_t reserved[6];
  uint8_t mac[32];  // zero unless the client has proved itself
};
static_assert(sizeof(VerdictMessage) == 40);

JobId job_id(std::string_view job_name);
// Returns what proves to the job's status service that somebody knows the secret, in hexadecimal.
// The secret does not follow from it.
std::string status_token(std::string_view secret);
// Returns what proves the same for one question, which follows from a nonce of the service.
std::string status_proof(std::string_view secret, std::string_view question, const Nonce& nonce);
Nonce random_nonce();
std::string in_hexadecimal(const void* bytes, size_t count);

ClientHello make_client_hello(const Hello& hello, const JobId& job,
                              Encryption encryption = Encryption::kOff);
// Returns whether the first `have` bytes of a message could begin a ClientHello.
bool may_begin_hello(const void* bytes, size_t have);
// Returns what is wrong with the first kOpeningBytes of the hello.
Verdict check_opening(const ClientHello& message, Encryption own = Encryption::kOff);
// Returns what is wrong with the hello, as far as a server can tell without the proof.
Verdict check_client_hello(const ClientHello& message, const JobId& job,
                           Encryption own = Encryption::kOff);
// Returns why `message` was refused. For another protocol version the text has both numbers, for
// another encryption both settings.
std::string describe_refusal(Verdict verdict, const ClientHello& message,
                             Encryption own = Encryption::kOff);
Hello hello_of(const ClientHello& message);
ServerHello make_server_hello(Verdict verdict, Encryption own = Encryption::kOff);
// Returns kAuthentication or kConfiguration with a sentence that names `address`.
Status check_server_hello(const ServerHello& server, const std::string& address,
                          Encryption own = Encryption::kOff);
ClientProof make_client_proof(const ClientHello& client, const ServerHello& server,
                              std::string_view secret);
bool check_client_proof(const ClientHello& client, const ServerHello& server,
                        const ClientProof& proof, std::string_view secret);
VerdictMessage make_verdict(const ClientHello& client, const ServerHello& server, Verdict verdict,
                            std::string_view secret);
// Returns errors like check_server_hello(). A server that accepts must prove the secret.
Status check_verdict(const ClientHello& client, const ServerHello& server,
                     const VerdictMessage& verdict, std::string_view secret,
                     const std::string& address);
Status status_of(Verdict verdict, const std::string& address);

}  // namespace herring::wire
