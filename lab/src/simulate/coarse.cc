#include "simulate/coarse.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <limits>
#include <optional>
#include <random>

#include "links/credit.h"
#include "links/window.h"

namespace herring::simulate {
namespace {

// Times are in seconds.
constexpr double kTimeout = 0.2;     // least retransmission timeout beyond the round trip
constexpr double kPoll = 0.05;       // between two polls of the paths' state (engine.cc)
constexpr double kStretch = 0.01;    // in which the pace does not change
constexpr double kFinest = 250e-6;   // results within this time are counted together
constexpr double kGrains = 16;       // the end of a stall is rounded to its length divided by this
constexpr uint64_t kMostRounds = 1'000'000;
constexpr uint64_t kMostSteps = 200'000'000;

Nanos nanos(double seconds) { return static_cast<Nanos>(std::llround(seconds * 1e9)); }

class Job {
 public:
  Job(const Scenario& scenario, uint64_t seed)
      : scenario_(scenario),
        pace_(scenario),
        fixed_(scenario.credit != 0),
        controller_(static_cast<uint16_t>(fixed_ ? scenario.credit / scenario.segment_bytes : 1),
                    static_cast<uint16_t>(scenario.credit_max / scenario.segment_bytes), fixed_,
                    scenario.segment_bytes),
        random_(seed),
        reaches_(pace_.shapes().size()),
        groups_(pace_.shapes().size()),
        active_(pace_.shapes().size(), 1.0) {
    controller_.set_flows(scenario.server_count());
    effective_ = controller_.credit();
    refresh();
  }

  Round round();
  void pause() { now_ += scenario_.pause; }
  double now() const { return now_; }
  const Pace& pace() const { return pace_; }
  uint64_t steps() const { return steps_; }

 private:
  struct Held {
    double until;
    uint64_t servers;
  };
  // The servers of one class in this round.
  struct Group {
    double left = 0;     // mean bytes that a node still needs from one of the servers
    double begins = 0;   // when the first results come
    std::deque<Held> held;
    uint64_t stopped = 0;
    double turns = 0;    // turns that each server has made
    double recoveries = 0, timeouts = 0;  // sums over all servers
    bool finished = false;
  };
  struct Change {
    double at;
    size_t credit;
  };

  void refresh();
  void step(double until);
  double next_event(const Group& group) const;
  void release();
  double advance(size_t s, double span);
  double hold_up(Group& group, const Shape& shape, double rate, double span, double time,
                 double* count);
  double tail(size_t s);
  void answer(double bytes, double busy, double outstanding);
  void follow();
  void poll();
  double normal() { return std::normal_distribution<double>()(random_); }
  double uniform() { return std::uniform_real_distribution<double>()(random_); }
  double most_of(double servers, double trials, double mean);
  double window_bytes() const;
  double queued(size_t s) const;

