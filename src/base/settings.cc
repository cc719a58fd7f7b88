#include "base/settings.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>

namespace herring {
namespace {

using enum SettingType;

constexpr std::string_view kPrefix = "HERRING_";
// No settings of a job: read by launchers, and by adapters where there is no job to ask.
constexpr std::string_view kOfOthers[] = {"HERRING_RENDEZVOUS_FD", "HERRING_JAX_IMPL",
                                          "HERRING_TENSORFLOW_IMPL", "HERRING_AS_HOROVOD",
                                          "HERRING_SSH"};
constexpr double kKiB = 1024;
constexpr double kMiB = 1024 * kKiB;
constexpr double kGiB = 1024 * kMiB;
constexpr double kWeek = 7 * 24 * 3600;
constexpr double kMaxRanks = 1 << 20;
constexpr int64_t kAlignment = 64;  // of plan/plan.h, which this room may not include

constexpr std::string_view kLogLevels[] = {"debug", "info", "warning", "error"};
constexpr std::string_view kSimdLevels[] = {"auto", "baseline", "avx2", "avx512"};

constexpr SettingSpec kSpecs[] = {
    {"rendezvous", kString, "",
     "HOST:PORT where workers and servers meet; rank 0 listens there", 0, 300},
    {"rank", kInt, "0", "This worker's rank in the job", 0, kMaxRanks - 1},
    {"size", kInt, "1", "Number of workers in the job", 1, kMaxRanks},
    {"local_rank", kInt, "0", "This worker's rank among the workers of its node", 0, kMaxRanks - 1},
    {"local_size", kInt, "1", "Number of workers on this node", 1, kMaxRanks},
    {"servers", kInt, "0", "Number of dedicated servers the job waits for at its start", 0,
     kMaxRanks},
    {"secret_file", kString, "", "File with the job's secret, readable by its owner only", 0, 4096},
    {"secret", kString, "",
     "The job's secret in hexadecimal; set by the launcher for its children, prefer secret_file", 0,
     4096, false, 1, {}, true},
    {"host_id", kString, "",
     "Name that the workers of one node share; empty: boot id, host name and network namespace", 0,
     255},
    {"interface", kString, "",
     "Network interface or address to advertise; empty: the one that reaches the rendezvous", 0,
     255},
    {"job", kString, "herring", "Identifier of the job; other jobs' connections are refused", 1,
     255},
    {"log_level", kEnum, "warning", "Least severe message that is logged", 0, 0, false, 1,
     kLogLevels},
    {"timeout", kSeconds, "1800", "Deadline of every wait", 0.01, kWeek},
    {"warn_after", kSeconds, "60", "Time after which a wait warns and names the missing ranks",
     0.01, kWeek},
    {"connect_timeout", kSeconds, "60",
     "Time within which the rendezvous, workers and servers must be reached", 0.01, kWeek},
    {"heartbeat_interval", kSeconds, "0.25", "Time between two signs of life", 0.01, 3600},
    {"heartbeat_timeout", kSeconds, "1.5",
     "Silence of a peer and of its system after which it is taken for dead", 0.02, kWeek},
    {"proxies", kInt, "0",
     "Event-loop threads of a server; 0: one per 7 Gbit/s of its link (8 if that is not known), at "
     "most 16, half of the cores, and one per node",
     1, 1024, true},
    {"flows", kInt, "1", "Connections between a worker and a server", 1, 64},
    {"segment_bytes", kBytes, "8192",
     "Unit of summing; about the payload of a jumbo frame", kKiB, kMiB, false, kAlignment},
    {"buffer_bytes", kBytes, "0",
     "Size of a fusion buffer; 0: chosen from the sizes of model and cluster", kKiB, 1024 * kGiB,
     true},
    {"credit", kBytes, "0",
     "Bytes a flow may have outstanding, fixed, for experiments; 0: controls itself", kKiB, kGiB,
     true},
    {"credit_max", kBytes, "0",
     "Most that self-controlled credit grants one flow; 0: what server_memory allows", kKiB, kGiB,
     true},
    {"server_memory", kBytes, "1GiB",
     "What a server may keep of contributions and results; at least 2 MiB per flow", 16 * kMiB,
     1024 * kGiB},
    {"frame_max", kBytes, "256KiB", "Largest payload of a frame", kKiB, 64 * kMiB},
    {"small_bytes", kBytes, "65536", "An operation up to this size goes whole to one server", 0,
     64 * kMiB},
    {"simd", kEnum, "auto", "Instruction set of the reductions; every one gives the same bits", 0,
     0, false, 1, kSimdLevels},
    {"shm", kBool, "true", "Whether the workers of a node meet in shared memory"},
    {"server_weights", kString, "",
     "Comma-separated share of each server, dedicated ones first, by address; empty: all links "
     "equally busy",
     0, 65536},
};

std::optional<size_t> index_of(std::string_view name) {
  for (size_t i = 0; i < std::size(kSpecs); ++i) {
    if (kSpecs[i].name == name) return i;
  }
  return std::nullopt;
}

std::string_view trim(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

// ASCII only: a user's locale has no say.
std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return result;
}

std::string upper(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return result;
}

template <typename T>
std::optional<T> parse_number(std::string_view text) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

// "64 KiB" -> {"64", "kib"}.
std::pair<std::string_view, std::string> split_unit(std::string_view text) {
  text = trim(text);
  size_t cut = text.size();
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  while (cut > 0 && letter(text[cut - 1])) --cut;
  return {trim(text.substr(0, cut)), lower(text.substr(cut))};
}

// Bounds as a person would write them: 1 KiB rather than 1024.
std::string bound(SettingType type, double value) {
  if (type == kSeconds) return concat(value, " s");
  const auto whole = static_cast<int64_t>(value);
  if (type != kBytes) return std::to_string(whole);
  for (const auto& [unit, name] : {std::pair{kGiB, " GiB"}, {kMiB, " MiB"}, {kKiB, " KiB"}}) {
    const auto divisor = static_cast<int64_t>(unit);
    if (whole >= divisor && whole % divisor == 0) return std::to_string(whole / divisor) + name;
  }
  return std::to_string(whole);
}

// Edits (insert, delete, replace, swap neighbours) that turn a into b.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1,
                             cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

// The known setting most like `name`, or empty when none is.
std::string_view nearest(std::string_view name) {
  constexpr size_t kLongest = 64;  // a longer name is no slip of the finger
  if (name.size() > kLongest) return {};
  const std::string wanted = lower(name);
  std::string_view best;
  size_t least = std::max<size_t>(2, name.size() / 3) + 1;
  for (const SettingSpec& spec : kSpecs) {
    const size_t edits = distance(wanted, spec.name);
    if (edits < least && edits + 1 < name.size()) {
      least = edits;
      best = spec.name;
    }
  }
  if (!best.empty() || name.size() < 3) return best;
  for (const SettingSpec& spec : kSpecs) {  // "segment" means segment_bytes
    if (spec.name.starts_with(wanted)) return spec.name;
  }
  return {};
}

Status bad(std::string message) { return {Code::kConfiguration, std::move(message)}; }

[[noreturn]] void bug(std::string_view what, std::string_view name) {
  std::fprintf(stderr, "herring: bug: %s setting '%s'\n", std::string(what).c_str(),
               std::string(name).c_str());
  std::abort();
}

}  // namespace

const char* name_of(SettingType type) {
  switch (type) {
    case kBool: return "bool";
    case kInt: return "int";
    case kBytes: return "bytes";
    case kSeconds: return "seconds";
    case kString: return "string";
    case kEnum: return "enum";
  }
  return "unknown";
}

std::span<const SettingSpec> setting_specs() { return kSpecs; }

std::string environment_name(std::string_view setting) {
  return std::string(kPrefix) + upper(setting);
}

std::string allowed_values(const SettingSpec& spec) {
  switch (spec.type) {
    case kBool: return "true or false (also 1 or 0, yes or no, on or off)";
    case kEnum: {
      std::string all = "one of ";
      for (size_t i = 0; i < spec.choices.size(); ++i) {
        all += (i == 0 ? "" : ", ") + std::string(spec.choices[i]);
      }
      return all;
    }
    case kString:
      return concat(spec.minimum > 0 ? "a text of 1 to " : "a text of at most ",
                    static_cast<int64_t>(spec.maximum), " characters");
    default: break;
  }
  const char* what = spec.type == kInt     ? "an integer"
                     : spec.type == kBytes ? "bytes (such as 8192, 64K or 4MiB)"
                                           : "seconds (such as 0.5, 30s or 5m)";
  std::string all = concat(what, spec.or_zero ? ", 0 or" : "", " from ",
                           bound(spec.type, spec.minimum), " to ", bound(spec.type, spec.maximum));
  if (spec.multiple_of > 1) all += concat(", a multiple of ", spec.multiple_of);
  return all;
}

Result<int64_t> parse_bytes(std::string_view text) {
  const auto [number, unit] = split_unit(text);
  const std::optional<int64_t> count = parse_number<int64_t>(number);
  const std::optional<double> fraction = count ? std::nullopt : parse_number<double>(number);
  int64_t factor = 0;
  constexpr std::string_view kLetters = "kmgt";
  if (unit.empty() || unit == "b") {
    factor = 1;
  } else if (const size_t power = kLetters.find(unit[0]); power != std::string_view::npos) {
    const std::string_view rest = std::string_view(unit).substr(1);
    const bool decimal = rest.empty() || rest == "b";
    const int64_t base = decimal ? 1000 : rest == "i" || rest == "ib" ? 1024 : 0;
    factor = base;
    for (size_t i = 0; i < power; ++i) factor *= base;
  }
  int64_t bytes = 0;
  constexpr double kExact = 1LL << 53;
  if (const double value = fraction.value_or(-1) * static_cast<double>(factor);
      factor > 0 && value >= 0 && value <= kExact &&
      std::abs(value - std::round(value)) <= value * 1e-12) {  // 1.1K is 1100.0000000000002
    return static_cast<int64_t>(std::round(value));
  }
  if (!count || *count < 0 || factor == 0 || __builtin_mul_overflow(*count, factor, &bytes)) {
    return bad(concat("'", text, "' is not a number of bytes, such as 8192, 64K or 4MiB"));
  }
  return bytes;
}

Result<double> parse_seconds(std::string_view text) {
  std::pair<std::string_view, std::string> parts = split_unit(text);
  const std::optional<double> count = parse_number<double>(parts.first);
  double factor = 0;
  for (const auto& [unit, seconds] : {std::pair{"", 1.0}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1.0},
                                      {"m", 60.0}, {"h", 3600.0}}) {
    if (parts.second == unit) factor = seconds;
  }
  if (!count || !std::isfinite(*count) || *count < 0 || factor == 0) {
    return bad(concat("'", text, "' is not a time in seconds, such as 0.5, 30s or 5m"));
  }
  return *count * factor;
}

