#include "base/settings.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>

#include "base/settings_table.h"

namespace herring {
namespace {

using enum SettingType;
using enum SettingScope;
using settings_table::kGiB;
using settings_table::kKiB;
using settings_table::kMiB;
using settings_table::kSpecs;

constexpr std::string_view kPrefix = "HERRING_";

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

// ASCII only: the result must not depend on the user's locale.
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

// Formats bounds as a person would write them: 1 KiB, not 1024.
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

bool is_letter_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool consists_of(std::string_view text, std::string_view others) {
  return std::ranges::all_of(text, [others](char c) {
    return is_letter_or_digit(c) || others.find(c) != std::string_view::npos;
  });
}

bool is_hex(std::string_view text) {
  return text.size() % 2 == 0 &&
         text.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
}

std::optional<uint16_t> parse_port(std::string_view text) {
  if (text.empty() || text.size() > 5 ||
      text.find_first_not_of("0123456789") != std::string_view::npos) {
    return std::nullopt;
  }
  const int port = *parse_number<int>(text);
  if (port < 1 || port > 65535) return std::nullopt;
  return static_cast<uint16_t>(port);
}

bool is_address(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || !parse_port(text.substr(colon + 1))) return false;
  const std::string_view host = text.substr(0, colon);
  if (host.empty()) return false;
  if (host.front() != '[') return host.find_first_of(" \t\n\r\f\v:[]/") == std::string_view::npos;
  return host.size() > 2 && host.back() == ']' &&
         consists_of(host.substr(1, host.size() - 2), ":.%_");
}

// Returns the number of edits (insert, delete, replace, swap neighbours) that turn a into b.
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

// Returns the known setting most similar to `name`, or an empty view if none is similar.
std::string_view nearest(std::string_view name) {
  constexpr size_t kLongest = 64;  // a longer name is not a typing error
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

// Reads `value.text` and sets the other members of `value`. Returns whether the text is allowed.
bool read_value(const SettingSpec& spec, SettingValue& value) {
  const std::string& text = value.text;
  const SettingLimits& limits = spec.limits;
  const auto in_range = [&](double number) {
    return (limits.or_zero && number == 0) ||
           (number >= limits.minimum && number <= limits.maximum);
  };
  switch (spec.type) {
    case kBool: {
      const std::string word = lower(text);
      value.integer = word == "true" || word == "1" || word == "yes" || word == "on" ? 1 : 0;
      return value.integer == 1 || word == "false" || word == "0" || word == "no" || word == "off";
    }
    case kInt:
    case kBytes: {
      std::optional<int64_t> number;
      if (spec.type == kInt) {
        number = parse_number<int64_t>(text);
      } else if (const Result<int64_t> bytes = parse_bytes(text); bytes.ok()) {
        number = *bytes;
      }
      value.integer = number.value_or(0);
      return number && in_range(static_cast<double>(*number)) && *number % limits.multiple_of == 0;
    }
    case kSeconds: {
      const Result<double> seconds = parse_seconds(text);
      if (seconds.ok()) value.real = *seconds;
      return seconds.ok() && in_range(value.real);
    }
    case kEnum:
      value.text = lower(text);
      return std::ranges::find(limits.choices, value.text) != limits.choices.end();
    default: break;
  }
  if (text.empty() && spec.default_text.empty()) return true;
  if (!in_range(static_cast<double>(text.size()))) return false;
  switch (spec.type) {
    case kName: return consists_of(text, "._-");
    case kSecret: return is_hex(text);
    case kAddress: return is_address(text);
    case kPorts: return parse_ports(text).ok();
    case kWeights: return parse_weights(text).ok();
    default: return true;
  }
}

}  // namespace

const char* name_of(SettingType type) {
  constexpr const char* kNames[] = {"bool", "int",    "bytes",   "seconds", "string", "enum",
                                    "name", "secret", "address", "ports",   "weights"};
  return kNames[static_cast<size_t>(type)];
}

const char* name_of(SettingScope scope) {
  constexpr const char* kNames[] = {"launcher", "environment", "process", "job"};
  return kNames[static_cast<size_t>(scope)];
}

std::span<const SettingSpec> setting_specs() { return kSpecs; }

const SettingSpec* find_setting(std::string_view name) {
  const std::optional<size_t> row = index_of(name);
  return row ? &kSpecs[*row] : nullptr;
}

std::string environment_name(std::string_view setting) {
  return std::string(kPrefix) + upper(setting);
}

std::string allowed_values(const SettingSpec& spec) {
  const SettingLimits& limits = spec.limits;
  const std::string least = bound(spec.type, limits.minimum);
  const std::string most = bound(spec.type, limits.maximum);
  const char* number = "an integer";
  switch (spec.type) {
    case kBool: return "true or false (also 1 or 0, yes or no, on or off)";
    case kEnum: {
      std::string all = "one of ";
      for (const std::string_view choice : limits.choices) {
        all += concat(choice == limits.choices.front() ? "" : ", ", choice);
      }
      return all;
    }
    case kString:
      return concat("text of ", limits.minimum > 0 ? "1 to " : "at most ", most, " bytes");
    case kName:
      return concat(least, " to ", most, " letters, digits, dots, underscores or hyphens");
    case kSecret: return concat("an even number of hexadecimal digits, ", least, " to ", most);
    case kAddress: return "HOST:PORT with a port from 1 to 65535, or [IPV6]:PORT";
    case kPorts: return "a port or a range of ports from 1 to 65535, such as 30000-30100";
    case kWeights:
      return concat("comma-separated numbers such as 2, 1, 1, none negative and not all "
                    "0; at most ", most, " bytes in all");
    case kInt: break;
    case kBytes: number = "bytes (such as 8192, 64K or 4MiB)"; break;
    case kSeconds: number = "seconds (such as 0.5, 30s or 5m)"; break;
  }
  std::string all = concat(number, limits.or_zero ? ", 0 or" : "", " from ", least, " to ", most);
  if (limits.multiple_of > 1) all += concat(", a multiple of ", limits.multiple_of);
  return all;
}

Result<int64_t> parse_bytes(std::string_view text) {
  const auto [number, unit] = split_unit(text);
  const std::optional<int64_t> count = parse_number<int64_t>(number);
  const double fraction = count ? -1 : parse_number<double>(number).value_or(-1);
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
  if (const double value = fraction * static_cast<double>(factor);
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
                        "'; a weight must be a finite number, 0 or larger"));
    }
    any = any || *weight > 0;
    weights.push_back(*weight);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  if (!any) return bad("all weights are 0; at least one must be positive");
  return weights;
}