  const Scenario& scenario_;
  const Pace pace_;
  const bool fixed_;
  links::CreditController controller_;
  std::mt19937_64 random_;
  std::vector<Pace::Reach> reaches_;
  std::vector<Group> groups_;
  std::vector<double> active_;
  State state_;
  Turns turns_;
  size_t effective_ = 1;         // the credit of the results that come in
  std::deque<Change> changes_;   // changes whose frames are under way
  double now_ = 0;
  double stretch_ends_ = 0, pace_factor_ = 1;
  double next_poll_ = kPoll;
  double unheard_ = 0, heard_ = 0;  // losses that no poll has seen yet, and that one poll has seen
  double pending_bytes_ = 0, pending_busy_ = 0;
  std::array<double, kBounds> spent_ = {};
  uint64_t losses_ = 0, timeouts_ = 0;
  uint64_t steps_ = 0;
};

void Job::refresh() {
  state_ = pace_.state(effective_, reaches_);
  turns_ = pace_.turns(state_, active_);
}

// Returns the bytes that rank 0 has outstanding.
double Job::window_bytes() const {
  double bytes = 0;
  for (size_t s = 0; s < groups_.size(); ++s) {
    if (groups_[s].finished) continue;
    const Shape& shape = pace_.shapes()[s];
    bytes += shape.servers * shape.lanes * state_.chains[s].frames * state_.chains[s].frame;
  }
  return bytes / scenario_.hosts[0].workers;
}

// Returns how long packets wait on both ways beyond a response, limited by what ports hold.
double Job::queued(size_t s) const {
  const Chain& chain = state_.chains[s];
  return std::clamp(turns_.turn[s] - chain.response, 0.0, 2 * chain.queue);
}

// Tells the controller about results, as links::Links does for each frame.
void Job::answer(double bytes, double busy, double outstanding) {
  pending_bytes_ += bytes;
  pending_busy_ += busy;
  if (pending_bytes_ < 1) return;
  const double whole = std::floor(pending_bytes_);
  controller_.on_progress(static_cast<size_t>(whole), nanos(pending_busy_),
                          static_cast<size_t>(outstanding), nanos(now_));
  pending_bytes_ -= whole;
  pending_busy_ = 0;
  follow();
}

// Schedules a change of credit. Results show it when frames of the new window are answered.
void Job::follow() {
  const size_t latest = changes_.empty() ? effective_ : changes_.back().credit;
  const size_t credit = controller_.credit();
  if (credit != latest) {
    changes_.push_back({now_ + *std::max_element(turns_.turn.begin(), turns_.turn.end()), credit});
  }
}

void Job::poll() {
  next_poll_ += kPoll;
  const auto& shapes = pace_.shapes();
  double queueing = 0, servers = 0, nearest = std::numeric_limits<double>::max();
  size_t near = 0;
  for (size_t s = 0; s < shapes.size(); ++s) {
    const Chain& chain = state_.chains[s];
    // Packets that wait beyond a response wait half of the time on each way.
    const double waits = chain.queueing + queued(s) / 2;
    const double noise = scenario_.noise * (normal() * waits + std::abs(normal()) * shapes[s].rtt);
    queueing += shapes[s].servers * std::max(waits + noise, 0.0);
    servers += shapes[s].servers;
    if (shapes[s].rtt < nearest) {
      nearest = shapes[s].rtt;
      near = s;
    }
  }
  std::vector<Pace::Reach> reaches(shapes.size());
  for (size_t s = 0; s < shapes.size(); ++s) {
    const double waits = state_.chains[s].queueing + queued(s) / 2;
    reaches[s].frames = links::frames_of(shapes[s].rtt + waits, turns_.turn[s]);
    if (fixed_) continue;
    reaches[s].length =
        links::length_of(1e9 * (shapes[s].rtt - nearest), 1e9 * turns_.turn[near]);
  }
  if (reaches != reaches_) {
    reaches_ = std::move(reaches);
    refresh();
  }
  controller_.on_queueing(nanos(queueing / servers));
  // A loss counts at the second poll, see transport::LossCounter.
  if (heard_ >= 1) controller_.on_losses(static_cast<uint32_t>(std::min(heard_, 1e9)), nanos(now_));
  heard_ = std::exchange(unheard_, 0);
  follow();
}

// Each of `servers` counts successes in `trials` trials with the given mean. Draws the largest of
// these counts, by inversion: the largest of m is the u^(1/m) quantile.
double Job::most_of(double servers, double trials, double mean) {
  if (mean <= 0) return 0;
  trials = std::max(std::ceil(trials), std::ceil(mean));
  const double quantile = std::pow(uniform(), 1 / servers);
  const double p = std::min(mean / trials, 1.0);
  if (p >= 1) return trials;
  double term = std::exp(trials * std::log1p(-p)), sum = term, k = 0;
  if (term > 1e-300) {
    for (; sum < quantile && k < trials; ++k) {
      term *= (trials - k) / (k + 1) * p / (1 - p);
      if (term == 0) break;
      sum += term;
    }
    return k;
  }
  // For large counts the normal distribution is good enough; bisection finds its quantile.
  double low = -10, high = 10;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(-middle / std::sqrt(2.0)) < quantile ? low : high) = middle;
  }
  return std::clamp(mean + low * std::sqrt(mean * (1 - p)), mean, trials);
}

// Draws which servers stall within a span of time, if stalls occur at this rate and last for
// `time`. Returns the sum of the time for which these servers stand still within the span.
double Job::hold_up(Group& group, const Shape& shape, double rate, double span, double time,
                    double* count) {
  const auto running = static_cast<uint64_t>(shape.servers) - group.stopped;
  if (rate <= 0 || time <= 0 || running == 0) return 0;
  const double chance = -std::expm1(-rate * span);
  const auto hit = std::binomial_distribution<uint64_t>(running, std::min(chance, 1.0))(random_);
  if (hit == 0) return 0;
  const double before = rate * span < 1e-6 ? span / 2
                                           : 1 / rate - span / std::expm1(rate * span);
  // Rounds the end to one of a few moments; otherwise each stall would need a step of its own.
  const double grain = time / kGrains;
  const double until = std::max(std::round((now_ + before + time) / grain) * grain, now_ + grain);
  group.stopped += hit;
  const auto at = std::find_if(group.held.begin(), group.held.end(),
                               [&](const Held& held) { return held.until > until; });
  if (at != group.held.begin() && std::prev(at)->until == until) {
    std::prev(at)->servers += hit;
  } else {
    group.held.insert(at, {until, hit});
  }
  *count += static_cast<double>(hit);
  return static_cast<double>(hit) * (span - before);
}

