// Compiled with -mavx512f and related flags, see CMakeLists.txt.
#define HERRING_LEVEL avx512
#define HERRING_LEVEL_NAME "avx512"
#define HERRING_VECTOR_BYTES 64
#define HERRING_TABLE kAvx512Kernels
#include "reduce/kernels.inc"
