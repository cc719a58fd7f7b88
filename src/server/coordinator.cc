#include "server/coordinator.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "plan/split.h"
#include "reduce/reduce.h"

namespace herring::server {
namespace {

using wire::Announce;
using wire::Collective;

uint64_t row_elements(const Announce& a) {
  return std::accumulate(a.shape.begin() + (a.shape.empty() ? 0 : 1), a.shape.end(), uint64_t{1},
                         std::multiplies<>());
}

uint64_t rows(const Announce& a) { return a.shape.empty() ? 1 : a.shape[0]; }

// May ranks differ in the first dimension?
bool ragged(Collective kind) {
  return kind == Collective::kAllgather || kind == Collective::kAlltoall;
}

bool agree(const Announce& a, const Announce& b) {
  if (a.kind != b.kind || a.dtype != b.dtype || a.op != b.op || a.root != b.root ||
      a.algorithm != b.algorithm ||
      a.prescale != b.prescale || a.postscale != b.postscale ||
      a.shape.size() != b.shape.size()) {
    return false;
  }
  const size_t from = ragged(a.kind) && !a.shape.empty() ? 1 : 0;
  return std::equal(a.shape.begin() + from, a.shape.end(), b.shape.begin() + from);
}

std::string describe(const Announce& a) {
  std::string shape;
  for (uint64_t d : a.shape) shape += (shape.empty() ? "" : ", ") + std::to_string(d);
  std::string text = concat(wire::name_of(a.kind), " of ", name_of(a.dtype), " [", shape, "]");
  if (a.kind == Collective::kAllreduce || a.kind == Collective::kReduceScatter) {
    text += concat(", op ", name_of(a.op));
    if (a.algorithm != wire::Algorithm::kHerring) {
      text += concat(", algorithm ", wire::name_of(a.algorithm));
    }
    if (a.prescale != 1.0) text += concat(", prescale ", a.prescale);
    if (a.postscale != 1.0) text += concat(", postscale ", a.postscale);
  }
  if (a.kind == Collective::kBroadcast) text += concat(", root ", a.root);
  return text;
}

std::string list_ranks(const std::vector<uint32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size();) {
    size_t j = i;
    while (j + 1 < ranks.size() && ranks[j + 1] == ranks[j] + 1) ++j;
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
    if (j > i) text += "-" + std::to_string(ranks[j]);
    i = j + 1;
  }
  return text;
}

}  // namespace

std::string describe_mismatch(const std::vector<Announce>& calls) {
  std::map<std::string, std::vector<uint32_t>> who;
  bool equal = true;
  for (uint32_t rank = 0; rank < calls.size(); ++rank) {
    equal &= agree(calls[0], calls[rank]);
    who[describe(calls[rank])].push_back(rank);
  }
  if (equal) return {};
  std::string text = concat("ranks disagree about '", calls[0].name, "':");
  for (const auto& [what, ranks] : who) text += concat(" ", list_ranks(ranks), ": ", what, ";");
  text.pop_back();
  return text;
}

Coordinator::Coordinator(const control::Cluster& cluster, uint32_t stream)
    : cluster_(cluster), stream_(stream) {}

Result<std::vector<Answer>> Coordinator::announce(uint32_t rank, std::string text, Nanos now) {
  auto decoded = wire::decode_announce(text);
  if (!decoded.ok()) return decoded.status();
  std::lock_guard lock(mutex_);
  const std::string name = decoded->name;
  Pending& pending = pending_[name];
  if (pending.calls.empty()) {
    pending.calls.resize(cluster_.size);
    pending.since = now;
  }
  Call& call = pending.calls[rank];
  if (call.here) {
    return Status(Code::kInternal, concat("rank ", rank, " announced '", name, "' twice"));
  }
  call.here = true;
  call.text = std::move(text);
  call.message = std::move(*decoded);
  // Moving the text may have moved its bytes; the payload is its tail.
  const size_t payload_bytes = call.message.payload.size();
  call.message.payload = std::string_view(call.text).substr(call.text.size() - payload_bytes);
  ++pending.arrived;
  if (pending.arrived == cluster_.size) {
    auto node = pending_.extract(name);
    return resolve(std::move(node.mapped()));
  }
  if (!left_.empty()) {
    auto node = pending_.extract(name);
    return fail(node.mapped(), Code::kPeerLost,
                concat("'", name, "' cannot complete: ",
                       cluster_.describe_rank(left_.front()), " has left the job"));
  }
  return std::vector<Answer>{};
}