Result<std::vector<double>> parse_weights(std::string_view text) {
  std::vector<double> weights;
  if (trim(text).empty()) return weights;
  bool any = false;
  for (std::string_view rest = text;;) {
    const size_t comma = rest.find(',');
    const std::string_view item = trim(rest.substr(0, comma));
    const std::optional<double> weight = parse_number<double>(item);
    if (!weight || !std::isfinite(*weight) || *weight < 0) {
      return bad(concat("weight ", weights.size(), " is '", item,
                        "'; a weight is a number that is not negative"));
    }
    any = any || *weight > 0;
    weights.push_back(*weight);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  if (!any) return bad("all weights are 0; at least one must be positive");
  return weights;
}

Status Settings::parse(const SettingSpec& spec, std::string_view text, Value& value) {
  text = trim(text);
  value.text = std::string(text);
  const Status refused = bad("expected " + allowed_values(spec));
  const auto in_range = [&](double number) {
    if (spec.or_zero && number == 0) return true;
    return number >= spec.minimum && number <= spec.maximum;
  };
  switch (spec.type) {
    case kBool: {
      const std::string word = lower(text);
      const bool yes = word == "true" || word == "1" || word == "yes" || word == "on";
      const bool no = word == "false" || word == "0" || word == "no" || word == "off";
      value.integer = yes ? 1 : 0;
      return yes || no ? Status() : refused;
    }
    case kInt:
    case kBytes: {
      std::optional<int64_t> number;
      if (spec.type == kInt) {
        number = parse_number<int64_t>(text);
      } else if (const Result<int64_t> bytes = parse_bytes(text); bytes.ok()) {
        number = *bytes;
      }
      if (!number || !in_range(static_cast<double>(*number)) || *number % spec.multiple_of != 0) {
        return refused;
      }
      value.integer = *number;
      return {};
    }
    case kSeconds: {
      const Result<double> seconds = parse_seconds(text);
      if (!seconds.ok() || !in_range(*seconds)) return refused;
      value.real = *seconds;
      return {};
    }
    case kString: return in_range(static_cast<double>(text.size())) ? Status() : refused;
    case kEnum:
      value.text = lower(text);
      return std::find(spec.choices.begin(), spec.choices.end(), value.text) != spec.choices.end()
                 ? Status()
                 : refused;
  }
  return refused;
}

Settings::Settings() : values_(std::size(kSpecs)) {
  for (size_t i = 0; i < values_.size(); ++i) {
    if (!parse(kSpecs[i], kSpecs[i].default_text, values_[i]).ok()) {
      bug("default out of range of", kSpecs[i].name);
    }
  }
}

Result<Settings> Settings::load(const std::map<std::string, std::string>& overrides,
                                const Lookup& lookup,
                                const std::vector<std::string>& environment_names) {
  Settings settings;
  for (const auto& [name, text] : overrides) {
    if (index_of(name)) continue;
    const std::string_view like = nearest(name);
    return bad(concat("there is no option '", name, "'",
                      like.empty() ? "; `herring config` lists all settings"
                                   : concat("; did you mean '", like, "'?")));
  }
  for (size_t i = 0; i < std::size(kSpecs); ++i) {
    const SettingSpec& spec = kSpecs[i];
    Value& value = settings.values_[i];
    std::string text;
    if (const auto option = overrides.find(std::string(spec.name)); option != overrides.end()) {
      value.origin = Origin::kOption;
      text = option->second;
    } else if (const char* variable = lookup(environment_name(spec.name).c_str());
               variable != nullptr && !trim(variable).empty()) {
      value.origin = Origin::kEnvironment;
      text = variable;
    } else {
      continue;
    }
    if (const Status status = parse(spec, text, value); !status.ok()) {
      return bad(settings.assignment(spec.name) + ": " + status.message());
    }
  }
  HERRING_RETURN_IF_ERROR(settings.check_together());

  for (const std::string& name : environment_names) {
    if (!name.starts_with(kPrefix)) continue;
    if (std::ranges::count(kOfOthers, name) > 0) continue;
    const std::string setting = lower(name.substr(kPrefix.size()));
    if (index_of(setting) && name == environment_name(setting)) continue;
    const std::string_view like = nearest(setting);
    settings.warnings_.push_back(concat(
        "environment variable ", name, " is not a setting of Herring and is ignored",
        like.empty() ? "" : concat("; did you mean ", environment_name(like), "?")));
  }
  std::sort(settings.warnings_.begin(), settings.warnings_.end());
  return settings;
}

Result<Settings> Settings::load(const std::map<std::string, std::string>& overrides) {
  std::vector<std::string> names;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view variable = *entry;
    names.emplace_back(variable.substr(0, variable.find('=')));
  }
  return load(overrides, [](const char* name) { return std::getenv(name); }, names);
}

