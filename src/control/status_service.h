// Answers questions about a running job in plain text: on a socket in the user's own folder, or at
// an address that the user has asked for. A client sends one line and reads until the end:
//
//   echo | nc -U /run/user/1000/herring/JOB-PID.sock      what is worth telling
//   status, all, json, metrics                            the other questions
//   record                                                writes a flight record, says where
//   GET /metrics HTTP/1.1                                 the same over HTTP: /, /all, /status.json
//
// On an address beyond the loopback interface, a client must know the job's secret. The service
// sends "prove NONCE", and the client answers "proof MAC" (wire::status_proof()). Over HTTP it
// sends "Authorization: Bearer TOKEN" (wire::status_token()). An answer that begins with "error: "
// says why there is none.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/fork_guard.h"
#include "transport/address.h"
#include "transport/descriptor_loop.h"
#include "transport/tcp/suspects.h"

namespace herring::control {

class StatusService : private transport::DescriptorHandler {
 public:
  enum class Question { kText, kAll, kJson, kMetrics, kRecord };
  using Answer = std::function<std::string(Question)>;

  // Listens on a socket in the user's runtime folder. `job`: its name. Removes sockets of jobs that
  // are gone.
  static Result<std::unique_ptr<StatusService>> listen_locally(transport::DescriptorLoop& loop,
                                                               const std::string& job,
                                                               Answer answer);
  // Listens at an address. Clients must know `secret` unless the address is on the loopback
  // interface.
  static Result<std::unique_ptr<StatusService>> listen_at(transport::DescriptorLoop& loop,
                                                          const transport::Address& address,
                                                          std::string secret, Answer answer);
  // Removes the socket. Must run on the loop's thread, or after the loop has ended.
  ~StatusService() override;

  // Returns the path of the socket, or HOST:PORT.
  const std::string& place() const { return place_; }

 private:
  class Client;

  StatusService(transport::DescriptorLoop& loop, GuardedFd listener, std::string place,
                std::string path, std::string secret, Answer answer);
  void on_ready(uint32_t) override;
  bool make_room();
  void pause(Nanos time);
  void resume();
  void forget(int fd);

  static constexpr size_t kMostClients = 64;
  // How many clients of a host must fail in a row before its clients get less time.
  static constexpr uint32_t kFailures = 64;

  transport::DescriptorLoop& loop_;
  GuardedFd listener_;
  const std::string place_;
  const std::string path_;    // of the socket to remove, or empty
  const std::string secret_;  // empty: nobody must prove anything
  const Answer answer_;
  transport::tcp::Suspects suspects_{kFailures};
  transport::EventLoop::TimerId pause_ = 0;  // set while there is no place or no descriptor
  std::map<int, std::unique_ptr<Client>> clients_;
};

// Makes the folder unless it exists. Returns an error unless it belongs to this user alone.
Status make_own_folder(const std::string& folder);
// Returns $XDG_RUNTIME_DIR/herring, or /tmp/herring-UID if that variable names no folder in which
// this user may write. The folder exists then, and belongs to this user alone.
Result<std::string> runtime_folder();

}  // namespace herring::control
