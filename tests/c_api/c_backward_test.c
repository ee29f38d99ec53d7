// Gradients and ragged batches as a C program sees them: cases worked by hand, and what is refused.
#include <math.h>
#include <string.h>

#include "check.h"
#include "qkv/qkv.h"

static int near(double seen, double expected) { return fabs(seen - expected) <= 1e-5; }

/// Two rows of queries on three keys: where q or k is 0, all logits are, and all weights 1/3.
typedef struct fixture {
  float q[4], k[6], v[3], out[2], lse[2], grad_out[2];
  float grad_q[4], grad_k[6], grad_v[3], grad_bias[3], grad_sinks[1];
  float bias[3], sinks[1];
  qkv_tensor tensors[13];
  qkv_attention_options options;
  qkv_attention_inputs inputs;
  qkv_attention_saved saved;
  qkv_attention_gradients gradients;
} fixture;

enum { Q, K, V, OUT, LSE, GRAD_OUT, GRAD_Q, GRAD_K, GRAD_V, BIAS, GRAD_BIAS, SINKS, GRAD_SINKS };

static qkv_tensor dense4(const float* data, int64_t length, int64_t dim) {
  int64_t shape[4] = {1, 1, 0, 0};
  shape[2] = length;
  shape[3] = dim;
  return qkv_dense(data, QKV_FLOAT32, 4, shape);
}

static void set_up(fixture* f) {
  const int64_t row_shape[3] = {1, 1, 2};
  const int64_t keys[1] = {3};
  const int64_t heads[1] = {1};
  memset(f, 0, sizeof *f);
  f->v[0] = 3;
  f->v[1] = 6;
  f->v[2] = 12;
  f->grad_out[0] = 1;
  f->grad_out[1] = 2;
  f->tensors[Q] = dense4(f->q, 2, 2);
  f->tensors[K] = dense4(f->k, 3, 2);
  f->tensors[V] = dense4(f->v, 3, 1);
  f->tensors[OUT] = dense4(f->out, 2, 1);
  f->tensors[LSE] = qkv_dense(f->lse, QKV_FLOAT32, 3, row_shape);
  f->tensors[GRAD_OUT] = dense4(f->grad_out, 2, 1);
  f->tensors[GRAD_Q] = dense4(f->grad_q, 2, 2);
  f->tensors[GRAD_K] = dense4(f->grad_k, 3, 2);
  f->tensors[GRAD_V] = dense4(f->grad_v, 3, 1);
  f->tensors[BIAS] = qkv_dense(f->bias, QKV_FLOAT32, 1, keys);
  f->tensors[GRAD_BIAS] = qkv_dense(f->grad_bias, QKV_FLOAT32, 1, keys);
  f->tensors[SINKS] = qkv_dense(f->sinks, QKV_FLOAT32, 1, heads);
  f->tensors[GRAD_SINKS] = qkv_dense(f->grad_sinks, QKV_FLOAT32, 1, heads);
  f->options = qkv_attention_options_init();
  f->inputs = qkv_attention_inputs_init();
  f->inputs.q = &f->tensors[Q];
  f->inputs.k = &f->tensors[K];
  f->inputs.v = &f->tensors[V];
  f->saved = qkv_attention_saved_init();
  f->saved.out = &f->tensors[OUT];
  f->saved.lse = &f->tensors[LSE];
  f->gradients = qkv_attention_gradients_init();
  f->gradients.grad_out = &f->tensors[GRAD_OUT];
  f->gradients.grad_q = &f->tensors[GRAD_Q];
  f->gradients.grad_k = &f->tensors[GRAD_K];
  f->gradients.grad_v = &f->tensors[GRAD_V];
}

static void attend(fixture* f) {
  qkv_attention_outputs outputs = qkv_attention_outputs_init();
  outputs.lse = &f->tensors[LSE];
  CHECK_OK(qkv_attention(&f->tensors[Q], &f->tensors[K], &f->tensors[V], &f->tensors[OUT], &f->options, &outputs));
}

static qkv_status differentiate(fixture* f) {
  return qkv_attention_backward(&f->inputs, &f->saved, &f->gradients, &f->options);
}