// What no single range can express.
Status Settings::check_together() const {
  const auto together = [&](bool fine, std::string_view a, const char* relation,
                            std::string_view b) {
    return fine ? Status()
                : bad(concat(assignment(a), " must be ", relation, " ", assignment(b)));
  };
  const auto integer = [&](std::string_view name) { return values_[*index_of(name)].integer; };
  HERRING_RETURN_IF_ERROR(
      together(integer("rank") < integer("size"), "rank", "less than", "size"));
  HERRING_RETURN_IF_ERROR(together(integer("local_rank") < integer("local_size"), "local_rank",
                                   "less than", "local_size"));
  HERRING_RETURN_IF_ERROR(
      together(integer("local_size") <= integer("size"), "local_size", "at most", "size"));
  HERRING_RETURN_IF_ERROR(
      together(get_seconds("heartbeat_interval") < get_seconds("heartbeat_timeout"),
               "heartbeat_interval", "less than", "heartbeat_timeout"));
  const int64_t segment = get_bytes("segment_bytes");
  for (const char* name : {"buffer_bytes", "credit", "credit_max", "frame_max"}) {
    const int64_t bytes = get_bytes(name);
    HERRING_RETURN_IF_ERROR(
        together(bytes >= segment || (bytes == 0 && kSpecs[*index_of(name)].or_zero), name,
                 "at least", "segment_bytes"));
  }
  if (const Result<std::vector<double>> weights = parse_weights(get_string("server_weights"));
      !weights.ok()) {
    return bad(assignment("server_weights") + ": " + weights.status().message());
  }
  return {};
}

