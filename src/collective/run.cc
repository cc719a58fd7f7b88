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
      schedule_(!task_.steps.empty() ? task_.steps
                                     : make_schedule(task_.algorithm, rank, size, task_.count,
                                                     size_of(task_.dtype))),
      progress_(schedule_.size()) {
  for (uint32_t i = 0; i < schedule_.size(); ++i) {
    if (const uint32_t to = schedule_[i].to; to != kNobody) {
      progress_[i].send_message = static_cast<uint32_t>(lanes_[to].sends.size());
      lanes_[to].sends.push_back(i);
    }
    if (const uint32_t from = schedule_[i].from; from != kNobody) {
      progress_[i].receive_message = static_cast<uint32_t>(lanes_[from].receives.size());
      lanes_[from].receives.push_back(i);
    }
  }
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

uint32_t Run::window_end() const {
  return static_cast<uint32_t>(std::min<size_t>(schedule_.size(), first_ + kLookAhead + 1));
}

// Returns how many bytes at the beginning of `range` are usable: they are in host memory, and no
// earlier step still has to receive (or send) them.
size_t Run::clear_bytes(uint32_t step, Range range, bool also_sends) const {
  size_t end = range.end();
  for (uint32_t i = first_; i < step; ++i) {
    limit(end, range, schedule_[i].receive, progress_[i].combined);
    if (also_sends) limit(end, range, schedule_[i].send, progress_[i].sent_bytes);
  }
  for (uint32_t k = pieces_.is_out; k < pieces_.outs.size() && pieces_.outs[k].step <= step; ++k) {
    limit(end, range, pieces_.outs[k].range, 0);
  }
  return end - range.offset;
}

// Reads the progress of the DeviceSide. Must not be called before the run has started.
void Run::look_elsewhere() {
  pieces_.is_out = task_.elsewhere->outs();
  const uint32_t is_in = task_.elsewhere->ins();
  for (; pieces_.is_in < is_in; ++pieces_.is_in) {
    const Piece& piece = pieces_.ins[pieces_.is_in];
    const bool adds = piece.what == Piece::What::kReduce || piece.what == Piece::What::kFinish;
    const bool copies = piece.what == Piece::What::kCopy && is_shown(schedule_[piece.step]);
    if (adds || copies) progress_[piece.step].combined += piece.range.bytes;
  }
  const uint32_t arrived = pieces_.arrived;
  for (; pieces_.arrived < pieces_.ins.size(); ++pieces_.arrived) {
    const Piece& piece = pieces_.ins[pieces_.arrived];
    if (piece.what == Piece::What::kScale) continue;
    const size_t end = piece.range.end() - schedule_[piece.step].receive.offset;
    if (progress_[piece.step].received < end) break;
  }
  if (pieces_.arrived > arrived) task_.elsewhere->arrived(pieces_.arrived);
}

// Returns whether this rank reads what it receives in the step where the sender has it.
bool Run::is_shown(const Step& step) const {
  return step.from != kNobody && lanes_.at(step.from).shown.receives;
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
  for (uint32_t i = first_; i < schedule_.size(); ++i) {
    const Step& step = schedule_[i];
    Progress& progress = progress_[i];
    if (!is_shown(step) || step.receive.bytes == 0) continue;  // an empty message is not shown
    if (progress.told_read || progress.combined < step.receive.bytes) continue;
    progress.told_read = true;
    wire_.read(step.from, progress.receive_message);
  }
}

void Run::advance() {
  advance_cards();
  if (task_.elsewhere) look_elsewhere();
  advance_reads();
  while (first_ < schedule_.size() && progress_[first_].done(schedule_[first_])) ++first_;
  advance_grants();
  advance_sends();
}

// Returns whether ranks of earlier steps still have to send much of what they were granted.
bool Run::others_are_sending(uint32_t step) const {
  size_t outstanding = 0;
  for (uint32_t i = first_; i < step; ++i) {
    const Step& earlier = schedule_[i];
    if (earlier.from == kNobody || earlier.from == schedule_[step].from) continue;
    if (is_shown(earlier)) continue;
    const Progress& progress = progress_[i];
    const size_t granted = std::min(progress.granted * kFrameBytes, earlier.receive.bytes);
    outstanding += granted - progress.received;
    const Lane& lane = lanes_.at(earlier.from);
    if (lane.receives[std::min(lane.next_receive, lane.receives.size() - 1)] == i) {
      outstanding -= lane.arrived;
    }
  }
  return outstanding > kReceiveOverlap;
}

void Run::advance_grants() {
  for (uint32_t i = first_; i < window_end(); ++i) {
    const Step& step = schedule_[i];
    Progress& progress = progress_[i];
    if (step.from == kNobody || progress.granted == frames_of(step.receive.bytes)) continue;
    if (is_shown(step) || lanes_.at(step.from).waits_for_card()) continue;
    const uint32_t frames =
        whole_frames(step.receive, clear_bytes(i, step.receive, true));
    if (frames <= progress.granted || !wire_.ready_for_grant(step.from)) continue;
    if (others_are_sending(i)) continue;
    progress.granted = frames;
    wire_.grant(step.from, progress.receive_message, frames);
  }
}

void Run::advance_sends() {
  size_t waiting = 0;  // bytes of earlier steps that could leave at once
  for (uint32_t i = first_; i < window_end(); ++i) {
    const Step& step = schedule_[i];
    Progress& progress = progress_[i];
    const uint32_t all = frames_of(step.send.bytes);
    if (step.to == kNobody || progress.queued == all) continue;
    Lane& lane = lanes_[step.to];
    // Messages between two ranks keep their order.
    if (lane.sends[lane.next_send] != i || lane.waits_for_card()) continue;
    if (lane.shown.sends) {
      const uint32_t there = whole_frames(step.send, clear_bytes(i, step.send, false));
      if (there > progress.queued && wire_.ready_for_grant(step.to)) {
        progress.queued = there;
        wire_.shown(step.to, progress.send_message, there);
      }
      if (progress.queued == all) ++lane.next_send;
      continue;
    }
    const uint32_t ready = std::min(
        progress.granted_to_us, whole_frames(step.send, clear_bytes(i, step.send, false)));
    if (waiting > kSendOverlap) break;
    waiting += std::min(ready * kFrameBytes, step.send.bytes) - progress.sent_bytes;
    while (progress.queued < ready && wire_.ready_for_block(step.to)) {
      const uint32_t frame = progress.queued++;
      wire_.block(step.to, progress.send_message, frame,
                  task_.data + step.send.offset + frame * kFrameBytes,
                  bytes_of_frame(step.send, frame), i);
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
  const uint32_t step = found->second.sends[message];
  Progress& progress = progress_[step];
  if (frames <= progress.granted_to_us || frames > frames_of(schedule_[step].send.bytes)) {
    return breach("rank ", from, " grants ", frames, " frames of message ", message, " of '",
                  task_.name, "', which has ", frames_of(schedule_[step].send.bytes),
                  " frames, after granting ", progress.granted_to_us);
  }
  progress.granted_to_us = frames;
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
  const Step& step = schedule_[index];
  const Progress& progress = progress_[index];
  if (lane.shown.receives) return refuse("it is read where the sender has it");
  if (frame >= progress.granted) return refuse("it was not granted");
  if (size_t{frame} * kFrameBytes != progress.received) return refuse("it is not the next frame");
  if (bytes != bytes_of_frame(step.receive, frame)) return refuse("the length is wrong");
  lane.frame_bytes = bytes;
  lane.arrived = lane.reduced = 0;
  const bool in_place = step.combine == Combine::kCopy || task_.elsewhere;
  out.add(in_place ? task_.data + step.receive.offset + progress.received : scratch, bytes);
  return {};
}

void Run::on_bytes(uint32_t from, const char* scratch, size_t have) {
  Lane& lane = lanes_[from];
  const uint32_t index = lane.receives[lane.next_receive];
  const Step& step = schedule_[index];
  Progress& progress = progress_[index];
  const bool whole = have == lane.frame_bytes;
  const bool adds = step.combine != Combine::kCopy;
  if (adds && !task_.elsewhere) {
    const size_t item = size_of(task_.dtype);
    const size_t usable = have / item * item - lane.reduced;
    if (usable >= kReducePiece || whole) {
      reduce_piece(step, progress.received + lane.reduced, scratch + lane.reduced, usable);
      lane.reduced += usable;
    }
  }
  if (whole) {
    progress.received += have;
    if (!adds || !task_.elsewhere) progress.combined += have;
    if (progress.received == step.receive.bytes) ++lane.next_receive;
  }
  lane.arrived = whole ? 0 : have;
  // In the middle of a frame, only grants may become possible, and only near the end of a message.
  if (whole || step.receive.bytes - progress.received - have <= kReceiveOverlap) advance();
}

void Run::reduce_piece(const Step& step, size_t offset, const char* from, size_t bytes) const {
  char* const to = task_.data + step.receive.offset + offset;
  const void* const sources[] = {to, from};
  const bool last = step.combine == Combine::kFinish;
  const double divisor = last ? divisor_of(task_.reduction, size_) : 1.0;
  reduce::combine(sources, 2, to, bytes / size_of(task_.dtype),
                  {task_.dtype, task_.dtype, task_.reduction.op, 1.0, divisor,
                   last ? task_.reduction.postscale : 1.0});
}

void Run::sent(uint32_t step, size_t bytes) {
  progress_[step].sent_bytes += bytes;
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
  const size_t bytes = schedule_[index].receive.bytes;
  const uint32_t all = frames_of(bytes);
  const size_t received = frames >= all ? bytes : frames * kFrameBytes;
  if (frames > all || received <= progress_[index].received) return refuse("the number is wrong");
  progress_[index].received = received;
  if (frames == all) ++lane.next_receive;
  return {};
}

Status Run::on_read(uint32_t from, uint32_t message) {
  const auto found = lanes_.find(from);
  const bool shows = found != lanes_.end() && found->second.shown.sends &&
                     message < found->second.sends.size();
  const uint32_t index = shows ? found->second.sends[message] : 0;
  const size_t bytes = shows ? schedule_[index].send.bytes : 0;
  if (!shows || progress_[index].queued < frames_of(bytes) ||
      progress_[index].sent_bytes == bytes) {
    return breach("rank ", from, " has read message ", message, " of '", task_.name,
                  "', which was not shown to it");
  }
  progress_[index].sent_bytes = bytes;
  return {};
}

std::vector<uint32_t> Run::peers() const {
  std::vector<uint32_t> peers;
  for (const auto& [peer, lane] : lanes_) peers.push_back(peer);
  return peers;
}

bool Run::needs(uint32_t peer) const {
  for (uint32_t i = first_; i < schedule_.size(); ++i) {
    const Step& step = schedule_[i];
    if ((step.from == peer && progress_[i].received < step.receive.bytes) ||
        (step.to == peer && progress_[i].sent_bytes < step.send.bytes)) {
      return true;
    }
  }
  return false;
}

bool Run::waits_for_elsewhere() const {
  if (!task_.elsewhere) return false;
  const bool takes_out =
      pieces_.is_out < pieces_.outs.size() &&
      pieces_.ins_before[pieces_.is_out] <= pieces_.is_in &&
      !lanes_.at(schedule_[pieces_.outs[pieces_.is_out].step].to).waits_for_card();
  return takes_out || pieces_.is_in < pieces_.arrived || first_ == schedule_.size();
}

std::vector<uint32_t> Run::missing() const {
  std::vector<uint32_t> ranks;
  const auto add = [&](uint32_t rank) {
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
  };
  for (uint32_t i = first_; i < window_end(); ++i) {
    const Step& step = schedule_[i];
    const bool granted = progress_[i].received < progress_[i].granted * kFrameBytes;
    if ((granted || is_shown(step)) && progress_[i].received < step.receive.bytes) add(step.from);
    for (const uint32_t peer : {step.from, step.to}) {
      if (peer != kNobody && lanes_.at(peer).waits_for_card()) add(peer);
    }
  }
  for (uint32_t i = first_; ranks.empty() && i < window_end(); ++i) {
    if (progress_[i].sent_bytes < schedule_[i].send.bytes) add(schedule_[i].to);
  }
  for (uint32_t i = first_; ranks.empty() && i < window_end(); ++i) {
    if (schedule_[i].from != kNobody) add(schedule_[i].from);
  }
  return ranks;
}

}  // namespace herring::collective
