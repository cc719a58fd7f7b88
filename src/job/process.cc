#include "job/process.h"

#include "base/log.h"
#include "reduce/reduce.h"
#include "transport/tcp/socket.h"
#include "transport/tcp/tls.h"

namespace herring::job {

void apply_process_settings(const Settings& settings) {
  set_log_level(settings.get_string("log_level"));
  if (const std::string& simd = settings.get_string("simd"); simd != "auto") {
    reduce::set_simd_level(simd.c_str());
  }
  transport::tcp::set_listening_ports(*parse_ports(settings.get_string("ports")));
}

Result<transport::Credentials> credentials_of(const std::string& secret,
                                              const Settings& settings) {
  using wire::Encryption;
  transport::tcp::TlsOptions tls;
  for (const Encryption one : {Encryption::kPsk, Encryption::kCertificates}) {
    if (settings.get_string("tls") == wire::name_of(one)) tls.encryption = one;
  }
  tls.certificate = settings.get_string("tls_certificate");
  tls.key = settings.get_string("tls_key");
  tls.authorities = settings.get_string("tls_ca");
  HERRING_ASSIGN_OR_RETURN(auto& made, transport::tcp::Tls::make(std::move(tls), secret));
  return transport::Credentials{secret, wire::job_id(settings.get_string("job")),
                                std::move(made)};
}

Result<control::Member::Options> member_options(const std::string& rendezvous,
                                                const std::string& secret,
                                                const Settings& settings) {
  auto address = transport::parse_address(rendezvous, "HERRING_RENDEZVOUS");
  if (!address.ok()) return address.status();
  control::Member::Options options(settings);
  if (const std::string& name = settings.get_string("interface"); !name.empty()) {
    HERRING_RETURN_IF_ERROR(transport::tcp::interface_address(name).move_to(options.source));
  }
  options.rendezvous = *address;
  HERRING_RETURN_IF_ERROR(credentials_of(secret, settings).move_to(options.credentials));
  return options;
}

}  // namespace herring::job
