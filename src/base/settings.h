// Settings: one typed table that yields the environment variables HERRING_*, the Python options,
// the command's options, `herring config` and the docs page.
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
inline constexpr size_t kMaxSettingBytes = 4096;  // of a name, and of a value that travels

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

// Who reads a setting, and so where it can be set.
enum class SettingScope {
  kLauncher,     // says which job this is, or how one starts: a launcher's; the environment alone
  kEnvironment,  // each process its own; the environment alone
  kProcess,      // each process its own; an option of init() too
  kJob,          // likewise, but every process takes over what rank 0 has
};
const char* name_of(SettingScope scope);  // "launcher", "environment", "process", "job"

struct SettingLimits {
  double minimum = 0;  // of int, bytes and seconds, inclusive; of a text's length
  double maximum = 0;
  bool or_zero = false;     // 0 is allowed beside [minimum, maximum] and means automatic
  int64_t multiple_of = 1;
  std::span<const std::string_view> choices = {};  // of kEnum
};

struct SettingSpec {
  std::string_view name;  // as a Python option: "segment_bytes"
  SettingType type;
  SettingScope scope;
  std::string_view default_text;  // parses like any other value; of a text, empty is not set
  std::string_view help;          // one line
  SettingLimits limits = {};
  // The options of `herring` that set it, and what stands for the value: "--servers S". Each
  // command picks those it has.
  std::string_view flags = {};
};

std::span<const SettingSpec> setting_specs();

// The row of a setting; null when there is none.
const SettingSpec* find_setting(std::string_view name);

// "segment_bytes" -> "HERRING_SEGMENT_BYTES".
std::string environment_name(std::string_view setting);

// What a setting accepts, in words: "an integer from 1 to 64", "one of auto, baseline, ...".
std::string allowed_values(const SettingSpec& spec);

// A value that was read by its row.
struct SettingValue {
  std::string text;     // as given, without surrounding blanks; enums in lower case
  int64_t integer = 0;  // of bool, int and bytes
  double real = 0;      // of seconds
};

// Reads a value of a setting, whatever the others are.
// Errors: kConfiguration, "SHOWN is not valid: allowed is ..."; `shown`: "HERRING_FLOWS=99".
Result<SettingValue> parse_setting(const SettingSpec& spec, std::string_view text,
                                   std::string_view shown);

// What a setting is unless somebody sets it. A name that is not in the table is a bug: aborts.
SettingValue default_of(std::string_view name);

// Bytes: "8192", "64K", "1.5MB" (K, M, G, T are powers of 1000), "4MiB" (KiB ... are powers of
// 1024); a whole number of them. Seconds: "0.5", "50us", "200ms", "30s", "5m", "1h". Letters of
// either case. Errors: kConfiguration.
Result<int64_t> parse_bytes(std::string_view text);
Result<double> parse_seconds(std::string_view text);

// "2, 1, 1" -> {2, 1, 1}; empty -> {}. Errors: kConfiguration for what is no number, not finite or
// negative, and when all are 0.
Result<std::vector<double>> parse_weights(std::string_view text);

// Ports from first to last, both included; 0 and 0: any that the system picks.
struct alignas(uint32_t) PortRange {  // so that every compiler has an atomic of it
  uint16_t first = 0, last = 0;
  bool any() const { return first == 0; }
  std::string to_string() const { return concat(first, "-", last); }
};
// "30000-30100", "30000"; empty: any. Errors: kConfiguration.
Result<PortRange> parse_ports(std::string_view text);

// The settings of this process, checked. Copies freely.
class Settings {
 public:
  // Like ::getenv: null when the variable is not set.
  using Lookup = std::function<const char*(const char*)>;

  Settings();  // all defaults

  // `overrides` (Python options, by setting name) win over the environment, which wins over the
  // defaults. A variable that is set but empty counts as not set. `environment_names` are all names
  // in the environment: the unknown HERRING_* among them become warnings.
  // Errors: kConfiguration naming the variable or option, its value and what is allowed.
  static Result<Settings> load(const std::map<std::string, std::string>& overrides,
                               const Lookup& lookup,
                               const std::vector<std::string>& environment_names = {});
  // From this process's environment.
  static Result<Settings> load(const std::map<std::string, std::string>& overrides = {});

  // Asking for a setting that is not in the table, or has another type, is a bug: aborts.
  bool get_bool(std::string_view name) const;
  int64_t get_int(std::string_view name) const;
  int64_t get_bytes(std::string_view name) const;
  double get_seconds(std::string_view name) const;
  const std::string& get_string(std::string_view name) const;  // of all types that are texts

  // "default", "environment" or "option".
  const char* origin(std::string_view name) const;
  // The value as it was given, for listings; "(hidden)" for a secret that is set.
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
