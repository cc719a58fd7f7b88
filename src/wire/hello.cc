#include "wire/hello.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cstring>

namespace herring::wire {
namespace {

constexpr uint8_t kMagic[8] = {'H', 'R', 'R', 'I', 'N', 'G', '\r', '\n'};

Mac mac(std::string_view text, std::string_view secret) {
  Mac out{};
  unsigned length = 0;
  HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
       reinterpret_cast<const uint8_t*>(text.data()), text.size(), out.data(), &length);
  return out;
}

Mac mac(std::string_view label, const ClientHello& client, const ServerHello& server,
        std::string_view secret) {
  std::string text(label);
  text.append(reinterpret_cast<const char*>(&client), sizeof(client));
  text.append(reinterpret_cast<const char*>(&server), sizeof(server));
  return mac(text, secret);
}

void fill_random(uint8_t* out, size_t bytes) {
  if (RAND_bytes(out, static_cast<int>(bytes)) != 1) abort();  // without entropy, nothing is safe
}

std::string both_settings(uint8_t other, Encryption own) {
  return concat("HERRING_TLS=", name_of(static_cast<Encryption>(other)),
                ", but this process has HERRING_TLS=", name_of(own));
}

}  // namespace

const char* name_of(Encryption encryption) {
  switch (encryption) {
    case Encryption::kOff: return "off";
    case Encryption::kPsk: return "psk";
    case Encryption::kCertificates: return "certificates";
  }
  return "an unknown value";
}

const char* describe(Verdict verdict) {
  switch (verdict) {
    case Verdict::kAccepted: return "accepted";
    case Verdict::kWrongMagic: return "not a Herring peer";
    case Verdict::kWrongVersion: return "another protocol version";
    case Verdict::kWrongJob: return "another job (HERRING_JOB differs)";
    case Verdict::kWrongSecret: return "the job's secret differs (HERRING_SECRET_FILE)";
    case Verdict::kUnexpected:
      return "this rank or server is not expected there, or is already connected";
    case Verdict::kOtherEncryption: return "HERRING_TLS differs";
    case Verdict::kOtherStart:
      return "another start of the same job listens there; end it, or give each job that runs at "
             "the same time a HERRING_JOB or a HERRING_SECRET_FILE of its own";
  }
  return "an unknown verdict";
}

JobId job_id(std::string_view job_name) {
  uint8_t digest[EVP_MAX_MD_SIZE];
  unsigned length = 0;
  EVP_Digest(job_name.data(), job_name.size(), digest, &length, EVP_sha256(), nullptr);
  JobId id;
  std::memcpy(id.data(), digest, id.size());
  return id;
}

std::string status_token(std::string_view secret) {
  const Mac out = mac("herring status", secret);
  return in_hexadecimal(out.data(), out.size());
}

std::string status_proof(std::string_view secret, std::string_view question, const Nonce& nonce) {
  std::string text("herring-status-1 ");
  text.append(question).append("\n").append(reinterpret_cast<const char*>(nonce.data()),
                                            nonce.size());
  const Mac out = mac(text, secret);
  return in_hexadecimal(out.data(), out.size());
}

Nonce random_nonce() {
  Nonce nonce;
  fill_random(nonce.data(), nonce.size());
  return nonce;
}

std::string in_hexadecimal(const void* bytes, size_t count) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    const uint8_t byte = static_cast<const uint8_t*>(bytes)[i];
    text += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return text;
}

ClientHello make_client_hello(const Hello& hello, const JobId& job, Encryption encryption) {
  ClientHello message{};
  std::memcpy(message.magic, kMagic, sizeof(kMagic));
  message.version = kProtocolVersion;
  message.role = static_cast<uint8_t>(hello.role);
  message.encryption = static_cast<uint8_t>(encryption);
  message.rank = hello.rank;
  message.flow = hello.flow;
  message.incarnation = hello.incarnation;
  std::memcpy(message.job, job.data(), job.size());
  fill_random(message.nonce, sizeof(message.nonce));
  return message;
}

bool may_begin_hello(const void* bytes, size_t have) {
  return have == 0 || std::memcmp(bytes, kMagic, std::min(have, sizeof(kMagic))) == 0;
}

Verdict check_opening(const ClientHello& message, Encryption own) {
  if (std::memcmp(message.magic, kMagic, sizeof(kMagic)) != 0) return Verdict::kWrongMagic;
  if (message.version != kProtocolVersion) return Verdict::kWrongVersion;
  const bool same = message.encryption == static_cast<uint8_t>(own);
  return same ? Verdict::kAccepted : Verdict::kOtherEncryption;
}