/// out is 7 in both rows, so dL/d logits is (-4, -1, 5)/3 in the first row and twice that in the second.
static void test_by_hand(void) {
  const double scale = 1 / sqrt(2);
  fixture f;
  set_up(&f);
  f.k[0] = f.k[3] = f.k[4] = f.k[5] = 1;
  attend(&f);
  CHECK_OK(differentiate(&f));
  CHECK(near(f.grad_q[0], scale / 3) && near(f.grad_q[1], scale * 4 / 3));
  CHECK(near(f.grad_q[2], scale * 2 / 3) && near(f.grad_q[3], scale * 8 / 3));
  CHECK(near(f.grad_v[0], 1) && near(f.grad_v[1], 1) && near(f.grad_v[2], 1));
  CHECK(f.grad_k[0] == 0 && f.grad_k[5] == 0);

  set_up(&f);
  f.q[0] = f.q[3] = 1;
  attend(&f);
  CHECK_OK(qkv_reference_attention_backward(&f.inputs, &f.saved, &f.gradients, &f.options));
  CHECK(near(f.grad_k[0], -scale * 4 / 3) && near(f.grad_k[1], -scale * 8 / 3));
  CHECK(near(f.grad_k[4], scale * 5 / 3) && near(f.grad_k[5], scale * 10 / 3));
  CHECK(f.grad_q[0] == 0 && f.grad_q[3] == 0);
}

static void test_bias_and_sinks(void) {
  fixture f;
  set_up(&f);
  f.options.bias = &f.tensors[BIAS];
  attend(&f);
  f.gradients.grad_bias = &f.tensors[GRAD_BIAS];
  CHECK_OK(differentiate(&f));
  CHECK(near(f.grad_bias[0], -4) && near(f.grad_bias[1], -1) && near(f.grad_bias[2], 5));
  f.options.sinks = &f.tensors[SINKS];
  attend(&f);
  f.gradients.grad_sinks = &f.tensors[GRAD_SINKS];
  CHECK_OK(differentiate(&f));
  CHECK(near(f.grad_sinks[0], -63.0 / 16));
}

static void test_what_reaches_lse(void) {
  float grad_lse[2] = {1, 0};
  const int64_t row_shape[3] = {1, 1, 2};
  const qkv_tensor grad_lse_tensor = qkv_dense(grad_lse, QKV_FLOAT32, 3, row_shape);
  fixture f;
  set_up(&f);
  f.options.bias = &f.tensors[BIAS];
  attend(&f);
  f.grad_out[0] = f.grad_out[1] = 0;
  f.gradients.grad_bias = &f.tensors[GRAD_BIAS];
  f.gradients.grad_lse = &grad_lse_tensor;
  CHECK_OK(differentiate(&f));
  CHECK(near(f.grad_bias[0], 1.0 / 3) && near(f.grad_bias[2], 1.0 / 3));
  // The entropy of a uniform row is at its top: nothing changes it.
  f.gradients.grad_entropy = &grad_lse_tensor;
  CHECK_OK(differentiate(&f));
  CHECK(near(f.grad_bias[0], 1.0 / 3) && near(f.grad_bias[2], 1.0 / 3));
}

static void test_accumulate_and_not_wanted(void) {
  fixture f;
  set_up(&f);
  attend(&f);
  f.gradients.grad_q = NULL;
  f.gradients.grad_k = NULL;
  f.grad_v[0] = f.grad_q[0] = f.grad_k[0] = 10;
  f.gradients.accumulate = 4;
  CHECK_OK(differentiate(&f));
  CHECK(near(f.grad_v[0], 11) && near(f.grad_v[1], 1));
  CHECK(f.grad_q[0] == 10 && f.grad_k[0] == 10);
  f.gradients.accumulate = 0;
  CHECK_OK(differentiate(&f));
  CHECK(near(f.grad_v[0], 1));
  f.gradients.grad_v = NULL;
  CHECK_OK(differentiate(&f));
  CHECK_OK(qkv_attention_backward(&f.inputs, &f.saved, &f.gradients, NULL));
}

