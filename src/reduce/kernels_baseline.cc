// Runs on every CPU, with SSE2 on x86-64 and 16-byte vectors elsewhere.
#define HERRING_LEVEL baseline
#define HERRING_LEVEL_NAME "baseline"
#define HERRING_VECTOR_BYTES 16
#define HERRING_TABLE kBaselineKernels
#include "reduce/kernels.inc"
