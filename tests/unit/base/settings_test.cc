#include "base/settings.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

namespace herring {
namespace {

using Texts = std::map<std::string, std::string>;

Result<Settings> load(const Texts& environment, const Texts& options = {}) {
  std::vector<std::string> names;
  for (const auto& [name, value] : environment) names.push_back(name);
  const auto lookup = [&](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  };
  return Settings::load(options, lookup, names);
}

Settings loaded(const Texts& environment, const Texts& options = {}) {
  Result<Settings> settings = load(environment, options);
  EXPECT_TRUE(settings.ok()) << settings.status().to_string();
  return settings.ok() ? *settings : Settings();
}

void expect_error(const Result<Settings>& settings, const std::vector<std::string>& words) {
  ASSERT_FALSE(settings.ok()) << "expected an error with " << words.front();
  EXPECT_EQ(settings.status().code(), Code::kConfiguration);
  for (const std::string& word : words) {
    EXPECT_NE(settings.status().message().find(word), std::string::npos)
        << "'" << word << "' is not in: " << settings.status().message();
  }
}

TEST(SettingSpecs, TableIsWellFormed) {
  const Settings defaults;  // the constructor aborts if a default is out of range
  std::set<std::string_view> names;
  for (const SettingSpec& spec : setting_specs()) {
    SCOPED_TRACE(spec.name);
    EXPECT_TRUE(names.insert(spec.name).second);
    EXPECT_EQ(spec.name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_"), std::string_view::npos);
    EXPECT_FALSE(spec.help.empty());
    EXPECT_EQ(spec.help.find('\n'), std::string_view::npos);
    EXPECT_LE(spec.limits.minimum, spec.limits.maximum);
    EXPECT_EQ(spec.type == SettingType::kEnum, !spec.limits.choices.empty());
    EXPECT_FALSE(allowed_values(spec).empty());
    EXPECT_STREQ(defaults.origin(spec.name), "default");
    EXPECT_EQ(defaults.text(spec.name), spec.default_text);
    EXPECT_EQ(find_setting(spec.name), &spec);
    EXPECT_TRUE(spec.flags.empty() || spec.flags.front() == '-');
  }
  EXPECT_EQ(names.size(), 53u);
}

TEST(Settings, Defaults) {
  const Settings settings = loaded({});
  EXPECT_EQ(settings.get_string("rendezvous"), "");
  EXPECT_EQ(settings.get_int("rank"), 0);
  EXPECT_EQ(settings.get_int("size"), 1);
  EXPECT_EQ(settings.get_int("servers"), 0);
  EXPECT_EQ(settings.get_string("job"), "herring");
  EXPECT_EQ(settings.get_string("log_level"), "warning");
  EXPECT_DOUBLE_EQ(settings.get_seconds("timeout"), 1800);
  EXPECT_DOUBLE_EQ(settings.get_seconds("warn_after"), 60);
  EXPECT_DOUBLE_EQ(settings.get_seconds("connect_timeout"), 60);
  EXPECT_DOUBLE_EQ(settings.get_seconds("heartbeat_interval"), 0.25);
  EXPECT_DOUBLE_EQ(settings.get_seconds("heartbeat_timeout"), 1.5);
  EXPECT_EQ(settings.get_int("proxies"), 0);
  EXPECT_EQ(settings.get_int("flows"), 1);
  EXPECT_EQ(settings.get_bytes("segment_bytes"), 8192);
  EXPECT_EQ(settings.get_bytes("buffer_bytes"), 0);
  EXPECT_EQ(settings.get_bytes("credit"), 0);
  EXPECT_EQ(settings.get_bytes("credit_max"), 0);
  EXPECT_EQ(settings.get_bytes("server_memory"), 1 << 30);
  EXPECT_EQ(settings.get_bytes("frame_max"), 256 << 10);
  EXPECT_EQ(settings.get_bytes("small_bytes"), 65536);
  EXPECT_EQ(settings.get_string("simd"), "auto");
  EXPECT_TRUE(settings.get_bool("shm"));
  EXPECT_EQ(settings.get_string("server_weights"), "");
  EXPECT_TRUE(settings.warnings().empty());
}

TEST(Settings, OptionsWinOverEnvironmentOverDefaults) {
  const Settings settings = loaded({{"HERRING_FLOWS", "4"}, {"HERRING_SIMD", "AVX2"}},
                                   {{"flows", "8"}, {"shm", "False"}});
  EXPECT_EQ(settings.get_int("flows"), 8);
  EXPECT_STREQ(settings.origin("flows"), "option");
  EXPECT_EQ(settings.get_string("simd"), "avx2");
  EXPECT_STREQ(settings.origin("simd"), "environment");
  EXPECT_FALSE(settings.get_bool("shm"));
  EXPECT_STREQ(settings.origin("timeout"), "default");
}

TEST(Settings, EmptyVariableCountsAsNotSetAndEmptyOptionClears) {
  EXPECT_EQ(loaded({{"HERRING_FLOWS", " "}, {"HERRING_JOB", ""}}).get_string("job"), "herring");
  const Settings settings = loaded({{"HERRING_SERVER_WEIGHTS", "1,2"}}, {{"server_weights", ""}});
  EXPECT_EQ(settings.get_string("server_weights"), "");
  EXPECT_STREQ(settings.origin("server_weights"), "option");
  expect_error(load({}, {{"flows", ""}}), {"option flows=''", "1 to 64"});
}

TEST(Settings, Bool) {
  for (const char* text : {"1", "true", "True", "YES", "on"}) {
    EXPECT_TRUE(loaded({{"HERRING_SHM", text}}).get_bool("shm")) << text;
  }
  for (const char* text : {"0", "false", "False", "no", "OFF"}) {
    EXPECT_FALSE(loaded({{"HERRING_SHM", text}}).get_bool("shm")) << text;
  }
  expect_error(load({{"HERRING_SHM", "maybe"}}), {"HERRING_SHM=maybe", "true or false"});
  expect_error(load({{"HERRING_SHM", "2"}}), {"HERRING_SHM=2"});
}

TEST(Settings, IntegersAreWholeAndInRange) {
  for (const char* text : {"1", "64", " 7 ", "+3"}) {
    EXPECT_TRUE(load({{"HERRING_FLOWS", text}}).ok()) << text;
  }
  for (const char* text : {"0", "65", "-1", "four", "4.0", "4 4", "0x4", "1e1", "+-3", "+",
                           "99999999999999999999"}) {
    expect_error(load({{"HERRING_FLOWS", text}}),
                 {concat("HERRING_FLOWS=", text, " is not valid"), "an integer from 1 to 64"});
  }
  EXPECT_TRUE(load({{"HERRING_PROXIES", "0"}}).ok());
  expect_error(load({{"HERRING_PROXIES", "1025"}}), {"0 or from 1 to 1024"});
}

TEST(Settings, BytesInRange) {
  EXPECT_EQ(loaded({{"HERRING_BUFFER_BYTES", "4M"}}).get_bytes("buffer_bytes"), 4'000'000);
  EXPECT_EQ(loaded({{"HERRING_SEGMENT_BYTES", "16KiB"}}).get_bytes("segment_bytes"), 16384);
  expect_error(load({{"HERRING_SEGMENT_BYTES", "8200"}}),
               {"HERRING_SEGMENT_BYTES=8200", "1 KiB", "1 MiB", "multiple of 64"});
  expect_error(load({{"HERRING_SEGMENT_BYTES", "2MiB"}}), {"HERRING_SEGMENT_BYTES=2MiB"});
  expect_error(load({}, {{"credit_max", "2G"}}), {"option credit_max=2G", "1 GiB"});
}

TEST(Settings, Seconds) {
  EXPECT_DOUBLE_EQ(loaded({{"HERRING_TIMEOUT", "5m"}}).get_seconds("timeout"), 300);
  EXPECT_DOUBLE_EQ(loaded({}, {{"timeout", "1e-01"}}).get_seconds("timeout"), 0.1);
  expect_error(load({{"HERRING_TIMEOUT", "0"}}), {"HERRING_TIMEOUT=0", "0.01 s", "604800 s"});
  expect_error(load({{"HERRING_TIMEOUT", "soon"}}), {"HERRING_TIMEOUT=soon", "30s"});
}

TEST(Settings, Enumerations) {
  expect_error(load({{"HERRING_SIMD", "sse"}}),
               {"HERRING_SIMD=sse", "one of auto, baseline, avx2, avx512"});
  expect_error(load({}, {{"log_level", "loud"}}),
               {"option log_level=loud", "debug, info, warning, error"});
}

TEST(Settings, StringsHaveALengthLimit) {
  EXPECT_TRUE(load({{"HERRING_HOST_ID", std::string(255, 'x')}}).ok());
  expect_error(load({{"HERRING_HOST_ID", std::string(256, 'x')}}), {"HERRING_HOST_ID", "255"});
}

TEST(Settings, TextsHaveAForm) {
  const std::map<std::string, std::vector<std::string>> good = {
      {"job", {"a", "run-1.b_C", std::string(64, 'x')}},
      {"secret", {std::string(32, 'a'), "00112233445566778899aabbccddeeFF",
                  std::string(4096, '0')}},
      {"rendezvous", {"h:1", "10.0.0.1:65535", "[::1]:29500", "[fe80::1%eth0]:1", " h:1 ", ""}},
      {"ports", {"30000", "30000-30100", "1-65535", "7-7", "30000 - 30001", ""}},
      {"server_weights", {"1", "2, 1,0.5", "0,1", ""}}};
  const std::map<std::string, std::vector<std::string>> bad = {
      {"job", {"", "my job", "a/b", "\xc3\xa4", std::string(65, 'x')}},
      {"secret", {std::string(31, 'a'), std::string(33, 'a'), std::string(32, 'g'),
                  std::string(4098, 'a')}},
      {"rendezvous", {"h", ":1", "h:", "h:0", "h:65536", "h:+1", "a b:1", "::1:5", "[]:1", "[::1:5",
                      "a/b:1", std::string(300, 'h') + ":1"}},
      {"ports", {"0", "0-5", "5-4", "65536", "1-65536", "-", "1-", "-1", "1-2-3", "a", "+1"}},
      {"server_weights", {",", "1,x", "0,0", "-1", "nan", std::string(4097, '1')}}};
  const auto fine = [](const std::string& name, const std::string& text) {
    return parse_setting(*find_setting(name), text, "").ok();
  };
  for (const auto& [name, texts] : good) {
    for (const std::string& text : texts) {
      EXPECT_TRUE(fine(name, text)) << name << "='" << text << "'";
    }
  }
  for (const auto& [name, texts] : bad) {
    for (const std::string& text : texts) {
      EXPECT_FALSE(fine(name, text)) << name << "='" << text << "'";
    }
  }
  expect_error(load({{"HERRING_JOB", "my job"}}),
               {"HERRING_JOB=my job", "1 to 64 letters, digits"});
  expect_error(load({{"HERRING_PORTS", "5-4"}}), {"HERRING_PORTS=5-4", "30000-30100"});
  const PortRange range = *parse_ports("30000-30100");
  EXPECT_EQ(range.first, 30000);
  EXPECT_EQ(range.last, 30100);
  EXPECT_EQ(range.to_string(), "30000-30100");
  EXPECT_TRUE(parse_ports(" ")->any());
}

TEST(Settings, RulesBetweenSettings) {
  expect_error(load({{"HERRING_RANK", "4"}, {"HERRING_SIZE", "4"}}),
               {"HERRING_RANK=4", "less than HERRING_SIZE=4"});
  expect_error(load({{"HERRING_RANK", "1"}}),
               {"HERRING_RANK=1", "HERRING_SIZE=1 (default)"});
  expect_error(load({{"HERRING_SIZE", "2"}, {"HERRING_LOCAL_RANK", "1"}}),
               {"HERRING_LOCAL_RANK=1", "HERRING_LOCAL_SIZE=1 (default)"});
  expect_error(load({{"HERRING_LOCAL_SIZE", "3"}}, {{"size", "2"}}),
               {"HERRING_LOCAL_SIZE=3", "at most option size=2"});
  expect_error(load({{"HERRING_HEARTBEAT_INTERVAL", "2"}}),
               {"HERRING_HEARTBEAT_INTERVAL=2", "HERRING_HEARTBEAT_TIMEOUT=1.5 (default)"});
  expect_error(load({{"HERRING_BUFFER_BYTES", "4096"}}),
               {"HERRING_BUFFER_BYTES=4096", "at least HERRING_SEGMENT_BYTES=8192"});
  expect_error(load({{"HERRING_FRAME_MAX", "4096"}}), {"HERRING_FRAME_MAX=4096"});
  expect_error(load({{"HERRING_CREDIT", "4096"}}), {"HERRING_CREDIT=4096"});
  // The rendezvous has the same limit.
  expect_error(load({{"HERRING_HEARTBEAT_INTERVAL", "1"}}), {"at most half of"});
  EXPECT_TRUE(load({{"HERRING_HEARTBEAT_INTERVAL", "0.75"}}).ok());
  EXPECT_TRUE(load({{"HERRING_FRAME_MAX", "4096"}, {"HERRING_SEGMENT_BYTES", "4096"}}).ok());
  expect_error(load({{"HERRING_SERVER_WEIGHTS", "1,x"}}),
               {"HERRING_SERVER_WEIGHTS=1,x", "weight 1 is 'x'"});
}

TEST(Settings, UnknownVariablesWarnWithTheNearestName) {
  const Settings settings = loaded({{"HERRING_SEGMNET_BYTES", "1"},
                                    {"HERRING_rank", "3"},
                                    {"HERRING_BUFFER", "3"},
                                    {"HERRING_COMPLETELY_DIFFERENT", "1"},
                                    {"HERRING_", "1"},
                                    {"HERRINGS", "1"},
                                    {"HERRING_SSH", "ssh -F file"},
                                    {"HERRING_AS_HOROVOD", "1"},
                                    {"HERRING_" + std::string(10000, 'Q'), "1"},
                                    {"PATH", "/bin"}});
  const std::vector<std::string>& warnings = settings.warnings();
  ASSERT_EQ(warnings.size(), 6u);
  const auto warns = [&](const std::string& name, const std::string& like) {
    for (const std::string& warning : warnings) {
      if (warning.find(" " + name + " ") == std::string::npos) continue;
      return like.empty() ? warning.find("did you mean") == std::string::npos
                          : warning.find("did you mean " + like + "?") != std::string::npos;
    }
    return false;
  };
  EXPECT_TRUE(warns("HERRING_SEGMNET_BYTES", "HERRING_SEGMENT_BYTES"));
  EXPECT_TRUE(warns("HERRING_rank", "HERRING_RANK"));
  EXPECT_TRUE(warns("HERRING_BUFFER", "HERRING_BUFFER_BYTES"));
  EXPECT_TRUE(warns("HERRING_COMPLETELY_DIFFERENT", ""));
  EXPECT_TRUE(warns("HERRING_", ""));
  EXPECT_EQ(settings.get_int("rank"), 0);  // only upper-case names count
}

TEST(Settings, UnknownOptionIsAnError) {
  expect_error(load({}, {{"time_out", "3"}}), {"'time_out'", "did you mean 'timeout'?"});
  expect_error(load({}, {{"wombat", "3"}}), {"'wombat'", "herring config"});
}

TEST(Settings, SecretIsNeverShown) {
  const std::string secret = "00112233445566778899aabbccddeeff";
  const Settings settings = loaded({{"HERRING_SECRET", secret}});
  EXPECT_EQ(settings.get_string("secret"), secret);
  EXPECT_EQ(settings.text("secret"), "(hidden)");
  EXPECT_EQ(loaded({}).text("secret"), "");
  const Result<Settings> refused = load({{"HERRING_SECRET", std::string(5000, '7')}});
  expect_error(refused, {"HERRING_SECRET=(hidden, 5000 characters)"});
  EXPECT_EQ(refused.status().message().find("777"), std::string::npos);
}

TEST(Settings, ReadsTheProcessEnvironment) {
  ASSERT_EQ(setenv("HERRING_FLOWS", "3", 1), 0);
  ASSERT_EQ(setenv("HERRING_FLOWZ", "3", 1), 0);
  const Result<Settings> settings = Settings::load();
  const Result<Settings> plain = Settings::load({}, std::getenv);
  unsetenv("HERRING_FLOWS");
  unsetenv("HERRING_FLOWZ");
  ASSERT_TRUE(settings.ok()) << settings.status().to_string();
  EXPECT_EQ(settings->get_int("flows"), 3);
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->get_int("flows"), 3);
  bool warned = false;
  for (const std::string& warning : settings->warnings()) {
    warned = warned || warning.find("HERRING_FLOWZ") != std::string::npos;
  }
  EXPECT_TRUE(warned);
}

TEST(SettingsDeathTest, MisuseIsABug) {
  const Settings settings;
  EXPECT_DEATH(settings.get_int("flow"), "no setting 'flow'");
  EXPECT_DEATH(settings.get_int("timeout"), "wrong type .int. of setting 'timeout'");
  EXPECT_DEATH(settings.origin("flow"), "no setting 'flow'");
}

TEST(ParseBytes, Units) {
  const std::map<std::string, int64_t> good = {
      {"0", 0},           {"8192", 8192},      {"64K", 64'000},        {"64k", 64'000},
      {"64kB", 64'000},   {"4M", 4'000'000},   {"1G", 1'000'000'000},  {"64KiB", 65536},
      {"64Ki", 65536},    {"4MiB", 4 << 20},   {"1GiB", 1 << 30},      {"1 gib", 1 << 30},
      {"2T", 2'000'000'000'000}, {"12B", 12},  {" 5 ", 5},
      {"1.5M", 1'500'000}, {"1.1K", 1100},   {".5KiB", 512},   {"670e6", 670'000'000},
      {"9223372036854775807", INT64_MAX}};
  for (const auto& [text, bytes] : good) {
    const Result<int64_t> parsed = parse_bytes(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(*parsed, bytes) << text;
  }
  for (const char* text : {"", "K", "-1", "-1K", "1.5", "1.0001K", "-1.5M", "1P", "1Kib2",
                           "1KK", "1Kbit", "1 2K", "9223372036854775808", "9223372036854775807K",
                           "nan"}) {
    const Result<int64_t> parsed = parse_bytes(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_NE(parsed.status().message().find(concat("'", text, "'")), std::string::npos);
  }
}

TEST(ParseSeconds, Units) {
  const std::map<std::string, double> good = {{"0.5", 0.5},   {"30s", 30},     {"5m", 300},
                                              {"2h", 7200},   {"250ms", 0.25}, {"1e-3", 1e-3},
                                              {"1.5 M", 90},  {"0", 0},        {".5s", 0.5},
                                              {"50us", 5e-5}};
  for (const auto& [text, seconds] : good) {
    const Result<double> parsed = parse_seconds(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_DOUBLE_EQ(*parsed, seconds) << text;
  }
  for (const char* text : {"", "s", "-1", "inf", "nan", "1d", "1e999", "1 2", "5 min", "1,5"}) {
    EXPECT_FALSE(parse_seconds(text).ok()) << text;
  }
}

TEST(ParseWeights, Lists) {
  EXPECT_TRUE(parse_weights(" ")->empty());
  EXPECT_EQ(*parse_weights("2, 1,0.5"), (std::vector<double>{2, 1, 0.5}));
  EXPECT_EQ(*parse_weights("0,1"), (std::vector<double>{0, 1}));
  for (const char* text : {",", "1,", "1,,2", "-1,2", "1,inf", "nan", "one", "0,0"}) {
    EXPECT_FALSE(parse_weights(text).ok()) << text;
  }
}

}  // namespace
}  // namespace herring
