#include <stdio.h>

#include "qkv/qkv.h"

/* Two equal keys: the mean of the two values. */
int main(void) {
  const float q[2] = {1, 2};
  const float k[4] = {1, 1, 1, 1};
  const float v[4] = {1, 2, 3, 4};
  float out[2] = {0, 0};
  const int64_t one_row[4] = {1, 1, 1, 2};
  const int64_t two_rows[4] = {1, 1, 2, 2};
  const qkv_tensor q_view = qkv_dense(q, QKV_FLOAT32, 4, one_row);
  const qkv_tensor k_view = qkv_dense(k, QKV_FLOAT32, 4, two_rows);
  const qkv_tensor v_view = qkv_dense(v, QKV_FLOAT32, 4, two_rows);
  const qkv_tensor out_view = qkv_dense(out, QKV_FLOAT32, 4, one_row);
  if (qkv_attention(&q_view, &k_view, &v_view, &out_view, NULL, NULL) != QKV_OK) {
    fprintf(stderr, "%s\n", qkv_last_error());
    return 1;
  }
  printf("qkv %s: %g %g\n", qkv_version(), (double)out[0], (double)out[1]);
  return 0;
}
