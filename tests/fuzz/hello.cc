// Fuzzes the first bytes that a stranger sends: no input without the secret may be accepted.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "wire/hello.h"

using namespace herring::wire;  // NOLINT: a fuzz target

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const JobId job = job_id("job");
  static const std::string secret = "what the input does not know";
  ClientHello client{};
  ServerHello server{};
  ClientProof proof{};
  if (!may_begin_hello(data, std::min(size, sizeof(client)))) return 0;
  const auto take = [&](auto& message) {
    const size_t n = std::min(size, sizeof(message));
    if (n > 0) std::memcpy(&message, data, n);
    data += n;
    size -= n;
  };
  take(client);
  const Verdict verdict = check_client_hello(client, job);
  (void)describe(verdict);
  (void)hello_of(client);
  const ServerHello answer = make_server_hello(verdict);
  take(proof);
  if (check_client_proof(client, answer, proof, secret)) std::abort();
  take(server);
  (void)check_server_hello(server, "peer");
  VerdictMessage last{};
  take(last);
  if (check_verdict(client, server, last, secret, "peer").ok()) std::abort();
  return 0;
}

std::vector<std::string> seeds() {
  const ClientHello client = make_client_hello({}, job_id("job"));
  const ServerHello server = make_server_hello(Verdict::kAccepted);
  const ClientProof proof = make_client_proof(client, server, "another secret");
  const VerdictMessage last = make_verdict(client, server, Verdict::kAccepted, "another secret");
  std::string all(reinterpret_cast<const char*>(&client), sizeof(client));
  all.append(reinterpret_cast<const char*>(&proof), sizeof(proof));
  all.append(reinterpret_cast<const char*>(&server), sizeof(server));
  all.append(reinterpret_cast<const char*>(&last), sizeof(last));
  return {all, all.substr(0, sizeof(client))};
}
