// What the engine notes of an operation while it is under way. Only the engine's thread has this;
// its caller has the Operation.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "calls/operation.h"
#include "engine/owners.h"
#include "links/transfer.h"
#include "wire/handover.h"

namespace herring::calls {

using engine::Owner;
using wire::Key;

class Calls;

struct Underway final : links::TransferOwner, std::enable_shared_from_this<Underway> {
  Underway(Calls& calls, std::shared_ptr<Operation> handle, std::optional<wire::Announce> theirs)
      : calls(calls), handle(std::move(handle)), call(this->handle->call()),
        bundles(this->handle->bundles()), theirs(std::move(theirs)) {}

  void on_transfer_done(links::Transfer& transfer) override;
  const std::string& announced_name() const { return again.empty() ? call.name : again; }
  bool absent() const { return theirs.has_value(); }
  // Returns a mark for one of several parts.
  observe::Mark part() {
    observe::Mark mark = handle->mark();
    mark.parts = &parts;
    return mark;
  }
  // Keeps what is in the bundle's memory if an attempt may overwrite it in vain. False: no memory.
  bool save(size_t bundle);
  // Makes the operation as it was before its attempt.
  void begin_again();

  Calls& calls;
  const std::shared_ptr<Operation> handle;
  Call& call;                          // of the handle
  const std::vector<Bundle>& bundles;  // likewise
  // An operation of others: this rank has joined. What one of them has announced.
  const std::optional<wire::Announce> theirs;
  std::pair<uint32_t, std::string> name;  // as registered in Names
  uint32_t number = 0;                    // of the call among those of its name
  uint64_t id = 0;
  Owner asked;                         // the server that is to answer
  bool came = false;                   // a device no longer reads its arrays
  bool launched = false;               // bytes of it may be moving
  std::optional<wire::Met> met;        // of a message that a server has paired, without the text
  observe::Parts parts;                // of the entry
  Nanos started = 0;
  std::deque<links::Transfer> transfers;
  size_t parts_left = 0;
  // Servers that may not know the group yet that is formed; homes that have not answered a join.
  std::vector<uint32_t> unconfirmed;
  bool called_off = false;             // a part of it was called off
  // Of what is repeated if a part of it is lost with a server; see Transfer::attempt.
  struct Attempt {
    uint32_t servers = 0;
    Key key;
  };
  std::optional<Attempt> attempt;
  uint8_t whole = 1;                   // 0: a part of the attempt was lost
  std::map<size_t, std::unique_ptr<char[]>> saved;  // by bundle
  std::string again;                   // the name under which it is announced again
  Status failed;                       // error of a join, while others' operations go on
  // A copy from the staging memory to the result, done when all parts are done.
  struct Copy {
    char* to = nullptr;
    const char* from = nullptr;
    size_t bytes = 0;
  };
  std::vector<Copy> copies;
  std::function<void(const Status&)> then;  // called at the end, in place of a caller
};

}  // namespace herring::calls