Verdict check_client_hello(const ClientHello& message, const JobId& job, Encryption own) {
  const Verdict opening = check_opening(message, own);
  if (opening != Verdict::kAccepted) return opening;
  if (std::memcmp(message.job, job.data(), job.size()) != 0) return Verdict::kWrongJob;
  if (message.role != static_cast<uint8_t>(Role::kWorker) &&
      message.role != static_cast<uint8_t>(Role::kServer)) {
    return Verdict::kUnexpected;
  }
  return Verdict::kAccepted;
}

std::string describe_refusal(Verdict verdict, const ClientHello& message, Encryption own) {
  if (verdict == Verdict::kOtherEncryption) {
    return concat(describe(verdict), ": it has ", both_settings(message.encryption, own));
  }
  if (verdict != Verdict::kWrongVersion) return describe(verdict);
  return concat(describe(verdict), ": it speaks version ", message.version,
                ", but this process speaks version ", kProtocolVersion);
}

Hello hello_of(const ClientHello& message) {
  return {static_cast<Role>(message.role), message.rank, message.flow, message.incarnation};
}

ServerHello make_server_hello(Verdict verdict, Encryption own) {
  ServerHello message{};
  std::memcpy(message.magic, kMagic, sizeof(kMagic));
  message.version = kProtocolVersion;
  message.verdict = static_cast<uint16_t>(verdict);
  message.encryption = static_cast<uint8_t>(own);
  fill_random(message.nonce, sizeof(message.nonce));
  return message;
}

Status check_server_hello(const ServerHello& server, const std::string& address, Encryption own) {
  if (std::memcmp(server.magic, kMagic, sizeof(kMagic)) != 0) {
    return {Code::kConfiguration, concat(address, " does not speak Herring's protocol")};
  }
  if (server.version != kProtocolVersion) {
    return {Code::kConfiguration,
            concat(address, " speaks protocol version ", server.version,
                   ", but this process speaks version ", kProtocolVersion,
                   "; install the same Herring release everywhere")};
  }
  if (server.encryption != static_cast<uint8_t>(own)) {
    return {Code::kConfiguration,
            concat(address, " has ", both_settings(server.encryption, own),
                   "; set HERRING_TLS to the same value for all processes of the job")};
  }
  return status_of(static_cast<Verdict>(server.verdict), address);
}

ClientProof make_client_proof(const ClientHello& client, const ServerHello& server,
                              std::string_view secret) {
  ClientProof proof{};
  const Mac value = mac("herring client", client, server, secret);
  std::memcpy(proof.mac, value.data(), value.size());
  return proof;
}

bool check_client_proof(const ClientHello& client, const ServerHello& server,
                        const ClientProof& proof, std::string_view secret) {
  const Mac expected = mac("herring client", client, server, secret);
  return CRYPTO_memcmp(expected.data(), proof.mac, expected.size()) == 0;
}

VerdictMessage make_verdict(const ClientHello& client, const ServerHello& server, Verdict verdict,
                            std::string_view secret) {
  VerdictMessage message{};
  message.verdict = static_cast<uint16_t>(verdict);
  if (verdict == Verdict::kWrongSecret) return message;
  const Mac proof = mac("herring server", client, server, secret);
  std::memcpy(message.mac, proof.data(), proof.size());
  return message;
}

Status check_verdict(const ClientHello& client, const ServerHello& server,
                     const VerdictMessage& verdict, std::string_view secret,
                     const std::string& address) {
  HERRING_RETURN_IF_ERROR(status_of(static_cast<Verdict>(verdict.verdict), address));
  const Mac expected = mac("herring server", client, server, secret);
  if (CRYPTO_memcmp(expected.data(), verdict.mac, expected.size()) == 0) return {};
  return {Code::kAuthentication,
          concat(address, " does not know this job's secret; use the same HERRING_SECRET_FILE on "
                          "every host")};
}

Status status_of(Verdict verdict, const std::string& address) {
  if (verdict == Verdict::kAccepted) return {};
  const Code code =
      verdict == Verdict::kWrongSecret ? Code::kAuthentication : Code::kConfiguration;
  return {code, concat(address, " refused the connection: ", describe(verdict))};
}

}  // namespace herring::wire
