// A series of partial all-reduces whose rounds its owner, a server, closes: it counts who has come,
// the servers sum, and a round is committed.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "engine/owners.h"
#include "links/transfer.h"
#include "rounds/partial.h"
#include "rounds/series_memory.h"
#include "wire/frame.h"
#include "wire/partial.h"

namespace herring::rounds {

class OwnedPartial final : public Partial, public links::TransferOwner {
 public:
  static Result<std::shared_ptr<Partial>> create(SeriesList& list, PartialOptions options);

  // For the engine, on its thread. If a call returns an error, the job fails.
  // `text` is that of the message.
  Status on_round(const wire::FrameHeader& header, wire::RoundMessage message,
                  std::string_view text);
  Status on_commit(const wire::RoundMark& mark);
  void begin() override;
  // Tells a server that has come later.
  void announce_to(uint32_t server);
  // Another server becomes the owner, because the one before is gone.
  void move_to(const Owner& owner);
  const Owner& owner() const { return owner_; }  // who closes the rounds
  const std::shared_ptr<SeriesMemory>& memory() const { return memory_; }  // null: no failover
  void on_transfer_done(links::Transfer&) override;

 private:
  OwnedPartial(SeriesList& list, PartialOptions options);
  void announce(const partial::Join& join, std::string payload) override;
  Status launch(uint64_t upto, const char* send);
  void settle();
  void end_round();
  wire::Enlist enlist_for(uint32_t server) const;

  // Engine thread.
  Owner owner_;
  std::shared_ptr<SeriesMemory> memory_;
  links::Transfer transfer_;
  RoundInfo info_;                 // of the round that has closed
  uint32_t attempt_ = 0;
  bool transferring_ = false, transferred_ = false, committed_ = false;
};

}  // namespace herring::rounds