std::vector<Answer> Coordinator::fail(const Pending& pending, Code code,
                                      const std::string& text) const {
  std::vector<Answer> answers;
  for (uint32_t rank = 0; rank < pending.calls.size(); ++rank) {
    if (!pending.calls[rank].here) continue;
    wire::FrameHeader header;
    header.type = wire::FrameType::kOpError;
    const uint64_t id = pending.calls[rank].message.id;
    answers.push_back({rank, header, encode(wire::OpError{id, code, text})});
  }
  return answers;
}

std::vector<Answer> Coordinator::resolve(Pending pending) {
  std::vector<Announce> calls;
  bool small = true;
  for (const Call& call : pending.calls) {
    calls.push_back(call.message);
    small &= call.message.inline_payload;
  }
  if (const std::string text = describe_mismatch(calls); !text.empty()) {
    return fail(pending, Code::kMismatch, text);
  }
  const Announce& first = calls[0];
  if (first.kind == Collective::kBroadcast && first.root >= cluster_.size) {
    return fail(pending, Code::kInvalidArgument,
                concat("root ", first.root, " of '", first.name, "' is no rank; the job has ",
                       cluster_.size));
  }
  for (const Announce& call : calls) {
    const bool reduces =
        call.kind == Collective::kAllreduce || call.kind == Collective::kReduceScatter;
    Status status =
        reduces ? check_reducible(call.dtype, call.op, call.prescale, call.postscale) : Status();
    if (call.kind == Collective::kAlltoall) {
      const uint64_t sum = std::accumulate(call.splits.begin(), call.splits.end(), uint64_t{0});
      if (call.splits.size() != cluster_.size || sum != rows(call)) {
        status = {Code::kInvalidArgument,
                  concat("splits of '", call.name, "' must be ", cluster_.size,
                         " counts that sum to the first dimension, ", rows(call))};
      }
    }
    if (!status.ok()) return fail(pending, status.code(), status.message());
  }
  if (small) return compute(pending);

  wire::Go go;
  if (first.kind == Collective::kAllgather) {
    for (const Announce& call : calls) {
      go.counts.push_back(call.elements());
      go.dims.push_back(rows(call));
    }
  } else if (first.kind == Collective::kAlltoall) {
    for (const Announce& call : calls) {
      for (uint64_t split : call.splits) go.counts.push_back(split * row_elements(call));
    }
  }
  const uint32_t ticket = next_ticket_++;
  std::vector<Answer> answers;
  for (uint32_t rank = 0; rank < cluster_.size; ++rank) {
    wire::FrameHeader header;
    header.type = wire::FrameType::kGo;
    header.stream = stream_;
    header.round = ticket;
    go.id = calls[rank].id;
    answers.push_back({rank, header, encode(go)});
  }
  return answers;
}

