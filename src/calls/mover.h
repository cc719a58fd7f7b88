// Moves the bytes of a named operation once all ranks have announced it. There is one function for
// each way. Engine thread.
#pragma once

#include <string>
#include <string_view>

#include "calls/exchange.h"
#include "calls/underway.h"
#include "collective/executor.h"

namespace herring::calls {

class Meeting;

class Mover {
 public:
  Mover(Core& core, Calls& calls, Meeting& meeting)
      : core_(core), calls_(calls), meeting_(meeting) {}

  // Moves the bytes. `address`: for a message, the address at which the other rank listens.
  void move(Underway& operation, Key key, const std::string& address);
  // Returns whether another attempt is made if a server is lost. Its transfers then keep nothing
  // for others, and the operation's arrays stay as they are until the result is complete.
  bool can_try_again(const Call& call) const;
  // Completes an operation of a group of one, where no server has to be asked.
  void alone(Underway& operation);
  // Takes a result that a server has computed or forwarded.
  void take(Underway& operation, std::string_view result);
  // Starts an all-reduce by messages between workers, once the workers know their addresses.
  void start_schedule(Underway& operation, Key key);

 private:
  void reduce(Underway& operation, Key key);
  void exchange(Underway& operation, Key key);
  void by_node_stage(Underway& operation, Key& key, size_t bundle, char* data, bool active);
  void through_nodes(Underway& operation, Key& key, size_t bundle, const Exchange& exchange,
                     char* out);
  void on_node(Underway& operation, Key key, size_t bundle, const Exchange& exchange, char* out);
  void by_servers(Underway& operation, Key key, size_t bundle, const Exchange& exchange,
                  char* out);
  void message(Underway& operation, Key key, const std::string& address);
  void start(Underway& operation, collective::Task task);

  static void copy_own(Underway& operation, const Exchange& exchange, const char* data, char* out);
  links::Transfer& add_transfer(Underway& operation, Key key, size_t bundle, size_t bytes);
  bool push(Underway& operation);                // false if the job has failed
  NodeTask task_of(Underway& operation, Key key, size_t bundle);
  bool save(Underway& operation, size_t bundle);   // likewise
  char* stage(Underway& operation, size_t bytes);  // null if the job has failed

  Core& core_;
  Calls& calls_;
  Meeting& meeting_;
};

}  // namespace herring::calls
