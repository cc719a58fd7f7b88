#include "transport/tcp/tls.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#ifdef HERRING_HAS_TLS

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/ssl.h>

namespace herring::transport::tcp {
namespace {

using wire::Encryption;

constexpr size_t kRecord = SSL3_RT_MAX_PLAIN_LENGTH;  // 16 KiB
// One call to the system fetches several records. More than 64 KiB was not faster.
constexpr size_t kReadAhead = 64 << 10;
// Strangers send certificates before they are known.
constexpr long kLongestChain = 32 << 10;
constexpr unsigned char kIdentity[] = "herring";
constexpr size_t kIdentityBytes = sizeof(kIdentity) - 1;
// TLS_AES_128_GCM_SHA256: the fastest one wherever processors have instructions for AES.
constexpr unsigned char kCipher[] = {0x13, 0x01};

// Returns whether the first error of this thread means that the two sides have different keys.
bool wrong_key() {
  const int reason = ERR_GET_REASON(ERR_peek_error());
  return reason == SSL_R_BINDER_DOES_NOT_VERIFY || reason == SSL_R_CERTIFICATE_VERIFY_FAILED ||
         reason == SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER;
}

// Returns the reason of the first error of this thread, and forgets all of them.
std::string first_error() {
  const unsigned long code = ERR_peek_error();
  const char* reason = ERR_reason_error_string(code);
  std::string text = reason != nullptr ? reason
                     : ERR_SYSTEM_ERROR(code) ? strerror(ERR_GET_REASON(code))
                                              : concat("error ", code);
  ERR_clear_error();
  return text;
}

Tls* tls_of(SSL* ssl) { return static_cast<Tls*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl))); }

}  // namespace

struct TlsPipe {
  static TlsSession& session(BIO* bio) { return *static_cast<TlsSession*>(BIO_get_data(bio)); }

  static int read(BIO* bio, char* into, int bytes) {
    BIO_clear_retry_flags(bio);
    TlsSession& session = TlsPipe::session(bio);
    while (session.expects_answer_) {
      char first;
      const ssize_t n = ::recv(session.fd_, &first, 1, MSG_PEEK | MSG_DONTWAIT);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) BIO_set_retry_read(bio);
      if (n < 0) return -1;
      session.expects_answer_ = false;
      session.answered_plainly_ = n == 1 && wire::may_begin_hello(&first, 1);
      if (session.answered_plainly_) return -1;
    }
    for (;;) {
      const ssize_t n = ::recv(session.fd_, into, static_cast<size_t>(bytes), MSG_DONTWAIT);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) BIO_set_retry_read(bio);
      if (n == 0) session.ended_ = true;
      return static_cast<int>(n);
    }
  }

  static int write(BIO* bio, const char* data, int bytes) {
    BIO_clear_retry_flags(bio);
    const int n = session(bio).send_all(data, bytes);
    if (n < 0 && errno == EAGAIN) BIO_set_retry_write(bio);
    return n;
  }

  static long control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH; }

  static const BIO_METHOD* method() {
    static const BIO_METHOD* const one = [] {
      BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "herring");
      if (made == nullptr || BIO_meth_set_read(made, read) != 1 ||
          BIO_meth_set_write(made, write) != 1 || BIO_meth_set_ctrl(made, control) != 1) {
        throw std::bad_alloc();
      }
      return made;
    }();
    return one;
  }

  // The server looks up the key that a client names.
  static int find_key(SSL* ssl, const unsigned char* name, size_t bytes, SSL_SESSION** key) {
    *key = nullptr;
    SSL_SESSION* const own = tls_of(ssl)->key_;
    if (bytes != kIdentityBytes || std::memcmp(name, kIdentity, bytes) != 0) return 1;
    SSL_SESSION_up_ref(own);
    *key = own;
    return 1;
  }

  static int use_key(SSL* ssl, const EVP_MD* digest, const unsigned char** name, size_t* bytes,
                     SSL_SESSION** key) {
    *key = nullptr;
    if (digest != nullptr && !EVP_MD_is_a(digest, "SHA256")) return 1;
    *name = kIdentity;
    *bytes = kIdentityBytes;
    *key = tls_of(ssl)->key_;
    SSL_SESSION_up_ref(*key);
    return 1;
  }

  // Asking for a pass phrase at the terminal would hold up the job.
  static int no_pass_phrase(char*, int, int, void*) { return -1; }
};

