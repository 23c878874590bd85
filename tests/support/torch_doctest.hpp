#pragma once
// doctest beside LibTorch, whose logging header also defines CHECK and similar macros. Include it first.
#include <ATen/ATen.h>
#include <c10/util/Logging.h>

#undef CHECK
#undef CHECK_EQ
#undef CHECK_NE
#undef CHECK_GT
#undef CHECK_LT
#undef CHECK_GE
#undef CHECK_LE
#include <doctest/doctest.h>
