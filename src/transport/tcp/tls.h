// TLS 1.3 for the connections of a job (HERRING_TLS), by OpenSSL. Both sides prove a key that
// follows from the secret, or show certificates. The hello of wire/hello.h travels inside.
//
// OpenSSL's libssl is linked like its libcrypto, which the hello needs anyway: system packages have
// both, and wheels contain both. A build without libssl works, but refuses HERRING_TLS.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/fork_guard.h"
#include "base/status.h"
#include "wire/hello.h"

struct ssl_st;
struct ssl_ctx_st;
struct ssl_session_st;

namespace herring::transport::tcp {

class TlsSession;
struct TlsPipe;  // how OpenSSL reads and writes sockets, and finds keys

struct TlsOptions {
  wire::Encryption encryption = wire::Encryption::kOff;
  std::string certificate, key, authorities;  // PEM files, for kCertificates
  // AES-GCM loses its margin after some 2^24 records of one key (RFC 8446, section 5.5).
  uint64_t records_per_key = 1 << 23;
};

// What the connections of a process have in common. Any thread may begin sessions.
class Tls : public std::enable_shared_from_this<Tls> {
 public:
  // Returns null for kOff. Errors: kConfiguration, with the name of the setting.
  static Result<std::shared_ptr<const Tls>> make(TlsOptions options, std::string_view secret);
  ~Tls();

  wire::Encryption encryption() const { return options_.encryption; }
  const TlsOptions& options() const { return options_; }
  ssl_ctx_st* context() const { return context_; }
  // `fd` must be a connected, non-blocking socket, and outlive the session.
  std::unique_ptr<TlsSession> begin(int fd, bool accepts) const;

 private:
  friend struct TlsPipe;
  explicit Tls(TlsOptions options) : options_(std::move(options)) {}
  Status use_key(std::string_view secret);
  Status use_certificates();

  const TlsOptions options_;
  ssl_ctx_st* context_ = nullptr;
  ssl_session_st* key_ = nullptr;  // the pre-shared key, for kPsk
};

// One connection. One thread at a time. Calls do not block.
class TlsSession {
 public:
  enum class Step { kDone, kReads, kWrites, kFailed };

  TlsSession(std::shared_ptr<const Tls> tls, int fd, bool accepts);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // Goes on with the handshake. kReads and kWrites say what it waits for.
  Step shake();
  // Returns why the handshake, or the first read after it, has failed. The text is empty if the
  // other side has just gone.
  std::string complaint() const;
  // Returns bytes that both ends of this session know, and nobody else. A proof that covers them
  // cannot be passed on from another session.
  std::string binding() const;
  // After kFailed: the other side has answered with a hello that is not encrypted. The answer is
  // still in the socket. Only the connecting side looks for that.
  bool answered_plainly() const { return answered_plainly_; }
  // The other side is known: reads ahead of what is asked for, with fewer calls to the system.
  void trust();

  // Like recvmsg() and sendmsg(): they return the number of bytes, or -1 with errno. Reading
  // returns 0 only if the other side has said that no more comes. EBADMSG: what has arrived is not
  // what the other side sent. After EAGAIN, write() must be called with the same bytes again.
  ssize_t read(const iovec* pieces, int count);
  ssize_t write(const iovec* pieces, int count);
  // Whether read() may return more although the socket has nothing.
  bool holds() const { return holds_; }
  // Tells the other side that no more comes, if nothing is half sent.
  void finish();

  // For errno EBADMSG.
  const std::string& reason() const { return reason_; }

 private:
  friend struct TlsPipe;
  ssize_t failed(int result);
  int send_all(const char* data, int bytes);
  void renew_key();

  const std::shared_ptr<const Tls> tls_;
  const int fd_;
  ssl_st* ssl_ = nullptr;
  bool expects_answer_;      // nothing has come yet
  bool answered_plainly_ = false;
  bool holds_ = true;
  bool more_ = false;        // what OpenSSL writes is followed by more
  size_t half_sent_ = 0;     // bytes of the record that the socket has not taken as a whole
  uint64_t records_ = 0;     // with the current key
  bool renewing_ = false;
  std::string kept_;         // a change of the key that the socket did not take
  int error_ = 0;            // why nothing more can be read
  bool ended_ = false;       // the socket ended before the other side said so
  std::string reason_;
  bool wrong_key_ = false;  // that is the reason
};

// A connected socket, and what encrypts it, if anything does.
class Socket {
 public:
  Socket() = default;
  Socket(GuardedFd fd) : fd_(std::move(fd)) {}  // NOLINT: implicit on purpose
  Socket(Socket&&) = default;
  Socket& operator=(Socket&&) = default;

  int get() const { return fd_.get(); }
  bool valid() const { return fd_.valid(); }
  void reset() {
    tls_.reset();
    fd_.reset();
  }
  TlsSession* tls() const { return tls_.get(); }
  void encrypt(const Tls& tls, bool accepts) { tls_ = tls.begin(get(), accepts); }

  ssize_t read(const iovec* pieces, int count);
  ssize_t write(const iovec* pieces, int count);
  ssize_t read(void* into, size_t bytes) {
    const iovec piece{into, bytes};
    return read(&piece, 1);
  }
  // Returns whether the socket has taken all of it.
  bool write_all(const void* data, size_t bytes) {
    const iovec piece{const_cast<void*>(data), bytes};
    return write(&piece, 1) == static_cast<ssize_t>(bytes);
  }
  bool holds() const { return tls_ && tls_->holds(); }
  // What the proofs of the hello are made with.
  std::string proof_key(const std::string& secret) const {
    return tls_ ? secret + tls_->binding() : secret;
  }
  bool end_writing();

 private:
  GuardedFd fd_;
  std::unique_ptr<TlsSession> tls_;  // destroyed before fd_
};

}  // namespace herring::transport::tcp
