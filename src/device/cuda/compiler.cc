#include "device/cuda/compiler.h"

#include <dlfcn.h>

#include <cstdlib>
#include <mutex>
#include <vector>

#include "kernels_text.h"

namespace herring::device::cuda {
namespace {

using Program = struct ProgramState*;
using Outcome = int;  // nvrtcResult

// Library names, the newest first. All releases of CUDA 11 use the name of 11.2.
constexpr const char* kLibraries[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"};
constexpr const char* kOldestText = "--gpu-architecture=compute_75";

struct Nvrtc {
  const char* (*error_text)(Outcome) = nullptr;
  Outcome (*version)(int*, int*) = nullptr;
  Outcome (*create)(Program*, const char*, const char*, int, const char* const*,
                    const char* const*) = nullptr;
  Outcome (*destroy)(Program*) = nullptr;
  Outcome (*compile)(Program, int, const char* const*) = nullptr;
  Outcome (*log_size)(Program, size_t*) = nullptr;
  Outcome (*log)(Program, char*) = nullptr;
  Outcome (*code_size)(Program, size_t*) = nullptr;
  Outcome (*code)(Program, char*) = nullptr;
  Outcome (*text_size)(Program, size_t*) = nullptr;
  Outcome (*text)(Program, char*) = nullptr;

  Status load(void* library) {
    const auto find = [&](auto*& function, const char* symbol) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(
          ::dlsym(library, symbol));
      return function != nullptr;
    };
    const bool all = find(error_text, "nvrtcGetErrorString") && find(version, "nvrtcVersion") &&
                     find(create, "nvrtcCreateProgram") && find(destroy, "nvrtcDestroyProgram") &&
                     find(compile, "nvrtcCompileProgram") &&
                     find(log_size, "nvrtcGetProgramLogSize") && find(log, "nvrtcGetProgramLog") &&
                     find(code_size, "nvrtcGetCUBINSize") && find(code, "nvrtcGetCUBIN") &&
                     find(text_size, "nvrtcGetPTXSize") && find(text, "nvrtcGetPTX");
    if (all) return {};
    return {Code::kConfiguration,
            "the NVRTC library lacks a function; CUDA 11.2 or later is needed"};
  }
};

std::mutex& folders_mutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}
std::vector<std::string>& folders() {
  static auto* const all = new std::vector<std::string>;
  return *all;
}

// Returns the library if a framework has loaded it. Such a library is never unloaded.
void* find_library() {
  for (const char* name : kLibraries) {
    if (void* const loaded = ::dlopen(name, RTLD_NOW | RTLD_NOLOAD)) return loaded;
  }
  std::vector<std::string> places;
  {
    std::lock_guard lock(folders_mutex());
    for (const std::string& folder : folders()) places.push_back(folder + "/");
  }
  places.emplace_back();  // the system's search path
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const char* home = std::getenv(variable)) places.push_back(concat(home, "/lib64/"));
  }
  places.emplace_back("/usr/local/cuda/lib64/");
  for (const std::string& place : places) {
    for (const char* name : kLibraries) {
      if (void* const library = ::dlopen((place + name).c_str(), RTLD_NOW | RTLD_LOCAL)) {
        return library;
      }
    }
  }
  return nullptr;
}

Result<Nvrtc> load() {
  void* const library = find_library();
  if (library == nullptr) {
    return Status(Code::kConfiguration,
                  concat("no CUDA compiler: neither ", kLibraries[0], " nor an older one is there; "
                         "install nvidia-cuda-nvrtc, or set CUDA_HOME"));
  }
  Nvrtc nvrtc;
  HERRING_RETURN_IF_ERROR(nvrtc.load(library));
  return nvrtc;
}

// If no compiler was found before, searches again, because folders may have been added.
Result<const Nvrtc*> nvrtc() {
  static auto* const mutex = new std::mutex;
  static const Nvrtc* loaded = nullptr;
  std::lock_guard lock(*mutex);
  if (loaded == nullptr) {
    HERRING_ASSIGN_OR_RETURN(auto& found, load());
    loaded = new Nvrtc(found);
  }
  return loaded;
}

