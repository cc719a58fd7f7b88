#include "job/process.h"

#include "base/log.h"
#include "reduce/reduce.h"
#include "transport/tcp/socket.h"

namespace herring::job {

void apply_process_settings(const Settings& settings) {
  set_log_level(settings.get_string("log_level"));
  if (const std::string& simd = settings.get_string("simd"); simd != "auto") {
    reduce::set_simd_level(simd.c_str());
  }
  transport::tcp::set_listening_ports(*parse_ports(settings.get_string("ports")));
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
  options.credentials = {secret, wire::job_id(settings.get_string("job"))};
  return options;
}

}  // namespace herring::job
