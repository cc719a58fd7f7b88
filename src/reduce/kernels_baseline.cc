// Every CPU: SSE2 on x86-64, the 16-byte vectors of others.
#define HERRING_LEVEL baseline
#define HERRING_LEVEL_NAME "baseline"
#define HERRING_VECTOR_BYTES 16
#define HERRING_TABLE kBaselineKernels
#include "reduce/kernels.inc"
