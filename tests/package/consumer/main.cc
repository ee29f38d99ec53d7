#include <array>
#include <cstdio>

#include "qkv/attention.h"
#include "qkv/runtime.h"

// Two equal keys: the mean of the two values.
int main() {
  const std::array<float, 2> q = {1, 2};
  const std::array<float, 4> k = {1, 1, 1, 1};
  const std::array<float, 4> v = {1, 2, 3, 4};
  std::array<float, 2> out = {};
  qkv::attention(qkv::view(q.data(), {1, 1, 1, 2}), qkv::view(k.data(), {1, 1, 2, 2}),
                 qkv::view(v.data(), {1, 1, 2, 2}), qkv::view(out.data(), {1, 1, 1, 2}));
  std::printf("qkv %s: %g %g\n", qkv::version().data(), static_cast<double>(out[0]), static_cast<double>(out[1]));
}
