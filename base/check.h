// ISTHMUS_CHECK: what only a bug can cause. Stays on in release builds; prints where and stops.
#pragma once

#include <cstdio>
#include <cstdlib>

#define ISTHMUS_CHECK(condition)                                                                 \
  do {                                                                                           \
    if (!(condition)) {                                                                          \
      std::fprintf(stderr, "%s:%d: internal error, please report: %s does not hold\n", __FILE__, \
                   __LINE__, #condition);                                                        \
      std::abort();                                                                              \
    }                                                                                            \
  } while (false)
