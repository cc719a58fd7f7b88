// Stands in for CUDA's run-time compiler on machines without it. Its output names a kernel that the
// stand-in for the driver has.
#include <cstring>
#include <string>

namespace {

struct Program {
  std::string image, log;
  bool words;
};

constexpr int kCompilation = 6, kInvalidOption = 5;

}  // namespace

extern "C" {

const char* nvrtcGetErrorString(int result) {
  return result == kCompilation ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR_INVALID_OPTION";
}
int nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 0;
  return 0;
}
int nvrtcCreateProgram(Program** program, const char* source, const char*, int, const char* const*,
                       const char* const*) {
  *program = new Program;
  (*program)->words = std::strstr(source, "herring_wait") != nullptr;
  if (!(*program)->words && std::strstr(source, "herring_combine") == nullptr) {
    (*program)->log = "no such kernel";
  }
  return 0;
}
int nvrtcDestroyProgram(Program** program) {
  delete *program;
  return 0;
}
int nvrtcCompileProgram(Program* program, int count, const char* const* options) {
  std::string type, target, op, architecture;
  for (int i = 0; i < count; ++i) {
    const std::string option = options[i];
    const auto value = [&](const std::string& name, std::string& to) {
      if (option.rfind(name, 0) == 0) to = option.substr(name.size());
    };
    value("-DHERRING_TYPE=", type);
    value("-DHERRING_TARGET=", target);
    value("-DHERRING_OPERATOR=", op);
    value("--gpu-architecture=", architecture);
  }
  if (architecture != "sm_90") return kInvalidOption;
  if (!program->log.empty()) return kCompilation;
  program->image = program->words ? "stand-in words"
                                  : "stand-in " + type + " " + target + " " + op;
  return 0;
}
int nvrtcGetProgramLogSize(Program* program, size_t* bytes) {
  *bytes = program->log.size() + 1;
  return 0;
}
int nvrtcGetProgramLog(Program* program, char* log) {
  std::strcpy(log, program->log.c_str());
  return 0;
}
int nvrtcGetCUBINSize(Program* program, size_t* bytes) {
  *bytes = program->image.size() + 1;
  return 0;
}
int nvrtcGetCUBIN(Program* program, char* code) {
  std::strcpy(code, program->image.c_str());
  return 0;
}
int nvrtcGetPTXSize(Program* program, size_t* bytes) { return nvrtcGetCUBINSize(program, bytes); }
int nvrtcGetPTX(Program* program, char* code) { return nvrtcGetCUBIN(program, code); }

}
