#include "observe/recorder.h"

#include <algorithm>
#include <utility>

namespace herring::observe {

namespace {

constexpr size_t kLine = 64;  // bytes of a line of the caches

// Asks for memory that will be written soon. The ring does not fit into the caches, and a lock
// waits until everything before it is written.
void fetch(const Entry& entry) {
  const auto* const begin = reinterpret_cast<const char*>(&entry);
  for (size_t i = 0; i < sizeof(Entry); i += kLine) __builtin_prefetch(begin + i, 1);
  __builtin_prefetch(begin + sizeof(Entry) - 1, 1);
}

}  // namespace

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kRound: return "round";
    case Kind::kBuffer: return "buffer";
    case Kind::kCall: return "call";
    case Kind::kSum: return "sum";
  }
  return "unknown";
}

const char* name_of(Moment moment) {
  switch (moment) {
    case Moment::kCalled: return "called";
    case Moment::kReady: return "ready";
    case Moment::kReduced: return "reduced";
    case Moment::kPushed: return "pushed";
    case Moment::kSummed: return "summed";
    case Moment::kDone: return "done";
  }
  return "unknown";
}

Entry* Recorder::find(uint64_t id) {
  if (id == 0) return nullptr;
  Entry& entry = entries_[place_of(id)];
  return entry.id == id && !entry.ended ? &entry : nullptr;
}

uint64_t Recorder::begin(const Entry& entry) {
  if (!on()) return 0;
  std::lock_guard lock(mutex_);
  const uint64_t id = ++begun_count_;
  Entry& own = entries_[place_of(id)];
  own = entry;
  own.id = id;
  fetch(entries_[place_of(begun_count_ + 1)]);
  return id;
}

void Recorder::mark(uint64_t id, Moment moment, Nanos when) {
  if (id == 0) return;
  std::lock_guard lock(mutex_);
  Entry* entry = find(id);
  if (entry == nullptr) return;
  Nanos& at = entry->at[static_cast<size_t>(moment)];
  if (at == 0) at = when;
}

void Recorder::waited(uint64_t id, Nanos duration) {
  if (id == 0) return;
  std::lock_guard lock(mutex_);
  // A program learns of the end a moment after it, so an entry that has ended counts, too.
  Entry& entry = entries_[place_of(id)];
  if (entry.id == id) entry.waited += duration;
}

void Recorder::place(uint64_t id, uint32_t stream, uint32_t round) {
  if (id == 0) return;
  std::lock_guard lock(mutex_);
  Entry* entry = find(id);
  if (entry == nullptr) return;
  entry->stream = stream;
  entry->round = round;
}

void Recorder::finish(Entry& entry, Nanos when, Code outcome) {
  Nanos& at = entry.at[static_cast<size_t>(Moment::kDone)];
  if (at == 0) at = when;
  entry.outcome = outcome;
  entry.ended = true;
  ended_[place_of(ended_count_++)] = entry.id;
  if (outcome == Code::kOk) operations_.add(entry);
}

void Recorder::end(uint64_t id, Nanos when, Code outcome) {
  if (id == 0) return;
  std::lock_guard lock(mutex_);
  Entry* entry = find(id);
  if (entry == nullptr) return;
  if (entry->kind == Kind::kRound && outcome != Code::kOk) {
    for (uint64_t later = id + 1; later <= begun_count_; ++later) {
      Entry* const part = find(later);
      if (part == nullptr || part->kind != Kind::kBuffer || part->group != entry->group ||
          part->stream != entry->stream || part->round != entry->round) {
        continue;
      }
      finish(*part, when, outcome);
    }
  }
  finish(*entry, when, outcome);
  fetch(entries_[place_of(begun_count_ + 1)]);
}

std::vector<Entry> Recorder::latest(size_t most) const {
  std::lock_guard lock(mutex_);
  const uint64_t count = std::min<uint64_t>({most, begun_count_, entries_.size()});
  std::vector<Entry> found;
  found.reserve(count);
  for (uint64_t id = begun_count_ - count + 1; id <= begun_count_; ++id) {
    found.push_back(entries_[place_of(id)]);
  }
  return found;
}

void Recorder::each_ended(uint64_t& cursor, const std::function<void(const Entry&)>& call,
                          uint64_t* dropped) const {
  std::array<Entry, kBatch> batch;
  for (const uint64_t until = ended(); cursor < until;) {
    size_t count = 0;
    uint64_t lost = 0;
    {
      std::lock_guard lock(mutex_);
      const uint64_t oldest = ended_count_ - std::min<uint64_t>(ended_count_, ended_.size());
      if (cursor < oldest) lost = oldest - std::exchange(cursor, oldest);
      for (; cursor < until && count < kBatch; ++cursor) {
        const uint64_t id = ended_[place_of(cursor)];
        const Entry& entry = entries_[place_of(id)];
        if (entry.id == id) {
          batch[count++] = entry;
        } else {
          ++lost;
        }
      }
    }
    if (dropped != nullptr) *dropped += lost;
    for (size_t i = 0; i < count; ++i) call(batch[i]);
  }
}

std::vector<Entry> Recorder::ended_since(uint64_t& cursor, uint64_t* dropped) const {
  std::vector<Entry> found;
  each_ended(cursor, [&found](const Entry& entry) { found.push_back(entry); }, dropped);
  return found;
}

uint64_t Recorder::begun() const {
  std::lock_guard lock(mutex_);
  return begun_count_;
}

std::vector<OperationCount> Recorder::operations() const {
  std::lock_guard lock(mutex_);
  return operations_.all();
}

uint64_t Recorder::ended() const {
  std::lock_guard lock(mutex_);
  return ended_count_;
}

}  // namespace herring::observe
