#include "device/cuda/cuda.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "base/fork_guard.h"
#include "base/settings.h"
#include "device/cuda/compiler.h"
#include "device/cuda/driver.h"

namespace herring::device::cuda {
namespace {

StreamHandle stream_of(Stream stream) { return reinterpret_cast<StreamHandle>(stream); }
EventHandle event_of(Event event) { return reinterpret_cast<EventHandle>(event); }

// Whether programs have asked for kernels that wait, on all devices.
bool asks_for_kernels() {
  const char* const given = std::getenv("HERRING_GPU_WAITS");
  const auto waits = parse_setting(*find_setting("gpu_waits"), given == nullptr ? "" : given, "");
  return waits.ok() && waits->text == "kernels";
}

bool launches_block() {
  const char* const given = std::getenv("CUDA_LAUNCH_BLOCKING");
  return given != nullptr && std::strcmp(given, "1") == 0;
}

// Returns the driver's error if a call fails.
#define HERRING_CUDA_OF(who, call, ...) \
  HERRING_RETURN_IF_ERROR(driver_.check(driver_.call(__VA_ARGS__), symbol_of_##call, who))
#define HERRING_CUDA(call, ...) HERRING_CUDA_OF(who_, call, __VA_ARGS__)

// The name of each function's symbol by member, for messages.
#define HERRING_NAME(member, symbol, version, arguments) \
  [[maybe_unused]] constexpr const char* symbol_of_##member = symbol;
HERRING_CUDA_FUNCTIONS(HERRING_NAME)
#undef HERRING_NAME

class CudaDevice : public Device {
 public:
  CudaDevice(const Driver& driver, int index)
      : driver_(driver), index_(index), who_(concat("GPU ", index)) {}

  Status look();
  Status retain() {
    std::lock_guard lock(mutex_);
    if (context_ == nullptr) HERRING_CUDA(retain_primary, &context_, number_);
    return {};
  }
  bool has_context() {
    std::lock_guard lock(mutex_);
    return context_ != nullptr;
  }
  DeviceNumber number() const { return number_; }
  const std::string& who() const { return who_; }

  int index() const override { return index_; }
  const Properties& properties() const override { return properties_; }

  Result<Stream> make_stream() override {
    StreamHandle stream = nullptr;
    HERRING_RETURN_IF_ERROR(within([&]() -> Status {
      int least = 0, greatest = 0;
      HERRING_CUDA(priorities, &least, &greatest);
      HERRING_CUDA(create_stream, &stream, kStreamNonBlocking, greatest);
      return {};
    }));
    return reinterpret_cast<Stream>(stream);
  }
  void destroy_stream(Stream stream) override {
    static_cast<void>(within([&]() -> Status {
      driver_.destroy_stream(stream_of(stream));
      return {};
    }));
  }
  Result<Event> make_event() override {
    EventHandle event = nullptr;
    HERRING_RETURN_IF_ERROR(within([&]() -> Status {
      HERRING_CUDA(create_event, &event, kEventWithoutTiming);
      return {};
    }));
    return reinterpret_cast<Event>(event);
  }
  void destroy_event(Event event) override {
    static_cast<void>(within([&]() -> Status {
      driver_.destroy_event(event_of(event));
      return {};
    }));
  }

  Status check_not_capturing(Stream stream) override {
    return within([&]() -> Status {
      int state = 0;
      HERRING_CUDA(is_capturing, stream_of(stream), &state);
      if (state == 0) return {};
      return {Code::kInvalidArgument,
              concat(who_, ": the current stream is being captured for a CUDA graph, and what "
                     "Herring does on the host cannot be part of one; make this call outside the "
                     "capture")};
    });
  }

  // Kernels that wait run for as long as other ranks need.
  Status check_words() const {
    if (properties_.stream_memory) return {};
    std::string why;
    if (has_time_limit_) {
      why = "the driver ends kernels that run for some seconds, as a display is attached";
    } else if (launches_block()) {
      why = "CUDA_LAUNCH_BLOCKING=1 would make their launch wait for other ranks";
    } else if (const auto compiler = compiler_version(); !compiler.ok()) {
      why = compiler.status().message();
    }
    return why.empty() ? Status() : cannot_wait(why);
  }
  Status prepare_words() override {
    if (properties_.stream_memory) return {};
    std::lock_guard lock(kernels_mutex_);
    if (wait_ != nullptr) return {};
    HERRING_RETURN_IF_ERROR(check_words());
    const auto code = compile_words(properties_.major, properties_.minor);
    if (!code.ok()) return cannot_wait(code.status().message());
    return within([&]() -> Status {
      Module module = nullptr;  // is never unloaded
      Function wait = nullptr, write = nullptr;
      HERRING_CUDA(load_module, &module, code->data());
      HERRING_CUDA(find_function, &wait, module, kWait);
      HERRING_CUDA(find_function, &write, module, kWrite);
      HERRING_ASSIGN_OR_RETURN(auto& stream, make_stream());
      // The first launch of a kernel loads its code, and may wait as the loading of a module does.
      Status launched;
      for (Function kernel : {wait, write}) {
        if (launched.ok()) launched = launch_for_word(kernel, 0, 0, stream);
      }
      destroy_stream(stream);
      if (!launched.ok()) return launched;
      write_ = write;
      wait_ = wait;
      return {};
    });
  }

  Status record(Event event, Stream stream) override {
    return within([&]() -> Status {
      HERRING_CUDA(record_event, event_of(event), stream_of(stream));
      return {};
    });
  }
  Status wait(Stream stream, Event event) override {
    return within([&]() -> Status {
      HERRING_CUDA(wait_event, stream_of(stream), event_of(event), 0);
      return {};
    });
  }
  Status copy_out(char* to, Address from, size_t bytes, Stream stream) override {
    return within([&]() -> Status {
      HERRING_CUDA(copy_out, to, from, bytes, stream_of(stream));
      return {};
    });
  }
  Status copy_in(Address to, const char* from, size_t bytes, Stream stream) override {
    return within([&]() -> Status {
      HERRING_CUDA(copy_in, to, from, bytes, stream_of(stream));
      return {};
    });
  }
  Status fill(Address to, unsigned char value, size_t bytes, Stream stream) override {
    return within([&]() -> Status {
      HERRING_CUDA(fill, to, value, bytes, stream_of(stream));
      return {};
    });
  }
  Status write_word(Address word, uint32_t value, Stream stream) override {
    if (!properties_.stream_memory) return launch_for_word(write_, word, value, stream);
    return within([&]() -> Status {
      HERRING_CUDA(write_word, stream_of(stream), word, value, kWriteAfterAll);
      return {};
    });
  }
  Status wait_word(Address word, uint32_t value, Stream stream) override {
    if (!properties_.stream_memory) return launch_for_word(wait_, word, value, stream);
    return within([&]() -> Status {
      HERRING_CUDA(wait_word, stream_of(stream), word, value, kWaitUntilReached);
      return {};
    });
  }

  Result<bool> idle(Stream stream) override {
    bool idle = false;
    HERRING_RETURN_IF_ERROR(within([&]() -> Status {
      const Answer state = driver_.query_stream(stream_of(stream));
      idle = state == kSuccess;
      return state == kNotReady ? Status() : driver_.check(state, symbol_of_query_stream, who_);
    }));
    return idle;
  }
  Status synchronize(Stream stream) override {
    return within([&]() -> Status {
      HERRING_CUDA(synchronize, stream_of(stream));
      return {};
    });
  }
  Result<Address> allocate(size_t bytes) override {
    DevicePointer address = 0;
    HERRING_RETURN_IF_ERROR(within([&]() -> Status {
      HERRING_CUDA(allocate, &address, bytes);
      return {};
    }));
    return Address{address};
  }
  void free(Address address) override {
    static_cast<void>(within([&]() -> Status {
      driver_.free(address);
      return {};
    }));
  }
  Result<Address> address_of(const void* host) override {
    DevicePointer address = 0;
    HERRING_RETURN_IF_ERROR(within([&]() -> Status {
      HERRING_CUDA(address_of, &address, const_cast<void*>(host), 0);
      return {};
    }));
    return Address{address};
  }

  Result<Kernel> kernel(const KernelName& name) override {
    std::lock_guard lock(kernels_mutex_);
    Kernel& found = kernels_[name];
    if (found != 0) return found;
    auto code = compile_kernel(properties_.major, properties_.minor, name);
    if (!code.ok()) return code.status();
    HERRING_RETURN_IF_ERROR(within([&]() -> Status {
      Module module = nullptr;  // is never unloaded
      Function function = nullptr;
      HERRING_CUDA(load_module, &module, code->data());
      HERRING_CUDA(find_function, &function, module, kCombine);
      found = reinterpret_cast<Kernel>(function);
      return {};
    }));
    return found;
  }
  Status combine(Kernel kernel, const Combination& what, uint32_t blocks,
                 Stream stream) override {
    return within([&]() -> Status {
      void* arguments[] = {const_cast<Combination*>(&what)};
      HERRING_CUDA(launch, reinterpret_cast<Function>(kernel), blocks, 1, 1, kThreads, 1, 1, 0,
                   stream_of(stream), arguments, nullptr);
      return {};
    });
  }

  Result<Exported> export_memory(Address address) override {
    Exported exported;
    HERRING_RETURN_IF_ERROR(within([&]() -> Status {
      DevicePointer base = 0;
      size_t bytes = 0;
      IpcHandle handle;
      HERRING_CUDA(range_of, &base, &bytes, address);
      HERRING_CUDA(export_memory, &handle, base);
      std::memcpy(exported.handle.data(), handle.bytes, sizeof handle.bytes);
      exported.offset = address - base;
      return {};
    }));
    return exported;
  }
  // An allocation is mapped only once, even if several arenas lie in it.
  Result<Address> import_memory(const Exported& memory) override {
    std::lock_guard lock(imports_mutex_);
    Import& import = imports_[memory.handle];
    if (import.users == 0) {
      const Status opened = within([&]() -> Status {
        IpcHandle handle;
        std::memcpy(handle.bytes, memory.handle.data(), sizeof handle.bytes);
        HERRING_CUDA(import_memory, &import.base, handle, kLazyPeerAccess);
        return {};
      });
      if (!opened.ok()) {
        imports_.erase(memory.handle);
        return opened;
      }
    }
    ++import.users;
    return Address{import.base + memory.offset};
  }
  void close_import(const Exported& memory) override {
    std::lock_guard lock(imports_mutex_);
    const auto import = imports_.find(memory.handle);
    if (import == imports_.end() || --import->second.users > 0) return;
    static_cast<void>(within([&]() -> Status {
      driver_.close_import(import->second.base);
      return {};
    }));
    imports_.erase(import);
  }

  template <typename Call>
  Status in_context(Call&& call) {
    HERRING_CUDA(push, context_);
    const Status status = call();
    Context popped = nullptr;
    const Answer left = driver_.pop(&popped);
    return status.ok() ? driver_.check(left, symbol_of_pop, who_) : status;
  }

  // Runs `call` while the primary context is current on this thread, beside captures of others.
  template <typename Call>
  Status within(Call&& call) {
    thread_local const CudaDevice* current = nullptr;
    if (current == this) return call();
    HERRING_RETURN_IF_ERROR(retain());
    // Streams of Herring are never captured. Without this, a question about one of them, or the
    // release of memory, would break a capture that the program makes in any of its threads.
    int mode = kRelaxedCapture;
    HERRING_CUDA(exchange_capture_mode, &mode);
    const Status status = in_context([&] {
      const CudaDevice* const before = std::exchange(current, this);
      const Status result = call();
      current = before;
      return result;
    });
    const Answer left = driver_.exchange_capture_mode(&mode);
    return status.ok() ? driver_.check(left, symbol_of_exchange_capture_mode, who_) : status;
  }
  Status together(const std::function<Status()>& calls) override { return within(calls); }

 private:
  Status cannot_wait(const std::string& why) const {
    return {Code::kConfiguration,
            concat(who_, " (", properties_.name, ") has no memory operations on streams, and "
                   "kernels cannot wait instead: ", why)};
  }
  Status launch_for_word(Function kernel, DevicePointer word, uint32_t value, Stream stream) {
    if (kernel == nullptr) return {Code::kInternal, concat(who_, ": prepare_words() comes first")};
    return within([&]() -> Status {
      void* arguments[] = {&word, &value};
      HERRING_CUDA(launch, kernel, 1, 1, 1, 1, 1, 1, 0, stream_of(stream), arguments, nullptr);
      return {};
    });
  }

  const Driver& driver_;
  const int index_;
  const std::string who_;
  DeviceNumber number_ = 0;
  Properties properties_;
  bool has_time_limit_ = false;  // for kernels
  std::mutex mutex_;
  Context context_ = nullptr;  // set once and never released, as frameworks do
  std::mutex kernels_mutex_;
  std::map<KernelName, Kernel> kernels_;  // guarded by kernels_mutex_
  // Set once by prepare_words(), under kernels_mutex_.
  Function wait_ = nullptr, write_ = nullptr;
  struct Import {
    DevicePointer base = 0;
    size_t users = 0;
  };
  std::mutex imports_mutex_;
  std::map<std::array<char, 64>, Import> imports_;  // by handle; guarded by imports_mutex_
};

Status CudaDevice::look() {
  HERRING_CUDA(device, &number_, index_);
  char text[256] = {};
  HERRING_CUDA(device_name, text, sizeof text - 1, number_);
  properties_.name = text;
  HERRING_CUDA(device_bus, text, sizeof text - 1, number_);
  properties_.bus = text;
  HERRING_CUDA(device_memory, &properties_.memory, number_);
  const auto read = [&](Attribute attribute, int otherwise) {
    int value = 0;
    const Answer result = driver_.device_attribute(&value, attribute, number_);
    return result == kSuccess ? value : otherwise;  // an older driver does not know the attribute
  };
  properties_.major = read(kCapabilityMajor, 0);
  properties_.minor = read(kCapabilityMinor, 0);
  properties_.multiprocessors = std::max(1, read(kMultiprocessors, 1));
  properties_.numa_node = read(kHostNumaNode, -1);
  properties_.stream_memory = !asks_for_kernels() &&
                              (read(kStreamMemory64, 0) != 0 || read(kStreamMemoryFirst, 0) != 0);
  has_time_limit_ = read(kKernelTimeLimit, 0) != 0;
  if (read(kUnifiedAddressing, 0) == 0) {
    return {Code::kConfiguration, concat(who_, " (", properties_.name, ") shares no address space "
                                         "with the host")};
  }
  return {};
}

class CudaPlatform : public Platform {
 public:
  explicit CudaPlatform(Driver driver) : driver_(driver) {}

  Status start() {
    HERRING_CUDA(init, 0);
    HERRING_CUDA(driver_version, &version_);
    int count = 0;
    HERRING_CUDA(device_count, &count);
    for (int i = 0; i < count; ++i) {
      devices_.push_back(std::make_unique<CudaDevice>(driver_, i));
      HERRING_RETURN_IF_ERROR(devices_.back()->look());
    }
    if (count == 0) return {Code::kConfiguration, "the CUDA driver sees no GPU"};
    return {};
  }

  std::string version() const override {
    return concat("CUDA ", version_ / 1000, ".", version_ % 1000 / 10);
  }
  int count() const override { return static_cast<int>(devices_.size()); }

  Result<Device*> device(int index) override {
    if (index >= 0 && index < count()) {
      CudaDevice* const one = devices_[index].get();
      HERRING_RETURN_IF_ERROR(one->retain());
      return static_cast<Device*>(one);
    }
    return Status(Code::kInvalidArgument, concat("there is no GPU ", index, "; this process sees ",
                                                 count(), ", from 0 on"));
  }

  const Properties& properties(int index) const override { return devices_[index]->properties(); }
  Result<Pointer> query(Address address) override {
    unsigned type = 0, managed = 0;
    int ordinal = -1;
    int attributes[] = {kMemoryType, kIsManaged, kDeviceOrdinal};
    void* values[] = {&type, &managed, &ordinal};
    // For an address that the driver does not know, the call succeeds and leaves zeros.
    HERRING_RETURN_IF_ERROR(on_a_device([&](const std::string& who) -> Status {
      HERRING_CUDA_OF(who, pointer_attributes, std::size(attributes), attributes, values, address);
      return {};
    }));
    if (type == 0) return Pointer{};
    const Kind kind = managed != 0               ? Kind::kManaged
                      : type == kMemoryTypeDevice ? Kind::kDevice
                                                  : Kind::kPinned;
    return Pointer{kind, ordinal};
  }

  Status check_words(int index) const override { return devices_[index]->check_words(); }

  bool can_access(int device, int peer) override {
    int can = 0;
    const Answer result = driver_.can_access_peer(&can, devices_[device]->number(),
                                                   devices_[peer]->number());
    return result == kSuccess && can != 0;
  }

  Status register_host(void* memory, size_t bytes) override {
    return on_a_device([&](const std::string& who) -> Status {
      HERRING_CUDA_OF(who, register_host, memory, bytes, kRegisterPortable | kRegisterMapped);
      return {};
    });
  }
  Result<void*> allocate_host(size_t bytes) override {
    void* memory = nullptr;
    HERRING_RETURN_IF_ERROR(on_a_device([&](const std::string& who) -> Status {
      HERRING_CUDA_OF(who, allocate_host, &memory, bytes, kRegisterPortable | kRegisterMapped);
      return {};
    }));
    return memory;
  }
  Status free_host(void* memory) override {
    return on_a_device([&](const std::string& who) -> Status {
      HERRING_CUDA_OF(who, free_host, memory);
      return {};
    });
  }
  Status unregister_host(void* memory) override {
    return on_a_device([&](const std::string& who) -> Status {
      HERRING_CUDA_OF(who, unregister_host, memory);
      return {};
    });
  }

 private:
  // Calls that belong to no device need a context, too. A context that a framework has created is
  // used if there is one, because the first context of a process takes memory and time.
  template <typename Call>
  Status on_a_device(Call&& call) {
    CudaDevice* chosen = devices_.front().get();
    for (const auto& device : devices_) {
      if (device->has_context()) {
        chosen = device.get();
        break;
      }
    }
    return chosen->within([&] { return call(chosen->who()); });
  }

  const Driver driver_;
  const std::string who_ = "CUDA";
  int version_ = 0;
  std::vector<std::unique_ptr<CudaDevice>> devices_;
};

#undef HERRING_CUDA
#undef HERRING_CUDA_OF

}  // namespace

Result<std::unique_ptr<Platform>> load(const std::string& library) {
  HERRING_ASSIGN_OR_RETURN(auto& driver, Driver::load(library));
  auto platform = std::make_unique<CudaPlatform>(driver);
  if (Status started = platform->start(); !started.ok()) {
    return Status(Code::kConfiguration, started.message());
  }
  return std::unique_ptr<Platform>(std::move(platform));
}

}  // namespace herring::device::cuda
