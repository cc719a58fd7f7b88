// Kernels of one thread that wait for a word in pinned host memory, and write one, for GPUs whose
// streams have no memory operations. NVRTC compiles this text for the GPU at hand; the stand-in for
// CUDA's driver compiles it for the host.

#if defined(__CUDACC__)
#define HERRING_WORDS_INLINE __device__ __forceinline__
#else
#define HERRING_WORDS_INLINE inline
#endif

namespace herring_words {

// Compares as device::reached() and memory operations on streams do: words may wrap around.
HERRING_WORDS_INLINE bool reached(unsigned int word, unsigned int value) {
  return static_cast<int>(word - value) >= 0;
}

}  // namespace herring_words

#if defined(__CUDACC__)
// Without a word, both kernels only have their code loaded. The fences are for the whole system:
// what is on either side of the word may have been written by, or be for, the host.
extern "C" __global__ void herring_wait(const unsigned long long address,
                                        const unsigned int value) {
  if (address == 0) return;
  const volatile unsigned int* const word = reinterpret_cast<const volatile unsigned int*>(address);
  while (!herring_words::reached(*word, value)) {
#if __CUDA_ARCH__ >= 700
    __nanosleep(100);  // leaves the link to copies between two reads
#endif
  }
  __threadfence_system();
}

extern "C" __global__ void herring_write(const unsigned long long address,
                                         const unsigned int value) {
  if (address == 0) return;
  __threadfence_system();
  *reinterpret_cast<volatile unsigned int*>(address) = value;
}
#endif
