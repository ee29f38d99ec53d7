// The C interface as a C program sees it: compiled as strict C11, linked with the library alone.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "qkv/qkv.h"

static int near(double seen, double expected) { return fabs(seen - expected) <= 1e-6; }

/// Two rows of queries on three keys, all logits 0: a row's output is the mean of the values it sees.
typedef struct fixture {
  float q[2 * 2], k[3 * 2], v[3 * 1], out[2 * 1];
  qkv_tensor q_tensor, k_tensor, v_tensor, out_tensor;
} fixture;

static void set_up(fixture* f) {
  const int64_t q_shape[4] = {1, 1, 2, 2};
  const int64_t k_shape[4] = {1, 1, 3, 2};
  const int64_t v_shape[4] = {1, 1, 3, 1};
  const int64_t out_shape[4] = {1, 1, 2, 1};
  memset(f, 0, sizeof *f);
  f->v[0] = 3;
  f->v[1] = 6;
  f->v[2] = 12;
  f->out[0] = f->out[1] = -1;
  f->q_tensor = qkv_dense(f->q, QKV_FLOAT32, 4, q_shape);
  f->k_tensor = qkv_dense(f->k, QKV_FLOAT32, 4, k_shape);
  f->v_tensor = qkv_dense(f->v, QKV_FLOAT32, 4, v_shape);
  f->out_tensor = qkv_dense(f->out, QKV_FLOAT32, 4, out_shape);
}

static qkv_status attend(fixture* f, const qkv_attention_options* options, const qkv_attention_outputs* outputs) {
  return qkv_attention(&f->q_tensor, &f->k_tensor, &f->v_tensor, &f->out_tensor, options, outputs);
}

static void test_identity(void) {
  CHECK(strcmp(qkv_version(), "0.1.0") == 0);
  CHECK(strcmp(qkv_status_name(QKV_OK), "QKV_OK") == 0);
  CHECK(strcmp(qkv_status_name(QKV_ERROR_OUT_OF_MEMORY), "QKV_ERROR_OUT_OF_MEMORY") == 0);
  CHECK(strcmp(qkv_status_name((qkv_status)6), "unknown status") == 0);
  CHECK(strcmp(qkv_last_error(), "") == 0);
}

static void test_dense(void) {
  const int64_t shape[3] = {2, 3, 5};
  float data[30];
  const qkv_tensor tensor = qkv_dense(data, QKV_FLOAT32, 3, shape);
  CHECK(tensor.struct_size == sizeof(qkv_tensor));
  CHECK(tensor.data == data && tensor.dtype == QKV_FLOAT32 && tensor.rank == 3);
  CHECK(tensor.shape[0] == 2 && tensor.shape[1] == 3 && tensor.shape[2] == 5);
  CHECK(tensor.strides[0] == 15 && tensor.strides[1] == 5 && tensor.strides[2] == 1);
}

static void test_defaults(void) {
  fixture f;
  set_up(&f);
  CHECK_OK(attend(&f, NULL, NULL));
  CHECK(near(f.out[0], 7) && near(f.out[1], 7));
  f.out[0] = f.out[1] = -1;
  const qkv_attention_options options = qkv_attention_options_init();
  const qkv_attention_outputs outputs = qkv_attention_outputs_init();
  CHECK_OK(attend(&f, &options, &outputs));
  CHECK(near(f.out[0], 7) && near(f.out[1], 7));
  f.out[0] = f.out[1] = -1;
  CHECK_OK(qkv_reference_attention(&f.q_tensor, &f.k_tensor, &f.v_tensor, &f.out_tensor, NULL, NULL));
  CHECK(near(f.out[0], 7) && near(f.out[1], 7));
}

