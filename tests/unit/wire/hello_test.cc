#include "wire/hello.h"

#include <gtest/gtest.h>

#include <cstring>

namespace herring::wire {
namespace {

const char* const kSecret = "secret";

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Hello, SurvivesTheWay) {
  const Hello hello{Role::kServer, 5, 2, 9};
  const ClientHello message = make_client_hello(hello, job_id("a"));
  EXPECT_EQ(check_client_hello(message, job_id("a")), Verdict::kAccepted);
  const Hello seen = hello_of(message);
  EXPECT_EQ(seen.role, hello.role);
  EXPECT_EQ(seen.rank, hello.rank);
  EXPECT_EQ(seen.flow, hello.flow);
  EXPECT_EQ(seen.incarnation, hello.incarnation);
  EXPECT_EQ(message.reserved, 0);
}

TEST(Hello, NoncesAreFresh) {
  const ClientHello a = make_client_hello({}, {}), b = make_client_hello({}, {});
  EXPECT_NE(std::memcmp(a.nonce, b.nonce, sizeof(a.nonce)), 0);
  const ServerHello c = make_server_hello(a, kSecret, Verdict::kAccepted);
  const ServerHello d = make_server_hello(a, kSecret, Verdict::kAccepted);
  EXPECT_NE(std::memcmp(c.nonce, d.nonce, sizeof(c.nonce)), 0);
  EXPECT_NE(std::memcmp(c.mac, d.mac, sizeof(c.mac)), 0);
}

TEST(Hello, JobsDiffer) {
  EXPECT_EQ(job_id("a"), job_id("a"));
  EXPECT_NE(job_id("a"), job_id("b"));
  const ClientHello message = make_client_hello({}, job_id("a"));
  EXPECT_EQ(check_client_hello(message, job_id("b")), Verdict::kWrongJob);
}

TEST(Hello, APrefixIsKnownByItsMagic) {
  const ClientHello message = make_client_hello({}, {});
  std::string bytes(reinterpret_cast<const char*>(&message), sizeof(message));
  for (size_t n = 0; n <= bytes.size(); ++n) EXPECT_TRUE(may_begin_hello(bytes.data(), n));
  bytes[2] ^= 1;
  EXPECT_TRUE(may_begin_hello(bytes.data(), 2));
  EXPECT_FALSE(may_begin_hello(bytes.data(), 3));
  EXPECT_FALSE(may_begin_hello(bytes.data(), 72));
}

// Every bit of both hellos is covered by both proofs (or checked by itself).
TEST(Hello, NoBitOfTheHellosCanBeChanged) {
  const JobId job = job_id("job");
  const ClientHello client = make_client_hello({Role::kWorker, 1, 0, 1}, job);
  const ServerHello server = make_server_hello(client, kSecret, Verdict::kAccepted);
  const ClientProof proof = make_client_proof(client, server, kSecret);
  EXPECT_TRUE(check_server_hello(client, server, kSecret, "x").ok());
  EXPECT_TRUE(check_client_proof(client, server, proof, kSecret));
  for (size_t bit = 0; bit < sizeof(client) * 8; ++bit) {
    ClientHello changed = client;
    reinterpret_cast<uint8_t*>(&changed)[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
    EXPECT_FALSE(check_server_hello(changed, server, kSecret, "x").ok()) << bit;
    EXPECT_FALSE(check_client_proof(changed, server, proof, kSecret)) << bit;
  }
  for (size_t byte = offsetof(ServerHello, nonce); byte < sizeof(server); ++byte) {
    ServerHello changed = server;
    reinterpret_cast<uint8_t*>(&changed)[byte] ^= 1;
    EXPECT_FALSE(check_server_hello(client, changed, kSecret, "x").ok()) << byte;
    if (byte < offsetof(ServerHello, mac)) {
      EXPECT_FALSE(check_client_proof(client, changed, proof, kSecret)) << byte;
    }
  }
  for (size_t byte = 0; byte < sizeof(proof); ++byte) {
    ClientProof changed = proof;
    changed.mac[byte] ^= 0x80;
    EXPECT_FALSE(check_client_proof(client, server, changed, kSecret));
  }
}

TEST(Hello, TheProofsNeedTheSecretAndAreNotEachOther) {
  const ClientHello client = make_client_hello({}, {});
  const ServerHello server = make_server_hello(client, kSecret, Verdict::kAccepted);
  EXPECT_EQ(check_server_hello(client, server, "another", "10.0.0.1:5").code(),
            Code::kAuthentication);
  const ClientProof proof = make_client_proof(client, server, kSecret);
  EXPECT_NE(std::memcmp(proof.mac, server.mac, sizeof(proof.mac)), 0);
  EXPECT_FALSE(check_client_proof(client, server, proof, "another"));
  EXPECT_FALSE(check_client_proof(client, server, proof, ""));
}

TEST(Hello, EveryRefusalHasItsCodeAndNamesTheAddress) {
  const ClientHello client = make_client_hello({}, {});
  const auto refused = [&](auto change, Code code, const std::string& part) {
    ServerHello server = make_server_hello(client, kSecret, Verdict::kAccepted);
    change(server);
    const Status status = check_server_hello(client, server, kSecret, "10.0.0.1:5");
    EXPECT_EQ(status.code(), code) << status.to_string();
    EXPECT_TRUE(contains(status.message(), "10.0.0.1:5")) << status.message();
    EXPECT_TRUE(contains(status.message(), part)) << status.message();
  };
  const auto verdict = [](Verdict v) {
    return [v](ServerHello& server) { server.verdict = static_cast<uint16_t>(v); };
  };
  refused([](ServerHello& s) { s.magic[0] = 'x'; }, Code::kConfiguration, "does not speak");
  refused([](ServerHello& s) { s.version = 77; }, Code::kConfiguration, "version 77");
  refused(verdict(Verdict::kWrongJob), Code::kConfiguration, "HERRING_JOB");
  refused(verdict(Verdict::kUnexpected), Code::kConfiguration, "not expected");
  refused(verdict(Verdict::kWrongSecret), Code::kAuthentication, "HERRING_SECRET_FILE");
  refused(verdict(static_cast<Verdict>(999)), Code::kConfiguration, "unknown verdict");
  refused([](ServerHello& s) { s.mac[0] ^= 1; }, Code::kAuthentication, "HERRING_SECRET_FILE");
}

TEST(Hello, WrongVersionsAreSeenBeforeTheJob) {
  ClientHello message = make_client_hello({}, job_id("a"));
  message.version = kProtocolVersion + 1;
  EXPECT_EQ(check_client_hello(message, job_id("b")), Verdict::kWrongVersion);
  message.magic[7] = 0;
  EXPECT_EQ(check_client_hello(message, job_id("b")), Verdict::kWrongMagic);
  message = make_client_hello({}, job_id("a"));
  message.role = 0;
  EXPECT_EQ(check_client_hello(message, job_id("a")), Verdict::kUnexpected);
}

}  // namespace
}  // namespace herring::wire