static void test_refused(void) {
  fixture f;
  set_up(&f);
  attend(&f);
  f.grad_v[0] = -1;
  CHECK_FAILS(qkv_attention_backward(NULL, &f.saved, &f.gradients, NULL), QKV_ERROR_VALUE, "inputs is null");
  CHECK_FAILS(qkv_attention_backward(&f.inputs, NULL, &f.gradients, NULL), QKV_ERROR_VALUE, "saved is null");
  CHECK_FAILS(qkv_attention_backward(&f.inputs, &f.saved, NULL, NULL), QKV_ERROR_VALUE, "gradients is null");
  CHECK_FAILS(qkv_reference_attention_backward(NULL, NULL, NULL, NULL), QKV_ERROR_VALUE, "inputs is null");
  f.inputs.q = NULL;
  CHECK_FAILS(differentiate(&f), QKV_ERROR_VALUE, "q is null");
  set_up(&f);
  f.inputs.k = NULL;
  CHECK_FAILS(differentiate(&f), QKV_ERROR_VALUE, "k is null");
  set_up(&f);
  f.inputs.v = NULL;
  CHECK_FAILS(differentiate(&f), QKV_ERROR_VALUE, "v is null");
  set_up(&f);
  f.saved.out = NULL;
  CHECK_FAILS(differentiate(&f), QKV_ERROR_VALUE, "out is null");
  set_up(&f);
  f.saved.lse = NULL;
  CHECK_FAILS(differentiate(&f), QKV_ERROR_VALUE, "lse is null");
  set_up(&f);
  f.gradients.grad_out = NULL;
  CHECK_FAILS(differentiate(&f), QKV_ERROR_VALUE, "grad_out is null");
  set_up(&f);
  f.gradients.grad_bias = &f.tensors[GRAD_BIAS];
  CHECK_FAILS(differentiate(&f), QKV_ERROR_VALUE, "grad_bias: asked for, but there is no bias");
  set_up(&f);
  f.tensors[LSE].shape[2] = 1;
  CHECK_FAILS(differentiate(&f), QKV_ERROR_SHAPE, "lse: ");
  set_up(&f);
  f.tensors[GRAD_K].dtype = QKV_INT32;
  CHECK_FAILS(differentiate(&f), QKV_ERROR_DTYPE, "grad_k: ");
  set_up(&f);
  f.gradients.grad_v = &f.tensors[V];
  CHECK_FAILS(differentiate(&f), QKV_ERROR_VALUE, "grad_v: ");
  set_up(&f);
  f.inputs.struct_size = 0;
  CHECK_FAILS(differentiate(&f), QKV_ERROR_VALUE, "inputs: struct_size");
  set_up(&f);
  f.saved.struct_size -= 8;
  CHECK_FAILS(differentiate(&f), QKV_ERROR_VALUE, "saved: struct_size");
  set_up(&f);
  f.gradients.struct_size -= 8;
  CHECK_FAILS(differentiate(&f), QKV_ERROR_VALUE, "gradients: struct_size");
}

static void test_newer_struct(void) {
  struct {
    qkv_attention_gradients gradients;
    int64_t later;
  } newer;
  fixture f;
  set_up(&f);
  attend(&f);
  memset(&newer, 0, sizeof newer);
  newer.gradients = f.gradients;
  newer.gradients.struct_size = sizeof newer;
  CHECK_OK(qkv_attention_backward(&f.inputs, &f.saved, &newer.gradients, NULL));
  CHECK(near(f.grad_v[0], 1));
  newer.later = 1;
  CHECK_FAILS(qkv_attention_backward(&f.inputs, &f.saved, &newer.gradients, NULL), QKV_ERROR_VALUE,
              "gradients: struct_size");
}

