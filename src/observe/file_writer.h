// Writes files on a thread of its own, because a disk may be slow or full, and nobody who has
// something else to do may wait for it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/status.h"

namespace herring::observe {

class FileWriter {
 public:
  // Called once, on the writer's thread, if a file cannot be written: nothing more is written then.
  using Failed = std::function<void(const Status& why)>;

  // Creates or empties the file. Returns kConfiguration, naming it, if that is impossible, takes
  // longer than kPatience, or if another process writes this file.
  static Result<std::unique_ptr<FileWriter>> open(const std::string& path, Failed failed);
  // What is queued is still written, unless the process ends before.
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  // Queues text. Returns false, and drops the text, if more than kMostQueued bytes wait already,
  // after finish(), or if the file cannot be written. Any thread.
  bool write(std::string text);
  // Waits until what is queued is written and the file is closed, so that another writer may have
  // it, but not longer than kPatience. Returns whether it is.
  bool finish();
  // Returns whether the file could not be written.
  bool broken() const;
  const std::string& path() const;

  static constexpr size_t kMostQueued = 64 << 20;
  static constexpr Nanos kPatience = 2 * kSecond;

 private:
  class Impl;
  explicit FileWriter(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Impl> impl_;
};

// Writes a whole file once. It appears under its name when it is complete, and only this user may
// read it.
class WholeFile {
 public:
  // Both run on the thread of the file. `make` returns the contents; `done` hears what came of it.
  using Make = std::function<std::string()>;
  using Done = std::function<void(const Status&)>;

  // Returns kInternal if there is no thread for it.
  static Result<std::unique_ptr<WholeFile>> write(const std::string& path, Make make, Done done);
  // Returns whether the file is written, or has failed.
  bool finished() const;
  // Waits until finished(), but not longer than FileWriter::kPatience.
  void flush() const;

 private:
  struct State;
  explicit WholeFile(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

}  // namespace herring::observe