Result<std::shared_ptr<const Tls>> Tls::make(TlsOptions options, std::string_view secret) {
  if (options.encryption == Encryption::kOff) return std::shared_ptr<const Tls>();
  const std::shared_ptr<Tls> made(new Tls(std::move(options)));
  ERR_clear_error();
  made->context_ = SSL_CTX_new(TLS_method());
  SSL_CTX* const context = made->context_;
  const auto broken = [] {
    return Status(Code::kConfiguration, concat("HERRING_TLS: OpenSSL cannot be used: ",
                                               first_error()));
  };
  if (context == nullptr) return broken();
  SSL_CTX_set_app_data(context, made.get());
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET);
  SSL_CTX_set_mode(context, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_max_cert_list(context, kLongestChain);
  if (SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_num_tickets(context, 0) != 1 ||
      SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") != 1 ||
      SSL_CTX_set1_groups_list(context, "X25519:P-256") != 1) {
    return broken();
  }
  const bool by_key = made->encryption() == Encryption::kPsk;
  const Status usable = by_key ? made->use_key(secret) : made->use_certificates();
  if (!usable.ok()) return usable;
  return std::shared_ptr<const Tls>(made);
}

Tls::~Tls() {
  SSL_SESSION_free(key_);
  SSL_CTX_free(context_);
}

// OpenSSL describes a pre-shared key as a session that could be resumed. A fresh Diffie-Hellman
// exchange is part of it, so who learns the secret later cannot read what was recorded before.
Status Tls::use_key(std::string_view secret) {
  constexpr std::string_view kLabel = "herring tls 1.3 pre-shared key";
  unsigned char key[EVP_MAX_MD_SIZE];
  unsigned bytes = 0;
  HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
       reinterpret_cast<const unsigned char*>(kLabel.data()), kLabel.size(), key, &bytes);
  key_ = SSL_SESSION_new();
  SSL* const ssl = SSL_new(context_);
  const SSL_CIPHER* const cipher = ssl == nullptr ? nullptr : SSL_CIPHER_find(ssl, kCipher);
  const bool made = key_ != nullptr && cipher != nullptr &&
                    SSL_SESSION_set1_master_key(key_, key, bytes) == 1 &&
                    SSL_SESSION_set_cipher(key_, cipher) == 1 &&
                    SSL_SESSION_set_protocol_version(key_, TLS1_3_VERSION) == 1;
  SSL_free(ssl);
  OPENSSL_cleanse(key, sizeof(key));
  if (!made) {
    return {Code::kConfiguration,
            concat("HERRING_TLS=psk: OpenSSL cannot use the key: ", first_error())};
  }
  SSL_CTX_set_psk_find_session_callback(context_, TlsPipe::find_key);
  SSL_CTX_set_psk_use_session_callback(context_, TlsPipe::use_key);
  // A server that does not know the key would have to show a certificate, and nobody vouches for
  // any.
  SSL_CTX_set_verify(context_, SSL_VERIFY_PEER, nullptr);
  return {};
}

