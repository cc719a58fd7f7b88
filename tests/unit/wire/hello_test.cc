#include "wire/hello.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/unit/text.h"

namespace herring::wire {
namespace {

const char* const kSecret = "secret";

TEST(Hello, SurvivesTheWay) {
  const Hello hello{Role::kServer, 5, 2, 9};
  const ClientHello message = make_client_hello(hello, job_id("a"));
  EXPECT_EQ(check_client_hello(message, job_id("a")), Verdict::kAccepted);
  const Hello seen = hello_of(message);
  EXPECT_EQ(seen.role, hello.role);
  EXPECT_EQ(seen.rank, hello.rank);
  EXPECT_EQ(seen.flow, hello.flow);
  EXPECT_EQ(seen.incarnation, hello.incarnation);
  EXPECT_EQ(message.encryption, 0);
}

TEST(Hello, NoncesAreFresh) {
  const ClientHello a = make_client_hello({}, {}), b = make_client_hello({}, {});
  EXPECT_NE(std::memcmp(a.nonce, b.nonce, sizeof(a.nonce)), 0);
  const ServerHello c = make_server_hello(Verdict::kAccepted);
  const ServerHello d = make_server_hello(Verdict::kAccepted);
  EXPECT_NE(std::memcmp(c.nonce, d.nonce, sizeof(c.nonce)), 0);
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

// Anybody who connects sees both hellos, so neither may help to test a guess of the secret.
TEST(Hello, NothingThatDependsOnTheSecretComesBeforeTheClientsProof) {
  const ClientHello client = make_client_hello({}, job_id("job"));
  const ServerHello server = make_server_hello(Verdict::kAccepted);
  const uint8_t none[32] = {};
  EXPECT_EQ(std::memcmp(server.unused, none, sizeof(none)), 0);
  const VerdictMessage refusal = make_verdict(client, server, Verdict::kWrongSecret, kSecret);
  EXPECT_EQ(std::memcmp(refusal.mac, none, sizeof(none)), 0);
}

// Every bit of both hellos is covered by both proofs.
TEST(Hello, NoBitOfTheHellosCanBeChanged) {
  const JobId job = job_id("job");
  const ClientHello client = make_client_hello({Role::kWorker, 1, 0, 1}, job);
  const ServerHello server = make_server_hello(Verdict::kAccepted);
  const ClientProof proof = make_client_proof(client, server, kSecret);
  const VerdictMessage verdict = make_verdict(client, server, Verdict::kAccepted, kSecret);
  EXPECT_TRUE(check_server_hello(server, "x").ok());
  EXPECT_TRUE(check_client_proof(client, server, proof, kSecret));
  EXPECT_TRUE(check_verdict(client, server, verdict, kSecret, "x").ok());
  for (size_t bit = 0; bit < sizeof(client) * 8; ++bit) {
    ClientHello changed = client;
    reinterpret_cast<uint8_t*>(&changed)[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
    EXPECT_FALSE(check_verdict(changed, server, verdict, kSecret, "x").ok()) << bit;
    EXPECT_FALSE(check_client_proof(changed, server, proof, kSecret)) << bit;
  }
  for (size_t byte = 0; byte < sizeof(server); ++byte) {
    ServerHello changed = server;
    reinterpret_cast<uint8_t*>(&changed)[byte] ^= 1;
    EXPECT_FALSE(check_verdict(client, changed, verdict, kSecret, "x").ok()) << byte;
    EXPECT_FALSE(check_client_proof(client, changed, proof, kSecret)) << byte;
  }
  for (size_t byte = 0; byte < sizeof(proof); ++byte) {
    ClientProof changed = proof;
    changed.mac[byte] ^= 0x80;
    EXPECT_FALSE(check_client_proof(client, server, changed, kSecret));
    VerdictMessage other = verdict;
    other.mac[byte] ^= 0x80;
    EXPECT_FALSE(check_verdict(client, server, other, kSecret, "x").ok());
  }
}

TEST(Hello, TheProofsNeedTheSecretAndAreNotEachOther) {
  const ClientHello client = make_client_hello({}, {});
  const ServerHello server = make_server_hello(Verdict::kAccepted);
  const VerdictMessage verdict = make_verdict(client, server, Verdict::kAccepted, kSecret);
  EXPECT_EQ(check_verdict(client, server, verdict, "another", "10.0.0.1:5").code(),
            Code::kAuthentication);
  const ClientProof proof = make_client_proof(client, server, kSecret);
  EXPECT_NE(std::memcmp(proof.mac, verdict.mac, sizeof(proof.mac)), 0);
  EXPECT_FALSE(check_client_proof(client, server, proof, "another"));
  EXPECT_FALSE(check_client_proof(client, server, proof, ""));
}

TEST(Hello, EveryRefusalHasItsCodeAndNamesTheAddress) {
  const ClientHello client = make_client_hello({}, {});
  const auto expect = [](const Status& status, Code code, const std::string& part) {
    EXPECT_EQ(status.code(), code) << status.to_string();
    EXPECT_TRUE(contains(status.message(), "10.0.0.1:5")) << status.message();
    EXPECT_TRUE(contains(status.message(), part)) << status.message();
  };
  ServerHello server = make_server_hello(Verdict::kAccepted);
  server.magic[0] = 'x';
  expect(check_server_hello(server, "10.0.0.1:5"), Code::kConfiguration, "does not speak");
  server = make_server_hello(Verdict::kAccepted);
  server.version = 77;
  expect(check_server_hello(server, "10.0.0.1:5"), Code::kConfiguration, "version 77");
  const struct {
    Verdict verdict;
    Code code;
    const char* part;
  } cases[] = {
      {Verdict::kWrongJob, Code::kConfiguration, "HERRING_JOB"},
      {Verdict::kUnexpected, Code::kConfiguration, "not expected"},
      {Verdict::kWrongSecret, Code::kAuthentication, "HERRING_SECRET_FILE"},
      {static_cast<Verdict>(999), Code::kConfiguration, "unknown verdict"},
  };
  for (const auto& one : cases) {
    server = make_server_hello(one.verdict);
    expect(check_server_hello(server, "10.0.0.1:5"), one.code, one.part);
    const VerdictMessage message = make_verdict(client, server, one.verdict, kSecret);
    expect(check_verdict(client, server, message, kSecret, "10.0.0.1:5"), one.code, one.part);
  }
  VerdictMessage forged = make_verdict(client, server, Verdict::kWrongSecret, kSecret);
  forged.verdict = static_cast<uint16_t>(Verdict::kAccepted);
  expect(check_verdict(client, server, forged, kSecret, "10.0.0.1:5"), Code::kAuthentication,
         "HERRING_SECRET_FILE");
}

TEST(Hello, WrongVersionsAreSeenBeforeTheJob) {
  ClientHello message = make_client_hello({}, job_id("a"));
  message.version = kProtocolVersion + 1;
  EXPECT_EQ(check_client_hello(message, job_id("b")), Verdict::kWrongVersion);
  EXPECT_EQ(describe_refusal(Verdict::kWrongVersion, message),
            concat("another protocol version: it speaks version ", kProtocolVersion + 1,
                   ", but this process speaks version ", kProtocolVersion));
  message.magic[7] = 0;
  EXPECT_EQ(check_client_hello(message, job_id("b")), Verdict::kWrongMagic);
  message = make_client_hello({}, job_id("a"));
  message.role = 0;
  EXPECT_EQ(check_client_hello(message, job_id("a")), Verdict::kUnexpected);
}

}  // namespace
}  // namespace herring::wire
