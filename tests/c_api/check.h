#ifndef QKV_TESTS_C_API_CHECK_H_
#define QKV_TESTS_C_API_CHECK_H_

#include <stdio.h>
#include <string.h>

#include "qkv/qkv.h"

/// What the tests in C check with, since GoogleTest is C++.
static int num_failures = 0;

#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      printf("%s:%d: CHECK(%s) failed\n", __FILE__, __LINE__, #condition); \
      ++num_failures;                                                      \
    }                                                                      \
  } while (0)

#define CHECK_OK(call)                                                                                          \
  do {                                                                                                          \
    const qkv_status status_ = (call);                                                                          \
    if (status_ != QKV_OK) {                                                                                    \
      printf("%s:%d: %s gave %s: %s\n", __FILE__, __LINE__, #call, qkv_status_name(status_), qkv_last_error()); \
      ++num_failures;                                                                                           \
    }                                                                                                           \
  } while (0)

/// The call fails with this status, and the text names the argument.
#define CHECK_FAILS(call, expected, argument)                                                                          \
  do {                                                                                                                 \
    const qkv_status status_ = (call);                                                                                 \
    if (status_ != (expected) || strstr(qkv_last_error(), (argument)) == NULL) {                                       \
      printf("%s:%d: %s gave %s: \"%s\"; expected %s about %s\n", __FILE__, __LINE__, #call, qkv_status_name(status_), \
             qkv_last_error(), qkv_status_name(expected), (argument));                                                 \
      ++num_failures;                                                                                                  \
    }                                                                                                                  \
  } while (0)

/// What main returns.
static int report(void) {
  if (num_failures == 0) printf("ok\n");
  return num_failures == 0 ? 0 : 1;
}

#endif  // QKV_TESTS_C_API_CHECK_H_
