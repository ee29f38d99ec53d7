// Causal self-attention of 3 positions with 2 heads, in C++.
#include <qkv/attention.h>

#include <cstdio>
#include <vector>

int main() {
  const qkv::Extents shape = {1, 2, 3, 4};  // batch, num_heads, q_len, head_dim
  std::vector<float> x(24), out(24);
  for (int i = 0; i < 24; ++i) x[i] = 0.1F * static_cast<float>(i % 7);
  qkv::attention(qkv::view(x.data(), shape), qkv::view(x.data(), shape), qkv::view(x.data(), shape),
                 qkv::view(out.data(), shape), {.causal = true});
  for (int i = 0; i < 24; ++i) std::printf("%.4f%c", out[i], i % 4 == 3 ? '\n' : ' ');
}
