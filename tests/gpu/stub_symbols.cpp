// Functions that do nothing and succeed, whatever they are called with. No CUDA header may be seen here: it would say
// what they really take.
#define FSDP_DOES_NOTHING(name)                                 \
  extern "C" __attribute__((visibility("default"))) int name(); \
  extern "C" __attribute__((visibility("default"))) int name() { return 0; }
#include "tests/gpu/stub_symbols.inc"