static void test_causal_and_outputs(void) {
  fixture f;
  float lse[2] = {-1, -1};
  float weights[3] = {-1, -1, -1};
  int64_t max_key[2] = {-7, -7};
  const int64_t row_shape[3] = {1, 1, 2};
  const int64_t weights_shape[4] = {1, 1, 1, 3};
  const int64_t row = 0;
  set_up(&f);
  const qkv_tensor lse_tensor = qkv_dense(lse, QKV_FLOAT32, 3, row_shape);
  const qkv_tensor weights_tensor = qkv_dense(weights, QKV_FLOAT32, 4, weights_shape);
  const qkv_tensor max_key_tensor = qkv_dense(max_key, QKV_INT64, 3, row_shape);
  qkv_attention_options options = qkv_attention_options_init();
  qkv_attention_outputs outputs = qkv_attention_outputs_init();
  options.causal = 1;
  outputs.lse = &lse_tensor;
  outputs.weights = &weights_tensor;
  outputs.weight_rows = &row;
  outputs.num_weight_rows = 1;
  outputs.max_key = &max_key_tensor;
  CHECK_OK(attend(&f, &options, &outputs));
  CHECK(near(f.out[0], 4.5) && near(f.out[1], 7));
  CHECK(near(lse[0], log(2)) && near(lse[1], log(3)));
  CHECK(near(weights[0], 0.5) && near(weights[1], 0.5) && weights[2] == 0);
  CHECK(max_key[0] == 0 && max_key[1] == 0);

  const int64_t first = -1;
  options.query_offset = &first;
  CHECK_OK(attend(&f, &options, &outputs));
  CHECK(f.out[0] == 0 && near(f.out[1], 3));
  CHECK(isinf(lse[0]) && lse[0] < 0 && max_key[0] == -1);
}

static void test_nulls(void) {
  fixture f;
  set_up(&f);
  CHECK_FAILS(qkv_attention(NULL, &f.k_tensor, &f.v_tensor, &f.out_tensor, NULL, NULL), QKV_ERROR_VALUE, "q is null");
  CHECK_FAILS(qkv_attention(&f.q_tensor, NULL, &f.v_tensor, &f.out_tensor, NULL, NULL), QKV_ERROR_VALUE, "k is null");
  CHECK_FAILS(qkv_attention(&f.q_tensor, &f.k_tensor, NULL, &f.out_tensor, NULL, NULL), QKV_ERROR_VALUE, "v is null");
  CHECK_FAILS(qkv_attention(&f.q_tensor, &f.k_tensor, &f.v_tensor, NULL, NULL, NULL), QKV_ERROR_VALUE, "out is null");
  CHECK_FAILS(qkv_reference_attention(NULL, NULL, NULL, NULL, NULL, NULL), QKV_ERROR_VALUE, "q is null");
  CHECK_FAILS(qkv_merge_states(NULL, NULL, 1, &f.out_tensor, NULL, NULL), QKV_ERROR_VALUE, "outs is null");
  CHECK_FAILS(qkv_padding_mask(NULL, 1, &f.out_tensor), QKV_ERROR_VALUE, "lengths is null");
  CHECK_FAILS(qkv_causal_mask(NULL, NULL), QKV_ERROR_VALUE, "mask is null");
  CHECK_FAILS(qkv_set_target(NULL), QKV_ERROR_VALUE, "name is null");
  f.k_tensor.data = NULL;
  CHECK_FAILS(attend(&f, NULL, NULL), QKV_ERROR_VALUE, "k: data is null");
  CHECK(f.out[0] == -1 && f.out[1] == -1);
}

static void test_bad_tensors(void) {
  fixture f;
  qkv_attention_options options = qkv_attention_options_init();
  set_up(&f);
  f.v_tensor.dtype = 10;
  CHECK_FAILS(attend(&f, NULL, NULL), QKV_ERROR_DTYPE, "v: 10");
  f.v_tensor.dtype = -1;
  CHECK_FAILS(attend(&f, NULL, NULL), QKV_ERROR_DTYPE, "v: -1");
  f.v_tensor.dtype = QKV_FLOAT64;
  CHECK_FAILS(attend(&f, NULL, NULL), QKV_ERROR_DTYPE, "v");
  set_up(&f);
  f.q_tensor.rank = 9;
  CHECK_FAILS(attend(&f, NULL, NULL), QKV_ERROR_SHAPE, "q: expected a rank");
  f.q_tensor.rank = -1;
  CHECK_FAILS(attend(&f, NULL, NULL), QKV_ERROR_SHAPE, "q: expected a rank");
  set_up(&f);
  f.k_tensor.shape[2] = -3;
  CHECK_FAILS(attend(&f, NULL, NULL), QKV_ERROR_SHAPE, "k: extent -3 of axis 2");
  set_up(&f);
  f.k_tensor.shape[3] = 1;
  CHECK_FAILS(attend(&f, NULL, NULL), QKV_ERROR_SHAPE, "k");
  set_up(&f);
  const double scale = NAN;
  options.scale = &scale;
  CHECK_FAILS(attend(&f, &options, NULL), QKV_ERROR_VALUE, "scale");
  options = qkv_attention_options_init();
  options.softcap = -1;
  CHECK_FAILS(attend(&f, &options, NULL), QKV_ERROR_VALUE, "softcap");
  options = qkv_attention_options_init();
  options.dropout_p = 0.5;
  CHECK_FAILS(attend(&f, &options, NULL), QKV_ERROR_VALUE, "dropout");
  options.dropout_p = 2;
  CHECK_FAILS(attend(&f, &options, NULL), QKV_ERROR_VALUE, "dropout");
  CHECK(f.out[0] == -1 && f.out[1] == -1);
}