// Advances a class of servers by `span`; returns the bytes that a node gets from it.
double Job::advance(size_t s, double span) {
  Group& group = groups_[s];
  const Shape& shape = pace_.shapes()[s];
  const Chain& chain = state_.chains[s];
  const double turn = turns_.turn[s];
  const double running = shape.servers - static_cast<double>(group.stopped);
  // Queues are worked off during a recovery.
  const double slack = queued(s);
  const double timeout = kTimeout + shape.rtt - slack / 2;
  const double recovery = shape.rtt + chain.queueing - slack / 2;
  double idle = hold_up(group, shape, chain.timeout / turn, span, timeout, &group.timeouts);
  idle += hold_up(group, shape, chain.recovery / turn, span, recovery, &group.recoveries);
  const double ran = std::max(running * span - idle, 0.0) * pace_factor_;
  const double turns = ran / turn;
  group.turns += turns / shape.servers;
  const double lost = turns * chain.lost;
  if (lost > 0) {
    const auto packets = std::poisson_distribution<uint64_t>(std::min(lost, 1e12))(random_);
    losses_ += packets;
    unheard_ += static_cast<double>(packets);
  }
  const double bytes = std::min(turns * chain.frames * chain.frame * shape.lanes,
                                group.left * shape.servers);
  group.left -= bytes / shape.servers;
  return bytes;
}

double Job::next_event(const Group& group) const {
  return group.held.empty() ? std::numeric_limits<double>::infinity() : group.held.front().until;
}

void Job::release() {
  for (size_t s = 0; s < groups_.size(); ++s) {
    Group& group = groups_[s];
    while (!group.held.empty() && group.held.front().until <= now_) {
      group.stopped -= group.held.front().servers;
      group.held.pop_front();
    }
  }
  bool any = false;
  std::vector<double> active;
  for (size_t s = 0; s < groups_.size(); ++s) {
    const Group& group = groups_[s];
    const bool runs = !group.finished && now_ >= group.begins;
    any |= runs && group.stopped > 0;
    active.push_back(runs ? 1 - static_cast<double>(group.stopped) / pace_.shapes()[s].servers
                          : 0.0);
  }
  // No server gets ahead of another, so one that stands still holds up all.
  if (pace_.balanced() && any) std::fill(active.begin(), active.end(), 0.0);
  if (active != active_) {
    active_ = active;
    turns_ = pace_.turns(state_, active_);
  }
}

// Advances time to the next change of credit, pace or running servers, or to `until`.
void Job::step(double until) {
  ++steps_;
  if (now_ >= stretch_ends_) {
    const double turn = *std::max_element(turns_.turn.begin(), turns_.turn.end());
    stretch_ends_ = now_ + std::max(kStretch, turn);
    pace_factor_ = std::max(1 + scenario_.noise * normal(), 0.1);
  }
  if (!changes_.empty() && changes_.front().at <= now_) {
    effective_ = changes_.front().credit;
    changes_.pop_front();
    active_.assign(active_.size(), -1);
    state_ = pace_.state(effective_, reaches_);
  }
  release();
  until = std::min({until, stretch_ends_, std::max(next_poll_, now_)});
  if (!changes_.empty()) until = std::min(until, changes_.front().at);
  const double fastest = *std::min_element(turns_.turn.begin(), turns_.turn.end());
  if (!fixed_) until = std::min(until, now_ + std::max(kFinest, fastest / 8));
  for (size_t s = 0; s < groups_.size(); ++s) {
    const Group& group = groups_[s];
    if (group.finished) continue;
    until = std::min(until, std::max(next_event(group), now_ + 1e-9));
    if (now_ < group.begins) {
      until = std::min(until, group.begins);
    } else if (active_[s] > 0) {
      const Chain& chain = state_.chains[s];
      const double rate = active_[s] * pace_factor_ * chain.frames * chain.frame *
                          pace_.shapes()[s].lanes / turns_.turn[s];
      until = std::min(until, now_ + group.left / rate + 1e-9);
    }
  }
  const double span = std::max(until - now_, 1e-9);
  double bytes = 0, stopped = 0, servers = 0;
  for (size_t s = 0; s < groups_.size(); ++s) {
    Group& group = groups_[s];
    if (group.finished) continue;
    servers += pace_.shapes()[s].servers;
    stopped += active_[s] == 0 && now_ >= group.begins ? pace_.shapes()[s].servers
                                                       : static_cast<double>(group.stopped);
    if (active_[s] > 0) bytes += advance(s, span);
  }
  now_ += span;
  const double lost = servers > 0 ? stopped / servers : 0;
  spent_[static_cast<size_t>(Bound::kLoss)] += lost * span;
  spent_[static_cast<size_t>(turns_.bound)] += (1 - lost) * span;
  answer(bytes / scenario_.hosts[0].workers, span, window_bytes());
  if (now_ >= next_poll_) poll();
}

