#include "transport/loop_thread.h"

#include <pthread.h>
#include <signal.h>

namespace herring::transport {

LoopThread::LoopThread() : generation_(fork_generation()) {}

LoopThread::~LoopThread() { stop(); }

void LoopThread::start(const std::string& name) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { loop_.run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
}

void LoopThread::stop() {
  if (!thread_.joinable()) return;
  if (!here()) return thread_.detach();  // there is no thread to wait for
  loop_.stop();
  thread_.join();
}

}  // namespace herring::transport