Status Tls::use_certificates() {
  const auto bad = [](std::string_view setting, const std::string& value, const std::string& why) {
    return Status(Code::kConfiguration, concat(setting, "=", value, " cannot be used: ", why));
  };
  SSL_CTX_set_default_passwd_cb(context_, TlsPipe::no_pass_phrase);
  const auto& [encryption, certificate, key, authorities, records] = options_;
  if (SSL_CTX_use_certificate_chain_file(context_, certificate.c_str()) != 1) {
    return bad("HERRING_TLS_CERTIFICATE", certificate, first_error());
  }
  if (SSL_CTX_use_PrivateKey_file(context_, key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context_) != 1) {
    return bad("HERRING_TLS_KEY", key, first_error());
  }
  if (SSL_CTX_load_verify_file(context_, authorities.c_str()) != 1) {
    return bad("HERRING_TLS_CA", authorities, first_error());
  }
  SSL_CTX_set_verify(context_, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return {};
}

std::unique_ptr<TlsSession> Tls::begin(int fd, bool accepts) const {
  return std::make_unique<TlsSession>(shared_from_this(), fd, accepts);
}

TlsSession::TlsSession(std::shared_ptr<const Tls> tls, int fd, bool accepts)
    : tls_(std::move(tls)), fd_(fd), expects_answer_(!accepts) {
  ssl_ = SSL_new(tls_->context());
  BIO* const pipe = ssl_ == nullptr ? nullptr : BIO_new(TlsPipe::method());
  if (pipe == nullptr) {
    SSL_free(ssl_);
    throw std::bad_alloc();
  }
  BIO_set_data(pipe, this);
  BIO_set_init(pipe, 1);
  SSL_set_bio(ssl_, pipe, pipe);
  accepts ? SSL_set_accept_state(ssl_) : SSL_set_connect_state(ssl_);
  // A server that asks for certificates takes no pre-shared key without a name of its own.
  const bool by_key = tls_->encryption() == Encryption::kPsk;
  if (accepts && by_key) SSL_set_verify(ssl_, SSL_VERIFY_NONE, nullptr);
}

TlsSession::~TlsSession() { SSL_free(ssl_); }

TlsSession::Step TlsSession::shake() {
  ERR_clear_error();
  errno = 0;
  const int result = SSL_do_handshake(ssl_);
  if (result == 1) {
    // Nobody has vouched for the other side unless it knew the key.
    if (tls_->encryption() != Encryption::kPsk || SSL_session_reused(ssl_) == 1) return Step::kDone;
    reason_ = "the pre-shared key was not used";
    wrong_key_ = true;
    return Step::kFailed;
  }
  const int error = SSL_get_error(ssl_, result);
  if (error == SSL_ERROR_WANT_READ) return Step::kReads;
  if (error == SSL_ERROR_WANT_WRITE) return Step::kWrites;
  failed(result);
  return Step::kFailed;
}

std::string TlsSession::complaint() const {
  if (reason_.empty()) return {};
  std::string why;
  const long verified = SSL_get_verify_result(ssl_);
  if (tls_->encryption() == Encryption::kPsk) {
    if (wrong_key_) why = concat(wire::describe(wire::Verdict::kWrongSecret), "; ");
  } else if (verified != X509_V_OK) {
    why = concat("HERRING_TLS_CA=", tls_->options().authorities, " does not vouch for its "
                 "certificate: ", X509_verify_cert_error_string(verified), "; ");
  } else {
    why = concat("it may not know the authority of HERRING_TLS_CERTIFICATE=",
                 tls_->options().certificate, "; ");
  }
  return concat(why, "TLS says: ", reason_);
}

std::string TlsSession::binding() const {
  constexpr std::string_view kLabel = "EXPORTER-herring-proof";
  std::string bytes(32, '\0');
  if (SSL_export_keying_material(ssl_, reinterpret_cast<unsigned char*>(bytes.data()),
                                 bytes.size(), kLabel.data(), kLabel.size(), nullptr, 0, 0) != 1) {
    throw std::bad_alloc();  // the session is complete, so only memory can be missing
  }
  return bytes;
}

void TlsSession::trust() {
  SSL_clear_mode(ssl_, SSL_MODE_RELEASE_BUFFERS);
  SSL_set_read_ahead(ssl_, 1);
  SSL_set_default_read_buffer_len(ssl_, kReadAhead);
}

// Returns what read() or write() should return, with errno.
ssize_t TlsSession::failed(int result) {
  const int system = errno;
  switch (SSL_get_error(ssl_, result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE: errno = EAGAIN; return -1;
    case SSL_ERROR_ZERO_RETURN: return 0;
    case SSL_ERROR_SYSCALL:
      ERR_clear_error();
      errno = ended_ || system == 0 ? ECONNRESET : system;
      return -1;
    default:
      // The end of the socket is no proof that the other side has ended there.
      if (ended_) {
        ERR_clear_error();
        errno = ECONNRESET;
        return -1;
      }
      wrong_key_ = wrong_key();
      reason_ = first_error();
      errno = EBADMSG;
      return -1;
  }
}

ssize_t TlsSession::read(const iovec* pieces, int count) {
  ssize_t got = 0;
  for (int i = 0; i < count && error_ == 0; ++i) {
    char* into = static_cast<char*>(pieces[i].iov_base);
    for (size_t left = pieces[i].iov_len; left > 0;) {
      ERR_clear_error();
      errno = 0;
      const int n = SSL_read(ssl_, into, static_cast<int>(std::min<size_t>(left, 1 << 30)));
      if (n <= 0) {
        const ssize_t result = failed(n);
        holds_ = !(result < 0 && errno == EAGAIN);
        if (result < 0 && errno != EAGAIN) error_ = errno;
        return got > 0 ? got : result;
      }
      got += n;
      into += n;
      left -= static_cast<size_t>(n);
    }
  }
  holds_ = true;
  if (got > 0 || error_ == 0) return got;
  errno = error_;
  return -1;
}

// Each record holds as much as there is, up to 16 KiB. What lies in several pieces is put together
// first.
ssize_t TlsSession::write(const iovec* pieces, int count) {
  static thread_local char gathered[kRecord];
  size_t left = 0;
  for (int i = 0; i < count; ++i) left += pieces[i].iov_len;
  if (half_sent_ > left) {
    errno = EPIPE;
    return -1;
  }
  ssize_t sent = 0;
  int piece = 0;
  size_t at = 0;  // in that piece
  while (left > 0) {
    while (at == pieces[piece].iov_len) {
      ++piece;
      at = 0;
    }
    const size_t n = half_sent_ > 0 ? half_sent_ : std::min(left, kRecord);
    const char* data = static_cast<const char*>(pieces[piece].iov_base) + at;
    int next = piece;
    size_t next_at = at + n;
    if (pieces[piece].iov_len - at < n) {
      size_t have = 0;
      for (next_at = at;; ++next, next_at = 0) {
        const size_t some = std::min(n - have, pieces[next].iov_len - next_at);
        std::memcpy(gathered + have, static_cast<const char*>(pieces[next].iov_base) + next_at,
                    some);
        have += some;
        next_at += some;
        if (have == n) break;
      }
      data = gathered;
    }
    if (half_sent_ == 0 && ++records_ > tls_->options().records_per_key) renew_key();
    more_ = n < left;
    ERR_clear_error();
    errno = 0;
    const int result = SSL_write(ssl_, data, static_cast<int>(n));
    if (result <= 0) {
      const ssize_t status = failed(result);
      half_sent_ = errno == EAGAIN ? n : 0;
      if (sent > 0) return sent;
      if (status == 0) errno = EPIPE;
      return -1;
    }
    half_sent_ = 0;
    sent += result;
    left -= n;
    piece = next;
    at = next_at;
  }
  return sent;
}

// Called when no record is half sent.
void TlsSession::renew_key() {
  ERR_clear_error();
  renewing_ = true;
  if (SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED) == 1) SSL_do_handshake(ssl_);
  renewing_ = false;
  records_ = 1;
}

int TlsSession::send_all(const char* data, int bytes) {
  const auto send_some = [&](const char* from, size_t length, bool more) {
    for (;;) {
      const ssize_t n =
          ::send(fd_, from, length, MSG_NOSIGNAL | MSG_DONTWAIT | (more ? MSG_MORE : 0));
      if (n >= 0 || errno != EINTR) return n;
    }
  };
  if (renewing_) {
    // OpenSSL reads nothing while a change of the key waits for the socket. If both sides waited
    // in that way, neither would make room.
    kept_.append(data, static_cast<size_t>(bytes));
    return bytes;
  }
  while (!kept_.empty()) {
    const ssize_t n = send_some(kept_.data(), kept_.size(), true);
    if (n < 0) return -1;
    kept_.erase(0, static_cast<size_t>(n));
  }
  return static_cast<int>(send_some(data, static_cast<size_t>(bytes), more_));
}

void TlsSession::finish() {
  const bool told = SSL_get_shutdown(ssl_) & SSL_SENT_SHUTDOWN;
  if (half_sent_ > 0 || error_ != 0 || told) return;
  ERR_clear_error();
  more_ = false;
  SSL_shutdown(ssl_);
  ERR_clear_error();
}

}  // namespace herring::transport::tcp

