/* Causal self-attention of 3 positions with 2 heads, in C: what examples/cpp does, and the weights of the first head.
 */
#include <qkv/qkv.h>
#include <stdio.h>

int main(void) {
  const int64_t shape[4] = {1, 2, 3, 4};         /* batch, num_heads, q_len, head_dim */
  const int64_t weights_shape[4] = {1, 1, 3, 3}; /* batch, heads asked for, rows, kv_len */
  const int64_t first_head = 0;
  float x[24], out[24] = {0}, weights[9] = {0};
  for (int i = 0; i < 24; ++i) x[i] = 0.1F * (float)(i % 7);

  const qkv_tensor x_tensor = qkv_dense(x, QKV_FLOAT32, 4, shape);
  const qkv_tensor out_tensor = qkv_dense(out, QKV_FLOAT32, 4, shape);
  const qkv_tensor weights_tensor = qkv_dense(weights, QKV_FLOAT32, 4, weights_shape);
  qkv_attention_options options = qkv_attention_options_init();
  options.causal = 1;
  qkv_attention_outputs outputs = qkv_attention_outputs_init();
  outputs.weights = &weights_tensor;
  outputs.weight_heads = &first_head;
  outputs.num_weight_heads = 1;

  if (qkv_attention(&x_tensor, &x_tensor, &x_tensor, &out_tensor, &options, &outputs) != QKV_OK) {
    fprintf(stderr, "%s\n", qkv_last_error());
    return 1;
  }
  for (int i = 0; i < 24; ++i) printf("%.4f%c", out[i], i % 4 == 3 ? '\n' : ' ');
  printf("weights of head 0\n");
  for (int i = 0; i < 9; ++i) printf("%.4f%c", weights[i], i % 3 == 2 ? '\n' : ' ');
  return 0;
}
