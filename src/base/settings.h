// Settings: one typed table from which the HERRING_* environment variables, the options of Python
// and of the command, `herring config` and the documentation page are made.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace herring {

// Limits that settings and the protocol share.
inline constexpr uint32_t kMaxRanks = 1 << 20;
inline constexpr uint32_t kMaxServers = (1 << 16) - 1;
inline constexpr size_t kMaxSettingBytes = 4096;  // of a name, and of a value on the wire

enum class SettingType {
  kBool,
  kInt,
  kBytes,
  kSeconds,
  kString,   // any text
  kEnum,
  kName,     // letters, digits, dots, underscores, hyphens
  kSecret,   // bytes in hexadecimal, which appear in no message and no listing
  kAddress,  // "host:29500", "[fe80::1]:29500"
  kPorts,    // "30000-30100", "30000"
  kWeights,  // "2, 1, 1"
};
const char* name_of(SettingType type);  // "bool", "int", ...

// Who reads a setting, which determines where it can be set.
enum class SettingScope {
  kLauncher,     // set by a launcher, describes the job or how it starts; environment only
  kEnvironment,  // may differ between processes; environment only
  kProcess,      // may differ between processes; also an option of init()
  kJob,          // like kProcess, but every process takes over the value that rank 0 has
};
const char* name_of(SettingScope scope);  // "launcher", "environment", "process", "job"

struct SettingLimits {
  double minimum = 0;  // inclusive; of the number, or of the length of a text
  double maximum = 0;
  bool or_zero = false;     // 0 is allowed besides [minimum, maximum] and means automatic
  int64_t multiple_of = 1;
  std::span<const std::string_view> choices = {};  // of kEnum
};

struct SettingSpec {
  std::string_view name;  // the name of the Python option: "segment_bytes"
  SettingType type;
  SettingScope scope;
  std::string_view default_text;  // parsed like any other value; an empty text means not set
  std::string_view help;          // one line
  SettingLimits limits = {};
  // The options of `herring` that set it, followed by a placeholder for the value: "--servers S".
  // Each command takes the options that it supports.
  std::string_view flags = {};
};

std::span<const SettingSpec> setting_specs();

// Returns the row of a setting, or null if there is no such setting.
const SettingSpec* find_setting(std::string_view name);

// "segment_bytes" -> "HERRING_SEGMENT_BYTES".
std::string environment_name(std::string_view setting);

// Returns in words what a setting accepts: "an integer from 1 to 64", "one of auto, baseline, ...".
std::string allowed_values(const SettingSpec& spec);

// A value of a setting after parsing.
struct SettingValue {
  std::string text;     // as given, without surrounding blanks; enums in lower case
  int64_t integer = 0;  // set for bool, int and bytes
  double real = 0;      // set for seconds
};

// Parses a value of one setting, without comparing it with other settings. `shown` is how the error
// names the value: "HERRING_FLOWS=99".
// Errors: kConfiguration, "SHOWN is not valid: allowed is ...".
Result<SettingValue> parse_setting(const SettingSpec& spec, std::string_view text,
                                   std::string_view shown);

// Returns the default value of a setting. Aborts if `name` is not in the table, which is a bug.
SettingValue default_of(std::string_view name);

// Parse texts with units in upper or lower case. Errors: kConfiguration.
// Bytes: "8192", "64K", "1.5MB" (K, M, G, T are powers of 1000), "4MiB" (KiB ... are powers of
// 1024); the result must be a whole number of bytes.
// Seconds: "0.5", "50us", "200ms", "30s", "5m", "1h".
Result<int64_t> parse_bytes(std::string_view text);
Result<double> parse_seconds(std::string_view text);

// Parses "2, 1, 1" to {2, 1, 1}, and an empty text to {}. Errors: kConfiguration if a weight is not
// a number, not finite or negative, or if all weights are 0.
Result<std::vector<double>> parse_weights(std::string_view text);

// Ports from first to last, both included. {0, 0} means any port that the system picks.
struct alignas(uint32_t) PortRange {  // aligned so that every compiler has an atomic of it
  uint16_t first = 0, last = 0;
  bool any() const { return first == 0; }
  std::string to_string() const { return concat(first, "-", last); }
};
// Parses "30000-30100" or "30000"; an empty text means any port. Errors: kConfiguration.
Result<PortRange> parse_ports(std::string_view text);

// The validated settings of this process. May be copied freely.
class Settings {
 public:
  // Works like ::getenv(): returns null if the variable is not set.
  using Lookup = std::function<const char*(const char*)>;

  Settings();  // all defaults

  // `overrides` (Python options, keyed by setting name) win over the environment, which wins over
  // the defaults. A variable that is set but empty counts as not set. `environment_names` lists all
  // names in the environment; unknown HERRING_* names cause warnings.
  // Errors: kConfiguration with the name of the variable or option, its value and what is allowed.
  static Result<Settings> load(const std::map<std::string, std::string>& overrides,
                               const Lookup& lookup,
                               const std::vector<std::string>& environment_names = {});
  // Loads settings from the environment of this process.
  static Result<Settings> load(const std::map<std::string, std::string>& overrides = {});

  // Each getter aborts if the setting is not in the table or has another type, which is a bug.
  bool get_bool(std::string_view name) const;
  int64_t get_int(std::string_view name) const;
  int64_t get_bytes(std::string_view name) const;
  double get_seconds(std::string_view name) const;
  const std::string& get_string(std::string_view name) const;  // for all text types

  // Returns "default", "environment" or "option".
  const char* origin(std::string_view name) const;
  // Returns the value as it was given, for listings; "(hidden)" for a secret that is set.
  std::string text(std::string_view name) const;

  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  enum class Origin : uint8_t { kDefault, kEnvironment, kOption };
  struct Value {
    Origin origin = Origin::kDefault;
    SettingValue value;
  };

  Status check_together() const;
  // "HERRING_FLOWS=99" or "option flows=99".
  std::string assignment(size_t row) const;
  const SettingValue& value_of(std::string_view name, SettingType type) const;

  std::vector<Value> values_;  // in the order of the table
  std::vector<std::string> warnings_;
};

}  // namespace herring
