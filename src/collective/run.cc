#include "collective/run.h"

#include <algorithm>
#include <utility>

namespace herring::collective {
namespace {

// Fewer bytes than this are not worth a call while more are on their way.
constexpr size_t kReducePiece = 16 << 10;

uint32_t frames_of(size_t bytes) {
  return static_cast<uint32_t>((bytes + kFrameBytes - 1) / kFrameBytes);
}

size_t bytes_of_frame(const Range& range, uint32_t frame) {
  return std::min(kFrameBytes, range.bytes - frame * kFrameBytes);
}

// Returns the number of whole frames in a range of which the first `clear` bytes are usable.
uint32_t whole_frames(const Range& range, size_t clear) {
  return clear == range.bytes ? frames_of(clear) : static_cast<uint32_t>(clear / kFrameBytes);
}

// Cuts [range.offset, end) where it meets the unfinished part of `other`, whose first `done` bytes
// are finished.
void limit(size_t& end, const Range& range, const Range& other, size_t done) {
  const size_t open = other.offset + done;
  if (done == other.bytes || open >= end || other.end() <= range.offset) return;
  end = std::max(range.offset, open);
}

}  // namespace

Run::Run(Task task, uint32_t rank, uint32_t size, Wire& wire)
    : task_(std::move(task)),
      size_(size),
      wire_(wire),
      schedule_(!task_.schedule.empty() ? task_.schedule
                                        : make_schedule(task_.algorithm, rank, size, task_.count,
                                                        size_of(task_.dtype))),
      instance_(schedule_),
      progress_(schedule_.size()) {
  for (uint32_t i = 0; i < schedule_.size(); ++i) {
    const Operation& operation = schedule_[i];
    if (!operation.is_message()) continue;
    Lane& lane = lanes_[operation.peer];
    const bool sends = operation.kind == Operation::Kind::kSend;
    auto& all = sends ? lane.sends : lane.receives;
    progress_[i].message = static_cast<uint32_t>(all.size());
    all.push_back(i);
  }
  if (schedule_.space() > 0) space_ = std::make_unique_for_overwrite<char[]>(schedule_.space());
  for (const uint32_t peer : task_.near) {
    if (const auto lane = lanes_.find(peer); lane != lanes_.end()) lane->second.meets = true;
  }
  if (!task_.elsewhere) return;
  for (const Piece& piece : task_.elsewhere->pieces()) {
    if (piece.what != Piece::What::kOut) {
      pieces_.ins.push_back(piece);
      continue;
    }
    pieces_.ins_before.push_back(static_cast<uint32_t>(pieces_.ins.size()));
    pieces_.outs.push_back(piece);
  }
}

void Run::start() {
  const bool alone = size_ == 1;
  if (!task_.elsewhere && task_.count > 0 && (alone || task_.reduction.prescale != 1.0)) {
    const void* const source = task_.data;
    reduce::combine(&source, 1, task_.data, task_.count,
                    {task_.dtype, task_.dtype, task_.reduction.op, task_.reduction.prescale, 1.0,
                     alone ? task_.reduction.postscale : 1.0});
  }
  advance();
}

// Returns how many bytes at the beginning of its range an open operation may use: all that it needs
// is complete there, and they are in host memory.
size_t Run::clear_bytes(uint32_t number) const {
  const Operation& operation = schedule_[number];
  size_t end = operation.range.end();
  const auto limit_by_needs = [&](uint32_t of) {
    for (const uint32_t earlier : schedule_.needs(of)) {
      if (earlier == number) continue;
      limit(end, operation.range, schedule_[earlier].range, progress_[earlier].complete);
    }
  };
  limit_by_needs(number);
  // What arrives for a sum and has no place is summed at once.
  if (operation.sums() && !operation.kept) limit_by_needs(operation.half);
  for (uint32_t k = pieces_.is_out; k < pieces_.outs.size(); ++k) {
    const Piece& piece = pieces_.outs[k];
    if (piece.operation > number) break;
    limit(end, operation.range, piece.range, 0);
  }
  return end - operation.range.offset;
}

// Reads the progress of the DeviceSide. Must not be called before the run has started.
void Run::look_elsewhere() {
  pieces_.is_out = task_.elsewhere->outs();
  const uint32_t is_in = task_.elsewhere->ins();
  for (; pieces_.is_in < is_in; ++pieces_.is_in) {
    const Piece& piece = pieces_.ins[pieces_.is_in];
    if (piece.what == Piece::What::kScale) continue;
    const Operation& receive = schedule_[piece.operation];
    if (receive.sums()) {
      progress_[receive.half].complete += piece.range.bytes;
    } else if (is_shown(receive)) {
      progress_[piece.operation].complete += piece.range.bytes;
    }
  }
  const uint32_t arrived = pieces_.arrived;
  for (; pieces_.arrived < pieces_.ins.size(); ++pieces_.arrived) {
    const Piece& piece = pieces_.ins[pieces_.arrived];
    if (piece.what == Piece::What::kScale) continue;
    const size_t end = piece.range.end() - schedule_[piece.operation].range.offset;
    if (progress_[piece.operation].received < end) break;
  }
  if (pieces_.arrived > arrived) task_.elsewhere->arrived(pieces_.arrived);
}

// Returns whether this rank reads what it receives where the sender has it.
bool Run::is_shown(const Operation& message) const {
  return message.kind == Operation::Kind::kReceive && lanes_.at(message.peer).shown.receives;
}

// Returns whether nothing reads any more what was received.
bool Run::is_read(uint32_t receive) const {
  const Operation& operation = schedule_[receive];
  const uint32_t reader = operation.sums() ? operation.half : receive;
  return progress_[reader].complete == operation.range.bytes;
}

void Run::advance_cards() {
  for (auto& [peer, lane] : lanes_) {
    if (!lane.meets || lane.told || !wire_.ready_for_grant(peer)) continue;
    lane.told = true;
    wire_.card(peer, task_.elsewhere ? task_.elsewhere->card_for(peer) : std::string());
  }
}

// Tells senders that what they show was read, so that they may use its place again.
void Run::advance_reads() {
  for (auto& [peer, lane] : lanes_) {
    if (!lane.shown.receives) continue;
    while (lane.told_read < lane.receives.size() && is_read(lane.receives[lane.told_read])) {
      wire_.read(peer, static_cast<uint32_t>(lane.told_read++));
    }
  }
}

void Run::advance() {
  advance_cards();
  if (task_.elsewhere) look_elsewhere();
  advance_reads();
  do {
    settle();
  } while (advance_sums());
  advance_grants();
  advance_sends();
}

// Tells the instance which operations are complete. What opens has a higher number.
void Run::settle() {
  const std::vector<uint32_t>& open = instance_.open();
  for (size_t k = 0; k < open.size();) {
    const uint32_t number = open[k];
    const bool complete = progress_[number].complete == schedule_[number].range.bytes;
    complete ? instance_.complete(number) : void(++k);
  }
}

// Sums what has arrived before it could be summed. Returns whether there was anything.
bool Run::advance_sums() {
  bool moved = false;
  if (space_ == nullptr) return moved;
  for (const uint32_t sum : instance_.open()) {
    const Operation& operation = schedule_[sum];
    if (operation.kind != Operation::Kind::kCompute || !schedule_[operation.half].kept) continue;
    Progress& progress = progress_[sum];
    const size_t item = size_of(task_.dtype);
    const size_t clear = clear_bytes(sum) / item * item;
    if (clear <= progress.complete) continue;
    const Operation& receive = schedule_[operation.half];
    reduce_piece(sum, progress.complete, space_.get() + receive.place + progress.complete,
                 clear - progress.complete);
    progress.complete = clear;
    moved = true;
  }
  return moved;
}

// Returns whether other ranks still have to send much of what they were granted earlier.
bool Run::others_are_sending(uint32_t receive) const {
  size_t outstanding = 0;
  for (const uint32_t i : instance_.open()) {
    if (i >= receive) break;
    const Operation& earlier = schedule_[i];
    if (earlier.kind != Operation::Kind::kReceive || earlier.peer == schedule_[receive].peer) {
      continue;
    }
    const Lane& lane = lanes_.at(earlier.peer);
    if (lane.shown.receives) continue;
    const Progress& progress = progress_[i];
    outstanding += std::min(progress.granted * kFrameBytes, earlier.range.bytes) -
                   progress.received;
    if (lane.next_receive < lane.receives.size() && lane.receives[lane.next_receive] == i) {
      outstanding -= lane.arrived;
    }
  }
  return outstanding > kReceiveOverlap;
}

void Run::advance_grants() {
  for (const uint32_t i : instance_.open()) {
    const Operation& receive = schedule_[i];
    if (receive.kind != Operation::Kind::kReceive) continue;
    Progress& progress = progress_[i];
    if (progress.granted == frames_of(receive.range.bytes)) continue;
    const Lane& lane = lanes_.at(receive.peer);
    if (lane.shown.receives || lane.waits_for_card()) continue;
    if (receive.sums() && !receive.kept && !instance_.is_open(receive.half)) continue;
    const uint32_t frames = whole_frames(receive.range, clear_bytes(i));
    if (frames <= progress.granted || !wire_.ready_for_grant(receive.peer)) continue;
    if (others_are_sending(i)) continue;
    progress.granted = frames;
    wire_.grant(receive.peer, progress.message, frames);
  }
}

void Run::advance_sends() {
  size_t waiting = 0;  // bytes of earlier messages that could leave at once
  for (const uint32_t i : instance_.open()) {
    const Operation& send = schedule_[i];
    if (send.kind != Operation::Kind::kSend) continue;
    Progress& progress = progress_[i];
    const uint32_t all = frames_of(send.range.bytes);
    if (progress.queued == all) continue;
    Lane& lane = lanes_.at(send.peer);
    // Messages between two ranks keep their order.
    if (lane.sends[lane.next_send] != i || lane.waits_for_card()) continue;
    if (lane.shown.sends) {
      const uint32_t there = whole_frames(send.range, clear_bytes(i));
      if (there > progress.queued && wire_.ready_for_grant(send.peer)) {
        progress.queued = there;
        wire_.shown(send.peer, progress.message, there);
      }
      if (progress.queued == all) ++lane.next_send;
      continue;
    }
    const uint32_t ready =
        std::min(progress.granted, whole_frames(send.range, clear_bytes(i)));
    if (waiting > kSendOverlap) break;
    waiting += std::min(ready * kFrameBytes, send.range.bytes) - progress.complete;
    while (progress.queued < ready && wire_.ready_for_block(send.peer)) {
      const uint32_t frame = progress.queued++;
      wire_.block(send.peer, progress.message, frame,
                  task_.data + send.range.offset + frame * kFrameBytes,
                  bytes_of_frame(send.range, frame), i);
    }
    if (progress.queued == all) ++lane.next_send;
  }
}

Status Run::on_grant(uint32_t from, uint32_t message, uint32_t frames) {
  const auto found = lanes_.find(from);
  if (found == lanes_.end() || message >= found->second.sends.size()) {
    return breach("rank ", from, " grants message ", message, " of '", task_.name,
                  "', which does not exist");
  }
  const uint32_t send = found->second.sends[message];
  Progress& progress = progress_[send];
  const uint32_t all = frames_of(schedule_[send].range.bytes);
  if (frames <= progress.granted || frames > all) {
    return breach("rank ", from, " grants ", frames, " frames of message ", message, " of '",
                  task_.name, "', which has ", all, " frames, after granting ", progress.granted);
  }
  progress.granted = frames;
  return {};
}

Status Run::on_block(uint32_t from, uint32_t message, uint32_t frame, size_t bytes, char* scratch,
                     transport::Destinations& out) {
  const auto refuse = [&](const char* what) {
    return breach("rank ", from, " sent frame ", frame, " of message ", message, " of '",
                  task_.name, "', ", bytes, " bytes: ", what);
  };
  const auto found = lanes_.find(from);
  if (found == lanes_.end()) return refuse("nothing is expected from this rank");
  Lane& lane = found->second;
  if (message != lane.next_receive || message >= lane.receives.size()) {
    return refuse("it is not the next message");
  }
  const uint32_t index = lane.receives[message];
  const Operation& receive = schedule_[index];
  const Progress& progress = progress_[index];
  if (lane.shown.receives) return refuse("it is read where the sender has it");
  if (frame >= progress.granted) return refuse("it was not granted");
  if (size_t{frame} * kFrameBytes != progress.received) return refuse("it is not the next frame");
  if (bytes != bytes_of_frame(receive.range, frame)) return refuse("the length is wrong");
  lane.frame_bytes = bytes;
  lane.arrived = lane.reduced = 0;
  char* place = scratch;
  if (!receive.sums() || task_.elsewhere) {
    place = task_.data + receive.range.offset + progress.received;
  } else if (receive.kept) {
    place = space_.get() + receive.place + progress.received;
  }
  out.add(place, bytes);
  return {};
}

void Run::on_bytes(uint32_t from, const char* scratch, size_t have) {
  Lane& lane = lanes_[from];
  const uint32_t index = lane.receives[lane.next_receive];
  const Operation& receive = schedule_[index];
  Progress& progress = progress_[index];
  const bool whole = have == lane.frame_bytes;
  const bool sums_at_once = receive.sums() && !receive.kept && !task_.elsewhere;
  if (sums_at_once) {
    const size_t item = size_of(task_.dtype);
    const size_t usable = have / item * item - lane.reduced;
    if (usable >= kReducePiece || whole) {
      reduce_piece(receive.half, progress.received + lane.reduced, scratch + lane.reduced, usable);
      lane.reduced += usable;
    }
  }
  if (whole) {
    progress.received += have;
    progress.complete = progress.received;
    if (sums_at_once) progress_[receive.half].complete += have;
    if (progress.received == receive.range.bytes) ++lane.next_receive;
  }
  lane.arrived = whole ? 0 : have;
  // In the middle of a frame, only grants may become possible, and only near the end of a message.
  if (whole || receive.range.bytes - progress.received - have <= kReceiveOverlap) advance();
}

void Run::reduce_piece(uint32_t sum, size_t offset, const char* from, size_t bytes) const {
  const Operation& operation = schedule_[sum];
  char* const to = task_.data + operation.range.offset + offset;
  const void* const sources[] = {to, from};
  const bool last = operation.finishes;
  const double divisor = last ? divisor_of(task_.reduction, size_) : 1.0;
  reduce::combine(sources, 2, to, bytes / size_of(task_.dtype),
                  {task_.dtype, task_.dtype, task_.reduction.op, 1.0, divisor,
                   last ? task_.reduction.postscale : 1.0});
}

void Run::sent(uint32_t operation, size_t bytes) {
  progress_[operation].complete += bytes;
  advance();
}

Status Run::on_card(uint32_t from, std::string_view text) {
  const auto found = lanes_.find(from);
  if (found == lanes_.end() || !found->second.waits_for_card()) {
    return breach("rank ", from, " sent a card of '", task_.name, "', which was not expected");
  }
  Lane& lane = found->second;
  lane.met = true;
  return task_.elsewhere ? task_.elsewhere->meet(from, text).move_to(lane.shown) : Status();
}

Status Run::on_shown(uint32_t from, uint32_t message, uint32_t frames) {
  const auto refuse = [&](const char* what) {
    return breach("rank ", from, " shows ", frames, " frames of message ", message, " of '",
                  task_.name, "': ", what);
  };
  const auto found = lanes_.find(from);
  if (found == lanes_.end() || !found->second.shown.receives) return refuse("nobody reads them");
  Lane& lane = found->second;
  if (message != lane.next_receive || message >= lane.receives.size()) {
    return refuse("it is not the next message");
  }
  const uint32_t index = lane.receives[message];
  const Operation& receive = schedule_[index];
  const size_t bytes = receive.range.bytes;
  const uint32_t all = frames_of(bytes);
  const size_t received = frames >= all ? bytes : frames * kFrameBytes;
  if (frames > all || received <= progress_[index].received) return refuse("the number is wrong");
  progress_[index].received = received;
  if (receive.sums()) progress_[index].complete = received;
  if (frames == all) ++lane.next_receive;
  return {};
}

Status Run::on_read(uint32_t from, uint32_t message) {
  const auto found = lanes_.find(from);
  const bool shows = found != lanes_.end() && found->second.shown.sends &&
                     message < found->second.sends.size();
  const uint32_t index = shows ? found->second.sends[message] : 0;
  const size_t bytes = shows ? schedule_[index].range.bytes : 0;
  if (!shows || progress_[index].queued < frames_of(bytes) ||
      progress_[index].complete == bytes) {
    return breach("rank ", from, " has read message ", message, " of '", task_.name,
                  "', which was not shown to it");
  }
  progress_[index].complete = bytes;
  return {};
}

std::vector<uint32_t> Run::peers() const {
  std::vector<uint32_t> peers;
  for (const auto& [peer, lane] : lanes_) peers.push_back(peer);
  return peers;
}

bool Run::needs(uint32_t peer) const {
  const auto found = lanes_.find(peer);
  if (found == lanes_.end()) return false;
  const Lane& lane = found->second;
  const auto left = [&](const std::vector<uint32_t>& messages, size_t Progress::*bytes) {
    return !messages.empty() &&
           progress_[messages.back()].*bytes < schedule_[messages.back()].range.bytes;
  };
  return left(lane.sends, &Progress::complete) || left(lane.receives, &Progress::received);
}

bool Run::waits_for_elsewhere() const {
  if (!task_.elsewhere) return false;
  const bool takes_out =
      pieces_.is_out < pieces_.outs.size() &&
      pieces_.ins_before[pieces_.is_out] <= pieces_.is_in &&
      !lanes_.at(schedule_[pieces_.outs[pieces_.is_out].operation].peer).waits_for_card();
  return takes_out || pieces_.is_in < pieces_.arrived || instance_.done();
}

std::vector<uint32_t> Run::missing() const {
  std::vector<uint32_t> ranks;
  const auto add = [&](uint32_t rank) {
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
  };
  for (const uint32_t i : instance_.open()) {
    const Operation& message = schedule_[i];
    if (!message.is_message()) continue;
    const Lane& lane = lanes_.at(message.peer);
    const Progress& progress = progress_[i];
    const bool receives = message.kind == Operation::Kind::kReceive;
    const bool granted = progress.received < progress.granted * kFrameBytes;
    if (receives && (granted || lane.shown.receives) && progress.received < message.range.bytes) {
      add(message.peer);
    }
    if (lane.waits_for_card()) add(message.peer);
  }
  const auto add_open = [&](Operation::Kind kind) {
    for (const uint32_t i : instance_.open()) {
      if (schedule_[i].kind == kind) add(schedule_[i].peer);
    }
  };
  if (ranks.empty()) add_open(Operation::Kind::kSend);
  if (ranks.empty()) add_open(Operation::Kind::kReceive);
  return ranks;
}

}  // namespace herring::collective
