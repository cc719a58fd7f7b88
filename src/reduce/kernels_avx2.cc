// Compiled with -mavx2 -mf16c.
#define HERRING_LEVEL avx2
#define HERRING_LEVEL_NAME "avx2"
#define HERRING_VECTOR_BYTES 32
#define HERRING_TABLE kAvx2Kernels
#include "reduce/kernels.inc"
