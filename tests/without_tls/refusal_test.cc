// Compiled together with a tls.cc for builds without libssl.
#include <gtest/gtest.h>

#include "transport/tcp/tls.h"

namespace herring::transport::tcp {
namespace {

TEST(WithoutTls, OnlyTheSettingIsRefused) {
  const auto off = Tls::make({wire::Encryption::kOff}, "a secret");
  ASSERT_TRUE(off.ok()) << off.status().to_string();
  EXPECT_EQ(*off, nullptr);
  for (const auto encryption : {wire::Encryption::kPsk, wire::Encryption::kCertificates}) {
    const Status refused = Tls::make({encryption}, "a secret").status();
    EXPECT_EQ(refused.code(), Code::kConfiguration);
    EXPECT_EQ(refused.message().find(concat("HERRING_TLS=", wire::name_of(encryption),
                                            " is not possible: this build of Herring has no TLS")),
              0u)
        << refused.message();
  }
}

}  // namespace
}  // namespace herring::transport::tcp
