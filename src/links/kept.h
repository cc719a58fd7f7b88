// What this rank keeps for other workers, in a job that goes on when a server dies: results that
// another worker may lack.
//
// The results of a run are received into memory of their own (chunks), so its contributions stay
// until they are answered, and then copied to their place. They are kept until no other worker can
// lack them, also when the transfer is over. Three things tell when that is:
//
// - The window. Places count the segments of a stream that this rank has contributed. A worker that
//   has pushed a segment lacks no more than a window of those before it. So once its result is
//   here, no worker lacks older ones. For example: with a window of 4 segments, the result of place
//   9 settles places 0 to 4.
// - Rounds and reigns. In a stream in lockstep, the result of a round says that all ranks have
//   those of earlier rounds. All-reduces that are announced in a later reign have streams of their
//   own, and no later result in a stream says what others lack of the streams before it. So a rank
//   pushes in a reign only when it has all results of earlier ones. All ranks hear of the calls of
//   a reign before those of later ones, so no rank waits for another in a circle. The first result
//   in a reign then proves that all ranks have all results of earlier reigns.
// - Statements of all workers (worker/keeping.h).
//
// Pure but for the memory of results. Engine thread.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/lane_pool.h"
#include "links/link.h"
#include "links/route.h"
#include "transport/transport.h"
#include "wire/settled.h"

namespace herring::links {

// A stream in which this rank has pushed up to a transfer (wire::settled_at()), and lacks no
// result of that or an earlier one. It never will: it pushes in the order of the keys.
struct StreamProgress {
  uint32_t group = 0, stream = 0;
  uint64_t upto = 0;
};

// The next segments of an item that go as one frame.
struct Piece {
  size_t count = 0;
  bool gives = false;  // their results, not this rank's contribution
};

// Who pushes the transfers.
class Sender {
 public:
  virtual ~Sender() = default;
  // Returns a transfer that is in flight, or null.
  virtual Transfer* in_flight(const Key& key) = 0;
  // Takes a run out of the queue of its stream, or lets another object for the transfer take its
  // place there.
  virtual void requeue(const Transfer& transfer, uint32_t run, Transfer* other) = 0;
  // A transfer of the group is no longer kept.
  virtual void forgotten(uint32_t group) = 0;
};

class Kept {
 public:
  // All must outlive this object.
  Kept(const LinksOptions& options, const Route& route, Sender& sender)
      : options_(options), route_(route), sender_(sender), chunks_(chunk_bytes()) {}

  void add_server(uint32_t server) { settling_.resize(server + 1); }
  void lose_server(uint32_t server) { settling_[server].clear(); }

  // Notes that the run is to be pushed to the server that its way names now.
  void begin(Transfer& transfer, uint32_t run);
  // Counts transfers in flight. Returns true if those of a later reign no longer have to wait.
  void begin_in_reign(const Key& key);
  bool end_in_reign(const Key& key);
  bool waits_for_earlier_reign(const StreamId& id) const;

  // Says where results are received, and copies them to their place.
  void place_results(Transfer& transfer, uint32_t run, uint32_t first, uint32_t count,
                     transport::Destinations& out);
  void copy_results(Transfer& transfer, uint32_t run, uint32_t first, uint32_t count);
  // Returns how many results go as one frame if so many contributions do.
  size_t in_frame(const Transfer& transfer, size_t count) const;
  // Returns the results of segments.
  std::string results(Transfer& transfer, uint32_t run, uint32_t first, size_t count);
  // Skips segments of a run that is pushed again whose results no other worker can lack.
  static Piece next_piece(Item& item, size_t most);

  // The result of a segment is here.
  void settle(const Transfer& transfer, uint32_t run, uint32_t segment);
  // No worker lacks any of these results.
  void settle(const StreamProgress& all);
  // Keeps what other workers may lack of a transfer that is over here.
  void keep(Transfer& transfer);
  // A rank has no share of a buffer that is smaller than its node has ranks. It is asked all the
  // same whether it lacks anything.
  void note_over(const Transfer& transfer);
  // Forgets a transfer that is over, if no other worker can lack anything of it.
  void forget(const Key& key);
  void forget_all();      // likewise of all
  void forget_streams();  // streams of which nothing settles any more
  // This worker gives its results of the group to nobody any more; those that were given to a
  // server have yet to be answered. `abandoned`: they never will be.
  void remove_group(uint32_t group);
  void abandon(uint32_t group);
  void clear();

  Transfer* find(const Key& key) const {
    const auto kept = kept_.find(key);
    return kept == kept_.end() ? nullptr : kept->second.get();
  }
  bool any(uint32_t group) const;
  std::vector<Key> keys() const;
  // By group and stream, the last transfer that was over here, if its results are kept.
  const std::map<std::pair<uint32_t, uint32_t>, uint64_t>& over() const { return over_; }
  size_t bytes() const { return chunks_.taken() * chunk_bytes(); }

 private:
  // Ranks may know different versions of the set of servers, in which one buffer has another
  // stand-in and the next one has not. So what a rank has pushed of one buffer to a stand-in says
  // nothing of the others.
  struct SettlingId : StreamId {
    uint32_t buffer = 0;  // 0 on the home itself, which has all buffers or none
    auto operator<=>(const SettlingId&) const = default;
  };
  // Which results of a stream other workers may lack.
  struct Settling {
    uint64_t pushed = 0, answered = 0;  // places
    struct Run {
      Key key;
      uint32_t run;
    };
    std::deque<Run> runs;  // in order, those with results that others may lack
  };
  // A group and a home, whose names have one owner.
  using Home = std::pair<uint32_t, uint32_t>;
  // The all-reduces of some names. Those of later reigns have streams with larger numbers.
  struct Reigns {
    std::map<uint32_t, size_t> in_flight;  // transfers, by stream
    uint32_t settled = 0;  // no other worker lacks a result of streams below this one
  };

  size_t chunk_bytes() const;
  static SettlingId settling_id(const Transfer& transfer, uint32_t run);
  template <typename Action>
  void for_each_piece(Transfer& transfer, uint32_t run, uint32_t first, size_t count,
                      const Action& action);
  Transfer* known(const Key& key);
  bool settles(uint32_t server, const StreamId& id, const Settling::Run& run);
  bool nothing_settles(uint32_t server, const StreamId& id, const Settling& settling);
  template <typename Which>
  void forget_settling(const Which& which);
  void settle_rounds_before(const Key& key);
  void settle_reigns_before(const Key& key);
  void forget_settled(const std::vector<Key>& keys);
  std::optional<Home> home_of_calls(uint32_t group, uint32_t stream) const;
  void free_chunks(Transfer& transfer, uint32_t run, uint64_t settled);
  void release(Transfer& transfer);
  void release_settled(RunRoute& way);

  const LinksOptions& options_;
  const Route& route_;
  Sender& sender_;
  std::vector<std::map<SettlingId, Settling>> settling_;  // by server
  std::map<Home, Reigns> reigns_;
  LanePool chunks_;
  // Transfers that are over here, of which other workers may lack results.
  std::map<Key, std::unique_ptr<Transfer>> kept_;
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> over_;
};

}  // namespace herring::links