Result<PortRange> parse_ports(std::string_view text) {
  text = trim(text);
  if (text.empty()) return PortRange{};
  const size_t dash = text.find('-');
  const auto first = parse_port(trim(text.substr(0, dash)));
  const auto last =
      dash == std::string_view::npos ? first : parse_port(trim(text.substr(dash + 1)));
  if (!first || !last || *first > *last) {
    return bad(concat("'", text, "' is not a port or a range of ports, such as 30000-30100"));
  }
  return PortRange{*first, *last};
}

Result<SettingValue> parse_setting(const SettingSpec& spec, std::string_view text,
                                   std::string_view shown) {
  SettingValue value{std::string(trim(text))};
  if (read_value(spec, value)) return value;
  std::string why;
  if (spec.type == kWeights) {
    if (const auto weights = parse_weights(text); !weights.ok()) why = weights.status().message();
  }
  return bad(concat(shown, " is not valid: ", why, why.empty() ? "" : "; ", "allowed is ",
                    allowed_values(spec)));
}

SettingValue default_of(std::string_view name) {
  const SettingSpec* spec = find_setting(name);
  if (spec == nullptr) bug("no", name);
  auto value = parse_setting(*spec, spec->default_text, "");
  if (!value.ok()) bug("default out of range of", name);
  return std::move(*value);
}

