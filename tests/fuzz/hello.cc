// The first bytes a stranger sends: no input without the secret may be accepted.
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
  const ServerHello answer = make_server_hello(client, secret, verdict);
  take(proof);
  if (check_client_proof(client, answer, proof, secret)) std::abort();
  take(server);
  if (check_server_hello(client, server, secret, "peer").ok()) std::abort();
  (void)status_of(static_cast<Verdict>(server.verdict), "peer");
  return 0;
}

std::vector<std::string> seeds() {
  const ClientHello client = make_client_hello({}, job_id("job"));
  const ServerHello server = make_server_hello(client, "another secret", Verdict::kAccepted);
  const ClientProof proof = make_client_proof(client, server, "another secret");
  std::string all(reinterpret_cast<const char*>(&client), sizeof(client));
  all.append(reinterpret_cast<const char*>(&proof), sizeof(proof));
  all.append(reinterpret_cast<const char*>(&server), sizeof(server));
  return {all, all.substr(0, sizeof(client))};
}