/// One row on two keys, then two rows on one key.
static void test_ragged(void) {
  float q[6] = {0}, k[6] = {0}, v[3] = {3, 6, 12}, out[3], lse[3], grad_out[3] = {1, 2, 3}, grad_v[3];
  int32_t q_bounds[3] = {0, 1, 3}, k_bounds[3] = {0, 2, 3};
  const int64_t dims[3] = {3, 1, 2}, values[3] = {3, 1, 1}, rows[2] = {1, 3}, bounds[1] = {3};
  const qkv_tensor q_tensor = qkv_dense(q, QKV_FLOAT32, 3, dims), k_tensor = qkv_dense(k, QKV_FLOAT32, 3, dims);
  const qkv_tensor v_tensor = qkv_dense(v, QKV_FLOAT32, 3, values), out_tensor = qkv_dense(out, QKV_FLOAT32, 3, values);
  const qkv_tensor lse_tensor = qkv_dense(lse, QKV_FLOAT32, 2, rows);
  const qkv_tensor grad_out_tensor = qkv_dense(grad_out, QKV_FLOAT32, 3, values);
  const qkv_tensor grad_v_tensor = qkv_dense(grad_v, QKV_FLOAT32, 3, values);
  const qkv_tensor q_lengths = qkv_dense(q_bounds, QKV_INT32, 1, bounds);
  const qkv_tensor k_lengths = qkv_dense(k_bounds, QKV_INT32, 1, bounds);
  qkv_varlen_options options = qkv_varlen_options_init();
  qkv_attention_options each = qkv_attention_options_init();
  qkv_attention_outputs outputs = qkv_attention_outputs_init();
  qkv_attention_inputs inputs = qkv_attention_inputs_init();
  qkv_attention_saved saved = qkv_attention_saved_init();
  qkv_attention_gradients gradients = qkv_attention_gradients_init();
  options.cu_seqlens_q = &q_lengths;
  options.cu_seqlens_k = &k_lengths;
  outputs.lse = &lse_tensor;
  CHECK_OK(qkv_attention_varlen(&q_tensor, &k_tensor, &v_tensor, &out_tensor, &options, &outputs));
  CHECK(near(out[0], 4.5) && near(out[1], 12) && near(out[2], 12));
  CHECK(near(lse[0], log(2)) && lse[1] == 0 && lse[2] == 0);
  inputs.q = &q_tensor;
  inputs.k = &k_tensor;
  inputs.v = &v_tensor;
  saved.out = &out_tensor;
  saved.lse = &lse_tensor;
  gradients.grad_out = &grad_out_tensor;
  gradients.grad_v = &grad_v_tensor;
  CHECK_OK(qkv_attention_varlen_backward(&inputs, &saved, &gradients, &options));
  CHECK(near(grad_v[0], 0.5) && near(grad_v[1], 0.5) && near(grad_v[2], 5));

  // Options of every segment: both rows of the second but the last see nothing.
  each.causal = 1;
  options.attention = &each;
  CHECK_OK(qkv_attention_varlen(&q_tensor, &k_tensor, &v_tensor, &out_tensor, &options, &outputs));
  CHECK(near(out[0], 4.5) && out[1] == 0 && near(out[2], 12));
  CHECK_OK(qkv_attention_varlen_backward(&inputs, &saved, &gradients, &options));
  CHECK(near(grad_v[0], 0.5) && near(grad_v[2], 3));

  each.mask = &q_lengths;
  CHECK_FAILS(qkv_attention_varlen(&q_tensor, &k_tensor, &v_tensor, &out_tensor, &options, NULL), QKV_ERROR_VALUE,
              "mask: a ragged batch takes none");
  each.mask = NULL;
  k_bounds[2] = 2;
  CHECK_FAILS(qkv_attention_varlen_backward(&inputs, &saved, &gradients, &options), QKV_ERROR_VALUE,
              "cu_seqlens_k: expected to end with total_kv = 3, got 2");
  CHECK_FAILS(qkv_attention_varlen_backward(&inputs, &saved, &gradients, NULL), QKV_ERROR_VALUE, "options is null");
  CHECK_FAILS(qkv_attention_varlen(NULL, &k_tensor, &v_tensor, &out_tensor, &options, NULL), QKV_ERROR_VALUE,
              "q is null");
  options.cu_seqlens_q = NULL;
  CHECK_FAILS(qkv_attention_varlen(&q_tensor, &k_tensor, &v_tensor, &out_tensor, &options, NULL), QKV_ERROR_VALUE,
              "cu_seqlens_q is null");
}

int main(void) {
  test_by_hand();
  test_bias_and_sinks();
  test_what_reaches_lse();
  test_accumulate_and_not_wanted();
  test_refused();
  test_newer_struct();
  test_ragged();
  return report();
}
