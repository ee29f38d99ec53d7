#ifndef QKV_TESTS_ATTENTION_RIGHT_CALL_H_
#define QKV_TESTS_ATTENTION_RIGHT_CALL_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "attention/validate.h"
#include "qkv/error.h"

namespace qkv {

/// A call that is right: q [2, 4, 3, 8], k [2, 2, 5, 8], v [2, 2, 5, 6], out [2, 4, 3, 6]. Tests spoil one thing of it.
struct Right {
  Tensor q{{2, 4, 3, 8}, Dtype::kFloat32};
  Tensor k{{2, 2, 5, 8}, Dtype::kFloat32};
  Tensor v{{2, 2, 5, 6}, Dtype::kFloat32};
  Tensor out{{2, 4, 3, 6}, Dtype::kFloat32};
  AttentionOptions options = {};
  AttentionOutputs outputs = {};

  kernels::ForwardProblem validate() {
    return attention_detail::validate(q.view(), k.view(), v.view(), out.view(), options, outputs);
  }
};

/// The same, q, k, v and out of another dtype.
inline Right right_call_of(Dtype dtype) {
  Right call;
  for (Tensor* tensor : {&call.q, &call.k, &call.v, &call.out}) *tensor = Tensor(tensor->shape(), dtype);
  return call;
}

/// The call is refused with this exception, and its text has all these parts.
template <class Exception>
void expect_refused(const std::function<void()>& call, const std::vector<std::string>& parts) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown, expected: " << ::testing::PrintToString(parts);
  } catch (const Exception& error) {
    EXPECT_THAT(error.what(), ::testing::StartsWith("qkv::attention: "));
    for (const std::string& part : parts) EXPECT_THAT(error.what(), ::testing::HasSubstr(part));
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception: " << error.what();
  }
}
template <class Exception>
void expect_refused(Right& call, const std::vector<std::string>& parts) {
  expect_refused<Exception>([&call] { call.validate(); }, parts);
}

}  // namespace qkv

#endif  // QKV_TESTS_ATTENTION_RIGHT_CALL_H_