std::string Settings::assignment(std::string_view name) const {
  const size_t i = *index_of(name);
  const bool option = values_[i].origin == Origin::kOption;
  return concat(option ? concat("option ", name) : environment_name(name), " = '",
                kSpecs[i].hidden ? "(hidden)" : values_[i].text, "'",
                values_[i].origin == Origin::kDefault ? " (default)" : "");
}

const Settings::Value& Settings::value_of(std::string_view name, SettingType type) const {
  const std::optional<size_t> i = index_of(name);
  if (!i) bug("no", name);
  const SettingType actual = kSpecs[*i].type == kEnum ? kString : kSpecs[*i].type;
  if (actual != type) bug(concat("wrong type (", name_of(type), ") of"), name);
  return values_[*i];
}

bool Settings::get_bool(std::string_view name) const {
  return value_of(name, kBool).integer != 0;
}
int64_t Settings::get_int(std::string_view name) const { return value_of(name, kInt).integer; }
int64_t Settings::get_bytes(std::string_view name) const {
  return value_of(name, kBytes).integer;
}
double Settings::get_seconds(std::string_view name) const { return value_of(name, kSeconds).real; }
const std::string& Settings::get_string(std::string_view name) const {
  return value_of(name, kString).text;
}

const char* Settings::origin(std::string_view name) const {
  const std::optional<size_t> i = index_of(name);
  if (!i) bug("no", name);
  switch (values_[*i].origin) {
    case Origin::kDefault: return "default";
    case Origin::kEnvironment: return "environment";
    case Origin::kOption: return "option";
  }
  return "unknown";
}

std::string Settings::text(std::string_view name) const {
  const std::optional<size_t> i = index_of(name);
  if (!i) bug("no", name);
  return kSpecs[*i].hidden && !values_[*i].text.empty() ? "(hidden)" : values_[*i].text;
}

}  // namespace herring
