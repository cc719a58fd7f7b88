// Certificates for tests, in a folder that is removed at the end.
#pragma once

#include <gtest/gtest.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "transport/tcp/tls.h"

namespace herring::transport::tcp::testing {

class Certificates {
 public:
  Certificates() {
    char name[] = "/tmp/herring-test-XXXXXX";
    EXPECT_NE(mkdtemp(name), nullptr);
    folder_ = name;
  }
  ~Certificates() { std::filesystem::remove_all(folder_); }

  struct Signed {
    std::unique_ptr<X509, decltype(&X509_free)> certificate{nullptr, X509_free};
    std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key{nullptr, EVP_PKEY_free};
  };

  // Makes an authority and writes its certificate to NAME.pem.
  Signed authority(const std::string& name) { return make(name, nullptr); }
  // Makes a process's certificate (NAME.pem) and key (NAME.key).
  Signed member(const std::string& name, const Signed& by) { return make(name, &by); }
  std::string file(const std::string& name) const { return folder_ + "/" + name; }
  TlsOptions options(const std::string& member, const std::string& authority) const {
    return {wire::Encryption::kCertificates, file(member + ".pem"), file(member + ".key"),
            file(authority + ".pem")};
  }

 private:
  Signed make(const std::string& name, const Signed* by) {
    Signed made;
    made.key.reset(EVP_EC_gen("P-256"));
    made.certificate.reset(X509_new());
    X509* const certificate = made.certificate.get();
    X509_set_version(certificate, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), ++serial_);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -60);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, made.key.get());
    X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
    const X509* issuer = by == nullptr ? certificate : by->certificate.get();
    X509_set_issuer_name(certificate, X509_get_subject_name(issuer));
    if (by == nullptr) {
      X509_EXTENSION* const root =
          X509V3_EXT_conf_nid(nullptr, nullptr, NID_basic_constraints, "critical,CA:TRUE");
      X509_add_ext(certificate, root, -1);
      X509_EXTENSION_free(root);
    }
    EXPECT_GT(X509_sign(certificate, by == nullptr ? made.key.get() : by->key.get(), EVP_sha256()),
              0);
    FILE* file = fopen((folder_ + "/" + name + ".pem").c_str(), "w");
    EXPECT_EQ(PEM_write_X509(file, certificate), 1);
    fclose(file);
    file = fopen((folder_ + "/" + name + ".key").c_str(), "w");
    EXPECT_EQ(PEM_write_PrivateKey(file, made.key.get(), nullptr, nullptr, 0, nullptr, nullptr), 1);
    fclose(file);
    return made;
  }

  std::string folder_;
  int serial_ = 0;
};

}  // namespace herring::transport::tcp::testing