#else  // a build without libssl

namespace herring::transport::tcp {

Result<std::shared_ptr<const Tls>> Tls::make(TlsOptions options, std::string_view) {
  if (options.encryption == wire::Encryption::kOff) return std::shared_ptr<const Tls>();
  return Status(Code::kConfiguration,
                concat("HERRING_TLS=", wire::name_of(options.encryption), " is not possible: this "
                       "build of Herring has no TLS, because libssl was missing when it was "
                       "compiled; install OpenSSL 3 with headers and compile it again"));
}

// No object of these classes is ever made.
Tls::~Tls() = default;
std::unique_ptr<TlsSession> Tls::begin(int, bool) const { return nullptr; }
TlsSession::~TlsSession() = default;
TlsSession::Step TlsSession::shake() { return Step::kFailed; }
std::string TlsSession::complaint() const { return {}; }
std::string TlsSession::binding() const { return {}; }
void TlsSession::trust() {}
ssize_t TlsSession::read(const iovec*, int) { return -1; }
ssize_t TlsSession::write(const iovec*, int) { return -1; }
void TlsSession::finish() {}

}  // namespace herring::transport::tcp

#endif

namespace herring::transport::tcp {

ssize_t Socket::read(const iovec* pieces, int count) {
  if (tls_) return tls_->read(pieces, count);
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces);
  message.msg_iovlen = count;
  return recvmsg(get(), &message, MSG_DONTWAIT);
}

ssize_t Socket::write(const iovec* pieces, int count) {
  if (tls_) return tls_->write(pieces, count);
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces);
  message.msg_iovlen = count;
  return sendmsg(get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

bool Socket::end_writing() {
  if (tls_) tls_->finish();
  return shutdown(get(), SHUT_WR) == 0;
}

}  // namespace herring::transport::tcp