static void test_older_and_newer_structs(void) {
  fixture f;
  struct {
    qkv_attention_options options;
    int64_t later;
  } newer = {qkv_attention_options_init(), 0};
  qkv_attention_options older = qkv_attention_options_init();
  set_up(&f);

  // What lies behind an older structure is not its own: it must not be read.
  const size_t older_size = offsetof(qkv_attention_options, mask);
  memset((char*)&older + older_size, 0xff, sizeof older - older_size);
  older.struct_size = older_size;
  older.causal = 1;
  CHECK_OK(attend(&f, &older, NULL));
  CHECK(near(f.out[0], 4.5) && near(f.out[1], 7));

  newer.options.struct_size = sizeof newer;
  newer.options.causal = 1;
  f.out[0] = -1;
  CHECK_OK(attend(&f, &newer.options, NULL));
  CHECK(near(f.out[0], 4.5));
  newer.later = 1;
  CHECK_FAILS(attend(&f, &newer.options, NULL), QKV_ERROR_VALUE, "options: struct_size");

  older.struct_size = 0;
  CHECK_FAILS(attend(&f, &older, NULL), QKV_ERROR_VALUE, "options: struct_size is 0");
  older.struct_size = older_size + 4;
  CHECK_FAILS(attend(&f, &older, NULL), QKV_ERROR_VALUE, "options: struct_size");
  older.struct_size = (size_t)-8;
  CHECK_FAILS(attend(&f, &older, NULL), QKV_ERROR_VALUE, "options: struct_size");
  f.v_tensor.struct_size -= sizeof(int64_t);
  CHECK_FAILS(attend(&f, NULL, NULL), QKV_ERROR_VALUE, "v: struct_size");
}

/// Each weight is 1/3 of 1 / (1 - p), or 0.
static void test_dropout(void) {
  int kept[2] = {0, 0};
  for (uint64_t seed = 0; seed < 64; ++seed) {
    fixture f, again;
    set_up(&f);
    set_up(&again);
    qkv_attention_options options = qkv_attention_options_init();
    options.dropout_p = 0.5;
    options.dropout_seed = &seed;
    CHECK_OK(attend(&f, &options, NULL));
    CHECK_OK(attend(&again, &options, NULL));
    for (int row = 0; row < 2; ++row) {
      int found = 0;
      for (int mask = 0; mask < 8; ++mask) {
        const double sum = 3 * (mask & 1) + 6 * (mask >> 1 & 1) + 12 * (mask >> 2 & 1);
        if (!near(f.out[row], sum / 3 / 0.5)) continue;
        ++found;
        kept[row] += (mask & 1) + (mask >> 1 & 1) + (mask >> 2 & 1);
      }
      CHECK(found == 1);
      CHECK(f.out[row] == again.out[row]);
    }
  }
  // 5 standard deviations of 192 throws.
  for (int row = 0; row < 2; ++row) CHECK(kept[row] > 96 - 35 && kept[row] < 96 + 35);
}

