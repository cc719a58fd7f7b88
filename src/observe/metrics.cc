// A picture in Prometheus' text format, as metrics_table.h says.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <deque>
#include <iterator>
#include <map>

#include "observe/json.h"
#include "observe/metrics_table.h"
#include "observe/picture.h"
#include "observe/status_fields.h"

namespace herring::observe {
namespace {

// Series of more groups would be too many.
constexpr size_t kMostGroups = 256;

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : valid_utf8(text)) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return out;
}

// The value of a field in the item that is described now, as a sample or a label has it; empty if
// there is none.
using Found = std::string;

// Takes the fields of one item after the other. It has the functions of Json.
class Fields {
 public:
  // Where the value of a field will be, such as "late.median".
  const Found* place(const std::string& path) { return &values_[path]; }
  void next_item() {
    for (auto& [path, found] : values_) found.clear();
    key_.clear();
  }

  Fields& begin_object() {
    if (!key_.empty()) above_.push_back(std::exchange(path_, path_ + key_ + "."));
    key_.clear();
    return *this;
  }
  Fields& end_object() {
    if (above_.empty()) return *this;  // the end of the item
    path_ = std::move(above_.back());
    above_.pop_back();
    return *this;
  }
  Fields& key(std::string_view name) {
    key_ = name;
    return *this;
  }
  Fields& value(std::string_view text) {
    if (Found* const found = wanted()) *found = escaped(text);
    return *this;
  }
  Fields& value(const char* text) { return value(std::string_view(text)); }
  Fields& value(bool yes) { return value(int{yes}); }
  Fields& value(double number) { return exact(number); }
  Fields& value(const std::vector<uint32_t>& numbers) { return value(numbers.size()); }
  template <typename T>
    requires(std::is_integral_v<T> && !std::is_same_v<T, bool>)
  Fields& value(T number) {
    if (Found* const found = wanted()) *found = std::to_string(number);
    return *this;
  }
  Fields& exact(double number) {
    Found* const found = wanted();
    if (found == nullptr || !std::isfinite(number)) return *this;
    char text[40];
    std::snprintf(text, sizeof text, "%.15g", number);
    *found = text;
    return *this;
  }
  Fields& null() { return *this; }
  template <typename T>
  Fields& field(std::string_view name, const T& of) {
    return key(name).value(of);
  }

 private:
  // Returns where the value of this field is wanted, or null.
  Found* wanted() {
    const auto found = values_.find(path_ + key_);
    return found == values_.end() ? nullptr : &found->second;
  }

  std::map<std::string, Found, std::less<>> values_;  // of the fields that are asked for
  std::string path_, key_;
  std::vector<std::string> above_;
};

// A word of the table: a label, and the field that it or the value is read from.
struct Word {
  std::string label;
  const Found* found;
};

std::vector<Word> words(std::string_view text, Fields& fields) {
  std::vector<Word> all;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
    const size_t equals = word.find('='), dot = word.rfind('.');
    const std::string_view path = equals == word.npos ? word : word.substr(equals + 1);
    const std::string_view label = equals != word.npos ? word.substr(0, equals)
                                   : dot != word.npos  ? word.substr(dot + 1)
                                                       : word;
    all.push_back({std::string(label), fields.place(std::string(path))});
  }
  return all;
}

std::string label(std::string_view name, std::string_view value) {
  return concat(name, "=\"", value, "\",");
}

// Adds the labels that the item has; returns whether it has all of them.
bool add_labels(std::string& out, const std::vector<Word>& labels) {
  bool all = true;
  for (const Word& one : labels) {
    one.found->empty() ? all = false : (out += label(one.label, *one.found), true);
  }
  return all;
}

struct Family {
  const MetricSpec& spec;
  std::vector<Word> fields, labels;
  std::string samples = {};

  void add(std::string labels_of_item) {
    if (!add_labels(labels_of_item, labels)) return;
    const auto add_sample = [this](std::string own, std::string_view value) {
      if (!own.empty()) own.pop_back();  // a comma
      samples += concat("herring_", spec.name, "{", own, "} ", value, "\n");
    };
    if (fields.empty()) add_sample(labels_of_item, "1");
    for (const Word& one : fields) {
      const bool tells = spec.by[0] != '\0';
      if (one.found->empty()) continue;
      add_sample(tells ? labels_of_item + label(spec.by, one.label) : labels_of_item, *one.found);
    }
  }
};

class Metrics {
 public:
  Metrics() {
    for (const MetricSpec& spec : kMetrics) {
      Fields& fields = of(spec.scope);
      families_.push_back({spec, words(spec.fields, fields), words(spec.labels, fields)});
    }
    job_labels_ = words(kJobLabels, of(Scope::kJob));
    for (const ScopeSpec& spec : kScopes) {
      const size_t scope = scope_labels_.size();
      scope_labels_.push_back(words(spec.labels, fields_[scope]));
    }
  }

  // Adds the samples of one item; `put` gives its fields.
  template <typename Put>
  void item(Scope scope, const Put& put) {
    Fields& fields = of(scope);
    fields.next_item();
    put(fields);
    std::string labels;
    add_labels(labels, job_labels_);
    add_labels(labels, scope_labels_[static_cast<size_t>(scope)]);
    for (Family& family : families_) {
      if (family.spec.scope == scope) family.add(labels);
    }
  }

  std::string take() const {
    std::string out;
    for (const Family& family : families_) {
      if (family.samples.empty()) continue;
      const std::string_view name = family.spec.name;
      out += concat("# HELP herring_", name, " ", family.spec.help, "\n# TYPE herring_", name, " ",
                    name.ends_with("_total") ? "counter" : "gauge", "\n", family.samples);
    }
    return out;
  }

 private:
  Fields& of(Scope scope) { return fields_[static_cast<size_t>(scope)]; }

  Fields fields_[std::size(kScopes)];
  std::vector<Word> job_labels_;
  std::vector<std::vector<Word>> scope_labels_;
  std::deque<Family> families_;
};

}  // namespace

std::string as_metrics(const Picture& picture) {
  const Roster& roster = *picture.roster;
  Metrics metrics;
  metrics.item(Scope::kJob, [&](Fields& fields) {
    put_job(fields, picture);
    fields.field("findings", picture.findings.size());
  });
  std::map<uint32_t, Nanos> missing;
  for (const Missing& one : picture.missing) {
    for (const uint32_t rank : one.ranks) missing[rank] = std::max(missing[rank], one.age);
  }
  for (uint32_t i = 0; i < picture.ranks.size(); ++i) {
    metrics.item(Scope::kRank, [&](Fields& fields) {
      put_rank(fields, roster, i, picture.ranks[i]);
      fields.field("missing", to_seconds(missing[i]));
    });
  }
  for (uint32_t i = 0; i < picture.servers.size(); ++i) {
    metrics.item(Scope::kServer, [&](Fields& fields) {
      put_server(fields, roster, i, picture.servers[i]);
    });
  }
  for (size_t i = 0; i < std::min(picture.groups.size(), kMostGroups); ++i) {
    metrics.item(Scope::kGroup, [&](Fields& fields) { put_group(fields, picture.groups[i]); });
  }
  for (const Picture::Operation& one : picture.operations) {
    metrics.item(Scope::kOperation, [&](Fields& fields) { put_operation(fields, one); });
  }
  return metrics.take();
}

}  // namespace herring::observe