const char* type_name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return "Float32";
    case DType::kFloat64: return "Float64";
    case DType::kFloat16: return "Float16";
    case DType::kBFloat16: return "BFloat16";
    case DType::kInt8: return "Int8";
    case DType::kInt16: return "Int16";
    case DType::kInt32: return "Int32";
    case DType::kInt64: return "Int64";
    case DType::kUInt8: return "UInt8";
    case DType::kBool: return "Bool";
    case DType::kMxE4M3:  // between hosts only
    case DType::kMxE5M2:
    case DType::kMxInt8: break;
  }
  return "";
}

const char* operator_name(DType dtype, ReduceOp op) {
  const bool logical = dtype == DType::kBool;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage: return logical ? "Or" : "Sum";
    case ReduceOp::kMax: return logical ? "Or" : "Max";
    case ReduceOp::kMin: return logical ? "And" : "Min";
    case ReduceOp::kProduct: return logical ? "And" : "Product";
  }
  return "";
}

struct Source {
  const char* text;
  const char* file;  // as messages name it
  std::vector<std::string> definitions;
};

class Compilation {
 public:
  explicit Compilation(const Nvrtc& nvrtc) : nvrtc_(nvrtc) {}
  ~Compilation() {
    if (program_ != nullptr) nvrtc_.destroy(&program_);
  }
  Compilation(const Compilation&) = delete;
  Compilation& operator=(const Compilation&) = delete;

  Outcome compile(const std::string& architecture, const Source& source) {
    const Outcome created =
        nvrtc_.create(&program_, source.text, source.file, 0, nullptr, nullptr);
    if (created != 0) return created;
    std::vector<const char*> options = {architecture.c_str(), "--std=c++17", "--fmad=false",
                                        "--ftz=false", "--prec-div=true"};
    for (const std::string& definition : source.definitions) options.push_back(definition.c_str());
    return nvrtc_.compile(program_, static_cast<int>(options.size()), options.data());
  }
  Result<std::string> take(Outcome (*size_of)(Program, size_t*), Outcome (*get)(Program, char*)) {
    size_t bytes = 0;
    Outcome outcome = size_of(program_, &bytes);
    std::string taken(bytes, '\0');
    if (outcome == 0) outcome = get(program_, taken.data());
    if (outcome == 0 && bytes > 0) return taken;
    return failed(outcome);
  }
  Status failed(Outcome outcome) {
    std::string log;
    size_t bytes = 0;
    if (program_ != nullptr && nvrtc_.log_size(program_, &bytes) == 0 && bytes > 1) {
      log.assign(bytes, '\0');
      nvrtc_.log(program_, log.data());
      log = concat(": ", log.substr(0, std::min<size_t>(bytes - 1, 2000)));
    }
    return {Code::kConfiguration, concat("the CUDA compiler failed: ",
                                         nvrtc_.error_text(outcome), log)};
  }

 private:
  const Nvrtc& nvrtc_;
  Program program_ = nullptr;
};

Result<std::string> compile(int major, int minor, const Source& source) {
  HERRING_ASSIGN_OR_RETURN(auto& found, nvrtc());
  {
    Compilation machine(*found);
    const Outcome outcome = machine.compile(concat("--gpu-architecture=sm_", major, minor), source);
    if (outcome == 0) return machine.take(found->code_size, found->code);
  }
  // The compiler does not know this GPU yet.
  Compilation text(*found);
  const Outcome outcome = text.compile(kOldestText, source);
  if (outcome != 0) return text.failed(outcome);
  return text.take(found->text_size, found->text);
}

}  // namespace

void add_compiler_folder(const std::string& folder) {
  std::lock_guard lock(folders_mutex());
  folders().push_back(folder);
}

Result<std::string> compiler_version() {
  HERRING_ASSIGN_OR_RETURN(auto& found, nvrtc());
  int major = 0, minor = 0;
  found->version(&major, &minor);
  return concat("NVRTC ", major, ".", minor);
}

Result<std::string> compile_kernel(int major, int minor, const KernelName& name) {
  return compile(major, minor,
                 {kKernels,
                  "herring/kernels.cu",
                  {concat("-DHERRING_TYPE=", type_name(name.from)),
                   concat("-DHERRING_TARGET=", type_name(name.to)),
                   concat("-DHERRING_OPERATOR=", operator_name(name.from, name.op))}});
}

Result<std::string> compile_words(int major, int minor) {
  return compile(major, minor, {kWords, "herring/words.cu", {}});
}

}  // namespace herring::device::cuda