static void test_masks(void) {
  const int64_t lengths[2] = {1, 3};
  const int64_t too_long[2] = {1, 4};
  const int64_t padding_shape[4] = {2, 1, 1, 3};
  const int64_t causal_shape[2] = {2, 3};
  const int64_t offset = 0;
  unsigned char padding[6];
  unsigned char causal[6];
  memset(padding, 7, sizeof padding);
  memset(causal, 7, sizeof causal);
  qkv_tensor padding_tensor = qkv_dense(padding, QKV_BOOL, 4, padding_shape);
  qkv_tensor causal_tensor = qkv_dense(causal, QKV_BOOL, 2, causal_shape);

  CHECK_OK(qkv_padding_mask(lengths, 2, &padding_tensor));
  CHECK(memcmp(padding, "\1\0\0\1\1\1", 6) == 0);
  CHECK_FAILS(qkv_padding_mask(too_long, 2, &padding_tensor), QKV_ERROR_VALUE, "length");
  CHECK_FAILS(qkv_padding_mask(lengths, 1, &padding_tensor), QKV_ERROR_SHAPE, "mask");
  padding_tensor.dtype = QKV_UINT8;
  CHECK_FAILS(qkv_padding_mask(lengths, 2, &padding_tensor), QKV_ERROR_DTYPE, "mask");

  CHECK_OK(qkv_causal_mask(NULL, &causal_tensor));
  CHECK(memcmp(causal, "\1\1\0\1\1\1", 6) == 0);
  CHECK_OK(qkv_causal_mask(&offset, &causal_tensor));
  CHECK(memcmp(causal, "\1\0\0\1\1\0", 6) == 0);
  causal_tensor.strides[0] = 1;
  causal_tensor.strides[1] = 2;
  CHECK_OK(qkv_causal_mask(&offset, &causal_tensor));
  CHECK(memcmp(causal, "\1\1\0\1\0\0", 6) == 0);
  causal_tensor.rank = 1;
  CHECK_FAILS(qkv_causal_mask(NULL, &causal_tensor), QKV_ERROR_SHAPE, "mask");
}

static void test_merge(void) {
  const int64_t out_shape[4] = {1, 1, 1, 1};
  const int64_t lse_shape[3] = {1, 1, 1};
  const int64_t sinks_shape[1] = {1};
  float out_a = 3, out_b = 9, lse_a = 0, lse_b = (float)log(2), sink = 0;
  float merged = -1, merged_lse = -1;
  const qkv_tensor a = qkv_dense(&out_a, QKV_FLOAT32, 4, out_shape);
  const qkv_tensor b = qkv_dense(&out_b, QKV_FLOAT32, 4, out_shape);
  const qkv_tensor a_lse = qkv_dense(&lse_a, QKV_FLOAT32, 3, lse_shape);
  const qkv_tensor b_lse = qkv_dense(&lse_b, QKV_FLOAT32, 3, lse_shape);
  const qkv_tensor out = qkv_dense(&merged, QKV_FLOAT32, 4, out_shape);
  const qkv_tensor lse = qkv_dense(&merged_lse, QKV_FLOAT32, 3, lse_shape);
  const qkv_tensor sinks = qkv_dense(&sink, QKV_FLOAT32, 1, sinks_shape);
  const qkv_tensor* outs[2] = {&a, &b};
  const qkv_tensor* lses[2] = {&a_lse, &b_lse};

  CHECK_OK(qkv_merge_states(outs, lses, 2, &out, &lse, NULL));
  CHECK(near(merged, 7) && near(merged_lse, log(3)));
  CHECK_OK(qkv_merge_states(outs, lses, 2, &out, NULL, &sinks));
  CHECK(near(merged, 5.25) && near(merged_lse, log(3)));
  CHECK_FAILS(qkv_merge_states(outs, lses, 0, &out, NULL, NULL), QKV_ERROR_VALUE, "part");
  lses[1] = NULL;
  CHECK_FAILS(qkv_merge_states(outs, lses, 2, &out, NULL, NULL), QKV_ERROR_VALUE, "lses[1] is null");
}

static void test_runtime(void) {
  const int threads = qkv_num_threads();
  char best[64];
  size_t index = 0;
  CHECK(threads >= 1);
  CHECK_OK(qkv_set_num_threads(3));
  CHECK(qkv_num_threads() == 3);
  CHECK_FAILS(qkv_set_num_threads(0), QKV_ERROR_VALUE, "num_threads");
  CHECK(qkv_num_threads() == 3);
  CHECK_OK(qkv_set_num_threads(threads));

  CHECK(qkv_available_target(0) != NULL);
  snprintf(best, sizeof best, "%s", qkv_available_target(0));
  while (qkv_available_target(index) != NULL) {
    CHECK_OK(qkv_set_target(qkv_available_target(index)));
    CHECK(strcmp(qkv_target(), qkv_available_target(index)) == 0);
    ++index;
  }
  CHECK(index >= 2);
  CHECK_FAILS(qkv_set_target("abacus"), QKV_ERROR_VALUE, "abacus");
  CHECK_OK(qkv_set_target(""));
  CHECK(strcmp(qkv_target(), best) == 0);
}

int main(void) {
  test_identity();
  test_dense();
  test_defaults();
  test_causal_and_outputs();
  test_nulls();
  test_bad_tensors();
  test_older_and_newer_structs();
  test_dropout();
  test_masks();
  test_merge();
  test_runtime();
  return report();
}