std::vector<Answer> Coordinator::compute(const Pending& pending) const {
  const Announce& first = pending.calls[0].message;
  const size_t item = size_of(first.dtype);
  const uint32_t size = cluster_.size;
  std::string common;                         // result that all ranks share
  std::vector<std::string> own(size);         // or one for each
  wire::Go head;
  switch (first.kind) {
    case Collective::kBarrier: break;
    case Collective::kBroadcast: common = pending.calls[first.root].message.payload; break;
    case Collective::kAllreduce:
    case Collective::kReduceScatter: {
      std::vector<const void*> sources;
      for (const Call& call : pending.calls) sources.push_back(call.message.payload.data());
      std::string result(first.payload.size(), '\0');
      const reduce::Stage stage{first.dtype, first.dtype, first.op, first.prescale,
                                first.op == ReduceOp::kAverage ? double(size) : 1.0,
                                first.postscale};
      reduce::combine(sources.data(), size, result.data(), result.size() / item, stage);
      if (first.kind == Collective::kAllreduce) {
        common = std::move(result);
        break;
      }
      const size_t row = row_elements(first) * item;
      for (uint32_t rank = 0; rank < size; ++rank) {
        const plan::Part part = plan::even_split(rows(first), size, rank);
        own[rank] = result.substr(part.first * row, part.count * row);
      }
      break;
    }
    case Collective::kAllgather:
      for (const Call& call : pending.calls) {
        common += call.message.payload;
        head.counts.push_back(call.message.elements());
        head.dims.push_back(rows(call.message));
      }
      break;
    case Collective::kAlltoall:
      for (uint32_t from = 0; from < size; ++from) {
        const Announce& call = pending.calls[from].message;
        const size_t row = row_elements(call) * item;
        size_t at = 0;
        for (uint32_t to = 0; to < size; ++to) {
          own[to] += call.payload.substr(at, call.splits[to] * row);
          at += call.splits[to] * row;
          head.counts.push_back(call.splits[to] * row_elements(call));
        }
      }
      break;
  }
  std::vector<Answer> answers;
  for (uint32_t rank = 0; rank < size; ++rank) {
    wire::FrameHeader header;
    header.type = wire::FrameType::kReply;
    head.id = pending.calls[rank].message.id;
    answers.push_back({rank, header, encode(head) + (own[rank].empty() ? common : own[rank])});
  }
  return answers;
}

std::string Coordinator::missing(const Pending& pending) const {
  std::string text;
  for (uint32_t rank = 0; rank < pending.calls.size(); ++rank) {
    if (!pending.calls[rank].here) {
      text += (text.empty() ? "" : ", ") + cluster_.describe_rank(rank);
    }
  }
  return text;
}

std::vector<Answer> Coordinator::overdue(Nanos now) {
  std::vector<Answer> answers;
  std::lock_guard lock(mutex_);
  for (auto it = pending_.begin(); it != pending_.end();) {
    Pending& pending = it->second;
    const auto here = std::find_if(pending.calls.begin(), pending.calls.end(),
                                   [](const Call& call) { return call.here; });
    const Nanos age = now - pending.since;
    if (age > here->message.timeout_ms * kMillisecond) {
      auto failed = fail(pending, Code::kTimeout,
                         concat(wire::name_of(here->message.kind), " '", it->first, "' waited ",
                                to_seconds(age), " s for ", missing(pending),
                                ", which did not call it; check that every rank makes the same "
                                "calls, or raise HERRING_TIMEOUT"));
      std::move(failed.begin(), failed.end(), std::back_inserter(answers));
      it = pending_.erase(it);
      continue;
    }
    if (!pending.warned && age > here->message.warn_ms * kMillisecond) {
      pending.warned = true;
      const auto rank = static_cast<uint32_t>(here - pending.calls.begin());
      wire::FrameHeader header;
      header.type = wire::FrameType::kWarning;
      answers.push_back({rank, header,
                         concat(wire::name_of(here->message.kind), " '", it->first, "' has waited ",
                                age / kSecond, " s for ", missing(pending))});
    }
    ++it;
  }
  return answers;
}

std::vector<Answer> Coordinator::rank_left(uint32_t rank) {
  std::vector<Answer> answers;
  std::lock_guard lock(mutex_);
  left_.push_back(rank);
  for (auto it = pending_.begin(); it != pending_.end();) {
    if (it->second.calls[rank].here) {
      ++it;
      continue;
    }
    auto failed = fail(it->second, Code::kPeerLost,
                       concat("'", it->first, "' cannot complete: ", cluster_.describe_rank(rank),
                              " has left the job without calling it"));
    std::move(failed.begin(), failed.end(), std::back_inserter(answers));
    it = pending_.erase(it);
  }
  return answers;
}

}  // namespace herring::server
