// Functions that do nothing and succeed for any arguments. Include no CUDA header here: it would declare their real
// parameters.
#include "tests/gpu/stub_capture.hpp"
#define FSDP_DOES_NOTHING(name)                                 \
  extern "C" __attribute__((visibility("default"))) int name(); \
  extern "C" __attribute__((visibility("default"))) int name() { return 0; }
#define FSDP_IS_NOTED(name, kind)                                \
  extern "C" __attribute__((visibility("default"))) int name();  \
  extern "C" __attribute__((visibility("default"))) int name() { \
    return stub::issue_of_library(stub::EventKind::kind, #name); \
  }
#define FSDP_MULTIPLIES(name) FSDP_IS_NOTED(name, product)
#define FSDP_ATTENDS(name) FSDP_IS_NOTED(name, attention)
#include "tests/gpu/stub_symbols.inc"