Settings::Settings() {
  for (const SettingSpec& spec : kSpecs) {
    values_.push_back({Origin::kDefault, default_of(spec.name)});
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
    Value& read = settings.values_[i];
    if (const auto option = overrides.find(std::string(spec.name)); option != overrides.end()) {
      read = {Origin::kOption, {option->second}};
    } else if (const char* variable = lookup(environment_name(spec.name).c_str());
               variable != nullptr && !trim(variable).empty()) {
      read = {Origin::kEnvironment, {variable}};
    } else {
      continue;
    }
    HERRING_RETURN_IF_ERROR(
        parse_setting(spec, read.value.text, settings.assignment(i)).move_to(read.value));
  }
  HERRING_RETURN_IF_ERROR(settings.check_together());

  for (const std::string& name : environment_names) {
    if (!name.starts_with(kPrefix)) continue;
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

// Checks what no single range can express.
Status Settings::check_together() const {
  const auto together = [&](bool fine, std::string_view a, const char* relation,
                            std::string_view b) {
    return fine ? Status()
                : bad(concat(assignment(*index_of(a)), " must be ", relation, " ",
                             assignment(*index_of(b))));
  };
  const auto integer = [&](std::string_view name) {
    return values_[*index_of(name)].value.integer;
  };
  HERRING_RETURN_IF_ERROR(
      together(integer("rank") < integer("size"), "rank", "less than", "size"));
  HERRING_RETURN_IF_ERROR(together(integer("local_rank") < integer("local_size"), "local_rank",
                                   "less than", "local_size"));
  HERRING_RETURN_IF_ERROR(
      together(integer("local_size") <= integer("size"), "local_size", "at most", "size"));
  HERRING_RETURN_IF_ERROR(
      together(get_seconds("heartbeat_interval") <= get_seconds("heartbeat_timeout") / 2,
               "heartbeat_interval", "at most half of", "heartbeat_timeout"));
  const int64_t segment = get_bytes("segment_bytes");
  for (const char* name : {"buffer_bytes", "credit", "credit_max", "frame_max"}) {
    const int64_t bytes = get_bytes(name);
    HERRING_RETURN_IF_ERROR(
        together(bytes >= segment || (bytes == 0 && find_setting(name)->limits.or_zero), name,
                 "at least", "segment_bytes"));
  }
  for (const char* name : {"tls_certificate", "tls_key", "tls_ca"}) {
    if (get_string("tls") != "certificates" || !get_string(name).empty()) continue;
    return bad(concat(assignment(*index_of("tls")), " needs ", environment_name(name),
                      ", which is not set"));
  }
  return {};
}

std::string Settings::assignment(size_t row) const {
  const auto& [origin, value] = values_[row];
  const std::string_view name = kSpecs[row].name;
  return concat(origin == Origin::kOption ? concat("option ", name) : environment_name(name), "=",
                kSpecs[row].type == kSecret
                    ? concat("(hidden, ", value.text.size(), " characters)")
                : value.text.empty() ? "''"
                                     : value.text,
                origin == Origin::kDefault ? " (default)" : "");
}

const SettingValue& Settings::value_of(std::string_view name, SettingType type) const {
  const std::optional<size_t> i = index_of(name);
  if (!i) bug("no", name);
  const SettingType is = kSpecs[*i].type;
  const bool number = is == kBool || is == kInt || is == kBytes || is == kSeconds;
  if ((number ? is : kString) != type) bug(concat("wrong type (", name_of(type), ") of"), name);
  return values_[*i].value;
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
  constexpr const char* kNames[] = {"default", "environment", "option"};
  return kNames[static_cast<size_t>(values_[*i].origin)];
}

std::string Settings::text(std::string_view name) const {
  const std::optional<size_t> i = index_of(name);
  if (!i) bug("no", name);
  const std::string& text = values_[*i].value.text;
  return kSpecs[*i].type == kSecret && !text.empty() ? "(hidden)" : text;
}

}  // namespace herring