// Returns how much later than the average server the last server of a class is done.
double Job::tail(size_t s) {
  const Group& group = groups_[s];
  const Shape& shape = pace_.shapes()[s];
  const Chain& chain = state_.chains[s];
  if (shape.servers < 2 || pace_.balanced()) return 0;
  const double slack = queued(s);
  const double timeout = kTimeout + shape.rtt - slack / 2;
  const double recovery = std::max(shape.rtt + chain.queueing - slack / 2, 0.0);
  const double mean_timeouts = group.timeouts / shape.servers;
  const double mean_recoveries = group.recoveries / shape.servers;
  const double most = timeout * most_of(shape.servers, group.turns, mean_timeouts) +
                      recovery * most_of(shape.servers, group.turns, mean_recoveries);
  const double late = std::max(most - timeout * mean_timeouts - recovery * mean_recoveries, 0.0);
  // The last server has the nodes' links for itself.
  const double alone = std::max(chain.frames * chain.set, chain.response);
  return late * std::min(alone / turns_.turn[s], 1.0);
}

Round Job::round() {
  const double began = now_;
  spent_ = {};
  losses_ = timeouts_ = 0;
  controller_.on_start(nanos(now_));
  pending_busy_ = 0;
  // Nothing is under way, so the first frames use the latest credit.
  if (!changes_.empty()) {
    effective_ = changes_.back().credit;
    changes_.clear();
    refresh();
  }
  stretch_ends_ = std::max(stretch_ends_, now_);
  next_poll_ = std::max(next_poll_, now_);
  for (size_t s = 0; s < groups_.size(); ++s) {
    Group& group = groups_[s];
    group = {};
    group.left = pace_.shapes()[s].bytes;
    group.begins = now_ + state_.chains[s].response;
  }
  // At the end of the first turn, all frames of the window have been answered.
  std::vector<bool> head(groups_.size(), true);
  double ends = now_;
  for (bool more = true; more && steps_ < kMostSteps;) {
    step(std::numeric_limits<double>::infinity());
    more = false;
    for (size_t s = 0; s < groups_.size(); ++s) {
      Group& group = groups_[s];
      const Shape& shape = pace_.shapes()[s];
      const Chain& chain = state_.chains[s];
      if (!group.finished && head[s] && now_ >= group.begins) {
        head[s] = false;
        const double window = chain.frames * chain.frame * shape.lanes;
        const double rest = (chain.frames - 1) * chain.set * window / turns_.turn[s];
        const double bytes = std::min(std::max(window - rest, 0.0), group.left);
        group.left -= bytes;
        answer(bytes * shape.servers / scenario_.hosts[0].workers, 0, window_bytes());
      }
      if (!group.finished && !head[s] && group.left < 0.5) {
        group.finished = true;
        ends = std::max(ends, now_ + tail(s));
        timeouts_ += static_cast<uint64_t>(group.timeouts);
      }
      more |= !group.finished;
    }
  }
  if (ends > now_) {
    const double late = ends - now_;
    now_ = ends;
    spent_[static_cast<size_t>(Bound::kLoss)] += late;
    answer(static_cast<double>(scenario_.segment_bytes), late, window_bytes());
    while (next_poll_ <= now_) poll();
  }
  Round round;
  round.seconds = now_ - began;
  round.goodput = static_cast<double>(scenario_.size) / round.seconds;
  round.window = controller_.base() * scenario_.segment_bytes;
  round.bound = static_cast<Bound>(std::max_element(spent_.begin(), spent_.end()) -
                                   spent_.begin());
  round.losses = losses_;
  round.timeouts = timeouts_;
  return round;
}

}  // namespace

Result<Outcome> run(const Scenario& scenario, uint64_t rounds, uint64_t seed, double least) {
  HERRING_RETURN_IF_ERROR(check(scenario));
  if (rounds < 1 || rounds > kMostRounds) {
    return Status(Code::kInvalidArgument,
                  concat("rounds = ", rounds, "; allowed: 1 to ", kMostRounds));
  }
  if (!std::isfinite(least) || least < 0 || least > 1e6) {
    return Status(Code::kInvalidArgument, concat("least = ", least, "; allowed: 0 to 1e6 seconds"));
  }
  Job job(scenario, seed);
  Outcome outcome;
  outcome.limit = job.pace().limit();
  outcome.wire_limit = job.pace().wire_limit();
  while (outcome.rounds.size() < rounds || job.now() < least) {
    if (!outcome.rounds.empty()) job.pause();
    outcome.rounds.push_back(job.round());
    if (job.steps() >= kMostSteps) {
      return Status(Code::kInvalidArgument,
                    concat("the job takes more than ", kMostSteps, " steps: ",
                           outcome.rounds.size(), " rounds in ", job.now(),
                           " s of virtual time so far; ask for fewer"));
    }
  }
  outcome.steps = job.steps();
  return outcome;
}

}  // namespace herring::simulate
