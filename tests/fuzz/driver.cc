// Stands in for libFuzzer where there is none. Runs each given file once, or mutates the target's
// seeds for some seconds (first argument: seconds, default 5; second: seed).
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
// Returns sound inputs to begin with. Every target defines this function.
std::vector<std::string> seeds();

namespace {

void run(const std::string& input) {
  // The copy is exactly as long as the input, so an overrun is outside the allocation.
  std::vector<uint8_t> copy(input.begin(), input.end());
  LLVMFuzzerTestOneInput(copy.data(), copy.size());
}

std::string mutate(std::string input, const std::vector<std::string>& corpus,
                   std::mt19937_64& random) {
  static constexpr uint8_t kNasty[] = {0, 1, 2, 0x7f, 0x80, 0xfe, 0xff};
  for (int n = 1 + static_cast<int>(random() % 6); n > 0; --n) {
    const size_t at = input.empty() ? 0 : random() % input.size();
    switch (random() % 6) {
      case 0:
        if (!input.empty()) input[at] = static_cast<char>(random());
        break;
      case 1:
        if (!input.empty()) input[at] = static_cast<char>(kNasty[random() % std::size(kNasty)]);
        break;
      case 2: input.insert(at, 1 + random() % 8, static_cast<char>(random())); break;
      case 3: input.erase(at, 1 + random() % 8); break;
      case 4: input.resize(at); break;
      default: {
        const std::string& other = corpus[random() % corpus.size()];
        if (!other.empty()) input += other.substr(random() % other.size());
      }
    }
  }
  return input;
}

}  // namespace

int main(int argc, char** argv) {
  char* end = nullptr;
  const double seconds = argc > 1 ? std::strtod(argv[1], &end) : 5;
  if (argc > 1 && *end != '\0') {
    for (int i = 1; i < argc; ++i) {
      std::ifstream file(argv[i], std::ios::binary);
      run({std::istreambuf_iterator<char>(file), {}});
    }
    return 0;
  }
  std::mt19937_64 random(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
  const std::vector<std::string> corpus = seeds();
  uint64_t runs = 0;
  const auto stop = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (const std::string& seed : corpus) run(seed);
  while (std::chrono::steady_clock::now() < stop) {
    for (int i = 0; i < 100; ++i, ++runs) {
      run(mutate(corpus[random() % corpus.size()], corpus, random));
    }
  }
  std::printf("%llu inputs\n", static_cast<unsigned long long>(runs));
  return 0;
}
