/* Every function of the C API, called from C99, by ranks that are processes. */
#define _XOPEN_SOURCE 700 /* For mkdtemp() and fork(). */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "integrations/c/gradientflow.h"
#include "integrations/c/gradientflow_csc.h"

enum { RANKS = 3, TENSORS = 3, CHUNK = 10 };

static int g_rank = -1;
static gf_comm* g_comm = NULL;

#define CHECK(condition)                                                \
  do {                                                                  \
    if (!(condition)) {                                                 \
      fprintf(stderr, "rank %d, line %d: %s; last error: %s\n", g_rank, \
              __LINE__, #condition, gf_last_error());                   \
      exit(1);                                                          \
    }                                                                   \
  } while (0)
#define CHECK_OK(call) CHECK((call) == GF_OK)
#define CHECK_INVALID(call)               \
  do {                                    \
    CHECK((call) == GF_INVALID_ARGUMENT); \
    CHECK(strlen(gf_last_error()) > 0);   \
  } while (0)

static void test_without_a_session(void) {
  gf_options* options = NULL;
  char text[64];
  char small[3];
  gf_step_stats stats;
  CHECK(gf_version() == GF_VERSION_MAJOR * 1000 + GF_VERSION_MINOR);
  CHECK(strcmp(gf_status_name(GF_UNAVAILABLE), "UNAVAILABLE") == 0);
  CHECK(strcmp(gf_status_name(12345), "UNKNOWN") == 0);
  CHECK(strcmp(gf_last_error(), "") == 0);
  CHECK_OK(gf_options_default(&options));
  CHECK_OK(gf_options_set(options, "wire_dtype", "float16"));
  CHECK_OK(gf_options_get(options, "WIRE_DTYPE", text, sizeof(text)));
  CHECK(strcmp(text, "float16") == 0);
  CHECK_INVALID(gf_options_get(options, "wire_dtype", small, sizeof(small)));
  CHECK_INVALID(gf_options_set(options, "wire_dtype", "float17"));
  CHECK(strstr(gf_last_error(), "float17") != NULL);
  CHECK_INVALID(gf_options_set(options, "no_such_setting", "1"));
  CHECK_INVALID(gf_options_set(NULL, "rank", "1"));
  CHECK_INVALID(gf_options_default(NULL));
  CHECK_INVALID(gf_options_from_env(NULL));
  gf_options_free(options);
  gf_options_free(NULL);
  CHECK(gf_comm_rank(NULL) == -1 && gf_comm_size(NULL) == -1);
  CHECK(gf_supports(GF_ALLREDUCE, GF_FLOAT32, GF_FLOAT16, GF_MEAN) == 1);
  CHECK(gf_supports(GF_ALLREDUCE, GF_INT32, -1, GF_BIT_XOR) == 1);
  CHECK(gf_supports(GF_ALLREDUCE, GF_INT32, -1, GF_MEAN) == 0);
  CHECK(gf_supports(GF_ALLREDUCE, GF_FLOAT64, -1, GF_BIT_XOR) == 0);
  CHECK(gf_supports(GF_GATHER, GF_FLOAT64, -1, GF_SUM) == 1);
  CHECK(gf_supports(GF_ALLREDUCE, 99, -1, GF_SUM) == 0);
  CHECK(gf_supports(99, GF_FLOAT32, -1, GF_SUM) == 0);
  gf_step_stats_init(&stats);
  CHECK_INVALID(gf_session_finish_step(NULL, &stats));
  CHECK_INVALID(gf_session_finish_step_async(NULL, &stats, NULL, NULL));
  CHECK_INVALID(gf_comm_open(NULL, NULL));
  CHECK_INVALID(gf_session_open(NULL, 0, NULL, NULL, 0, NULL));
  CHECK(gf_session_rank(NULL) == -1 && gf_session_size(NULL) == -1);
  CHECK(gf_comm_local_rank(NULL) == -1 && gf_comm_local_size(NULL) == -1);
  gf_session_close(NULL);
  gf_comm_close(NULL);
}

static void test_kernels(void) {
  float gradients[5] = {1, -2, 3, -4, 0.5F};
  uint16_t halves[2] = {0, 0};
  CHECK_OK(gf_convert(gradients, GF_FLOAT32, halves, GF_FLOAT16, 2, 0.5F));
  CHECK(halves[0] == 0x3800 && halves[1] == 0xBC00); /* 0.5 and -1 */
  CHECK_INVALID(gf_convert(gradients, GF_INT32, halves, GF_FLOAT16, 2, 1));
}

static void test_dtype_names(void) {
  CHECK(strcmp(gf_dtype_name(GF_FLOAT32), "float32") == 0);
  CHECK(strcmp(gf_dtype_name(GF_UINT8), "uint8") == 0);
  CHECK(gf_dtype_name(-1) == NULL && gf_dtype_name(99) == NULL);
}

static void test_csc(void) {
  float gradients[5] = {1, -2, 3, -4, 0.5F};
  float residual[5] = {0, 0, 1, -1, 0.25F};
  float packed[5 + 3], norms[3];
  gf_tensor tensor;
  const uint8_t saved[3] = {0, 1, 0};
  gf_csc_config config;
  gf_csc_bucket_config add = {0};
  gf_csc* csc = NULL;
  gf_csc_bucket* bucket = NULL;
  gf_csc_config_init(&config);
  config.chunk_elements = 2;
  config.sparsity = 0.5;
  config.step = 4;
  config.keep_factor = 0.5F;
  config.wire_dtype = GF_FLOAT32;
  CHECK_INVALID(gf_csc_open(NULL, &csc));
  CHECK_INVALID(gf_csc_end_step(NULL, NULL));
  CHECK_OK(gf_csc_open(&config, &csc));
  gf_tensor_init(&tensor);
  tensor.elements = 5;
  add.tensors = &tensor;
  add.tensor_count = 1;
  add.dtype = GF_FLOAT32;
  add.residual = residual;
  add.selected = saved;
  add.selected_count = 3;
  CHECK_OK(gf_csc_add(csc, &add, &bucket));
  CHECK(bucket->packed_elements == 5 && bucket->selected_chunks == 1);
  CHECK(gf_csc_unpack(bucket, NULL) == GF_FAILED_PRECONDITION);
  CHECK_INVALID(gf_csc_pack(bucket, NULL, packed, 1, norms, NULL));
  CHECK_OK(gf_csc_pack(bucket, gradients, packed, 0.5F, norms, NULL));
  CHECK(packed[0] == 2 && packed[1] == -2.5F && packed[2] == 0);
  CHECK(residual[1] == -1 && residual[2] == 0 && residual[4] == 0.375F);
  CHECK_OK(gf_csc_unpack(bucket, NULL));
  CHECK(gradients[0] == 0 && gradients[3] == -2.5F);
  CHECK(norms[0] == 3 && norms[1] == 4.5F && norms[2] == 0.75F);
  CHECK_OK(gf_csc_end_step(csc, NULL));
  CHECK(gf_csc_step(csc) == 5);
  CHECK_INVALID(gf_csc_select(csc, norms, 2));
  CHECK_OK(gf_csc_select(csc, norms, 3));
  CHECK(bucket->chunks == 3 && bucket->selected[0] == 1);
  CHECK(bucket->selected[1] == 1 && bucket->selected[2] == 0);
  CHECK_OK(gf_csc_drop(csc, 0));
  gf_csc_close(csc);
  gf_csc_close(NULL);
}

static gf_session* open_session(int rank, const char* meeting_place) {
  static const size_t elements[TENSORS] = {25, 7, 40};
  gf_tensor tensors[TENSORS];
  gf_options* options = NULL;
  gf_session* session = NULL;
  char text[16];
  int i;
  CHECK_OK(gf_options_from_env(&options));
  sprintf(text, "%d", rank);
  CHECK_OK(gf_options_set(options, "rank", text));
  sprintf(text, "%d", (int)RANKS);
  CHECK_OK(gf_options_set(options, "size", text));
  CHECK_OK(gf_options_set(options, "rendezvous", meeting_place));
  CHECK_OK(gf_options_set(options, "arena_bytes", "64MB"));
  CHECK_OK(gf_options_set(options, "sparsity", "0.5"));
  sprintf(text, "%d", (int)CHUNK);
  CHECK_OK(gf_options_set(options, "chunk_elements", text));
  for (i = 0; i < TENSORS; ++i) {
    gf_tensor_init(&tensors[i]);
    tensors[i].elements = elements[i];
  }
  tensors[0].name = "first";
  tensors[0].always_dense = 1;
  tensors[2].skip_lars = 1;
  tensors[2].name = "tensor1"; /* As the second is called that has none. */
  CHECK_OK(gf_comm_open(options, &g_comm));
  CHECK_INVALID(
      gf_session_open(g_comm, 0, options, tensors, TENSORS, &session));
  CHECK(strstr(gf_last_error(), "tensors 1 and 2") != NULL);
  CHECK(strstr(gf_last_error(), "'tensor1'") != NULL);
  tensors[2].name = NULL;
  CHECK_INVALID(
      gf_session_open(g_comm, 5, options, tensors, TENSORS, &session));
  CHECK(strstr(gf_last_error(), "group 5 is not open") != NULL);
  CHECK_OK(gf_session_open(g_comm, 0, options, tensors, TENSORS, &session));
  gf_options_free(options);
  CHECK(gf_session_rank(session) == rank && gf_session_size(session) == RANKS);
  CHECK(gf_comm_local_rank(g_comm) == rank);
  CHECK(gf_comm_local_size(g_comm) == RANKS);
  CHECK(gf_comm_rank(g_comm) == rank);
  CHECK(gf_comm_size(g_comm) == RANKS);
  return session;
}

static void write_gradients(gf_session* session, float scale) {
  size_t i;
  size_t k;
  for (i = TENSORS; i-- > 0;) {
    void* data = NULL;
    size_t bytes = 0;
    CHECK_OK(gf_session_gradient(session, i, &data, &bytes));
    for (k = 0; k < bytes / sizeof(float); ++k) {
      ((float*)data)[k] = scale * (float)(g_rank + 1);
    }
    if (i != 1) CHECK_OK(gf_session_ready(session, i));
  }
  CHECK_OK(gf_session_absent(session, 1));
}

static void test_bad_groups(gf_session* session, float* const* weights) {
  gf_optimizer optimizer;
  const gf_optimizer* groups[1];
  const int32_t group_of[TENSORS] = {0, -1, 1};
  groups[0] = NULL;
  CHECK_INVALID(gf_session_optimizer_step_groups(session, groups, 1, group_of,
                                                 weights, TENSORS));
  groups[0] = &optimizer;
  gf_optimizer_init(&optimizer);
  CHECK_INVALID(gf_session_optimizer_step_groups(session, groups, 1, group_of,
                                                 weights, TENSORS));
  CHECK(strstr(gf_last_error(), "group_of[2]: expected -1 to 0, seen 1"));
  CHECK_INVALID(gf_session_optimizer_step_groups(session, groups, 1, NULL,
                                                 weights, TENSORS));
}

/* On the CPU there is nothing to wait for. */
static void finish_ahead(gf_session* session) {
  gf_step_stats stats;
  int32_t known = 0;
  void* event = &stats;
  stats.struct_bytes = 0;
  CHECK_INVALID(gf_session_finish_step_async(session, &stats, &known, &event));
  gf_step_stats_init(&stats);
  CHECK_OK(gf_session_finish_step_async(session, &stats, &known, &event));
  CHECK(known == 1 && event == NULL);
  CHECK(stats.step == 1 && stats.chunks == 8);
}

static void test_steps(gf_session* session) {
  gf_step_stats stats;
  gf_optimizer optimizer;
  float first[25] = {0};
  float second[7] = {0};
  float third[40] = {0};
  float* weights[TENSORS];
  float* pool = NULL;
  void* data = NULL;
  size_t bytes = 0;
  size_t offset = 0;
  int32_t kind = -1;
  int32_t device = -1;
  uint8_t selection[8];
  size_t chunks = 0;
  weights[0] = first;
  weights[1] = second;
  weights[2] = third;
  CHECK_OK(gf_session_set_loss_scale(session, 2.0F));
  CHECK_INVALID(gf_session_set_loss_scale(session, 0.0F));
  CHECK_INVALID(gf_session_set_loss_scale(session, HUGE_VALF));
  CHECK_OK(gf_session_zero_gradients(session));
  CHECK_INVALID(gf_session_zero_gradients(NULL));
  CHECK(gf_session_finish_step(session, NULL) == GF_FAILED_PRECONDITION);
  stats.struct_bytes = 0;
  CHECK_INVALID(gf_session_finish_step(session, &stats));
  write_gradients(session, 2.0F);
  gf_step_stats_init(&stats);
  CHECK_OK(gf_session_finish_step(session, &stats));
  CHECK(stats.step == 0 && stats.nonfinite == 0);
  CHECK(stats.chunks == 8 && stats.selected_chunks == 8);
  CHECK(stats.rdma_data_writes == 0 && stats.rdma_retries == -1);
  CHECK_OK(gf_session_pool_device(session, &kind, &device));
  CHECK(kind == GF_CPU && device == 0);
  CHECK_OK(gf_session_set_stream(session, NULL));
  CHECK_OK(gf_session_pool(session, &data, &bytes));
  CHECK(bytes == 73 * sizeof(float)); /* One is padding. */
  pool = (float*)data;
  CHECK_OK(gf_session_pool_offset(session, 0, &offset));
  CHECK(offset == 48);
  CHECK(pool[0] == 2.0F && pool[72] == 2.0F);  /* (1 + 2 + 3) / 3 */
  CHECK(pool[40] == 0.0F && pool[47] == 0.0F); /* Absent; padding. */
  gf_optimizer_init(&optimizer);
  optimizer.lr = 0.5F;
  optimizer.momentum = 0.25F;
  CHECK_INVALID(
      gf_session_optimizer_step(session, &optimizer, weights, TENSORS));
  CHECK(strstr(gf_last_error(), "0.25") && strstr(gf_last_error(), "0.9"));
  optimizer.momentum = 0.9F;
  CHECK_OK(gf_session_optimizer_step(session, &optimizer, weights, TENSORS));
  CHECK(first[0] == -1.0F && second[0] == 0.0F && third[39] == -1.0F);
  CHECK(gf_session_optimizer_step(session, &optimizer, weights, TENSORS) ==
        GF_FAILED_PRECONDITION);
  CHECK(first[0] == -1.0F);
  write_gradients(session, 2.0F);
  CHECK(gf_session_optimizer_step(session, &optimizer, weights, TENSORS) ==
        GF_FAILED_PRECONDITION);
  CHECK(gf_session_save_state(session, NULL, 0, &bytes) ==
        GF_FAILED_PRECONDITION);
  CHECK(gf_session_set_stream(session, NULL) == GF_FAILED_PRECONDITION);
  finish_ahead(session);
  CHECK_OK(
      gf_session_selection(session, selection, sizeof(selection), &chunks));
  /* Momentum is 0.9 * 1 plus 0.5 * 2 times the factor, which is 1 or 0.001 * 5
   * / 10. */
  optimizer.kind = GF_LARS;
  CHECK_OK(gf_session_optimizer_step(session, &optimizer, weights, TENSORS));
  if (selection[3] == 0) CHECK(third[39] == -1.0F);
  if (selection[3] == 1) CHECK(third[39] > -2.90001F && third[39] < -2.89999F);
  CHECK(first[0] > -1.90051F && first[0] < -1.90049F);
  optimizer.struct_bytes = 0;
  CHECK_INVALID(
      gf_session_optimizer_step(session, &optimizer, weights, TENSORS));
  gf_optimizer_init(&optimizer);
  optimizer.kind = 77;
  CHECK_INVALID(
      gf_session_optimizer_step(session, &optimizer, weights, TENSORS));
  test_bad_groups(session, weights);
  CHECK_INVALID(gf_session_gradient(session, TENSORS, &data, &bytes));
  CHECK_INVALID(gf_session_ready(session, TENSORS));
  CHECK_INVALID(gf_session_absent(session, TENSORS));
  CHECK_INVALID(gf_session_pool_offset(session, TENSORS, &offset));
}

static void test_state(gf_session* session) {
  uint8_t selection[8];
  size_t chunks = 0;
  size_t bytes = 0;
  char* state = NULL;
  CHECK_OK(gf_session_selection(session, NULL, 0, &chunks));
  CHECK(chunks == sizeof(selection));
  CHECK_INVALID(gf_session_selection(session, selection, 1, &chunks));
  CHECK_OK(
      gf_session_selection(session, selection, sizeof(selection), &chunks));
  CHECK(selection[7] == 1);
  CHECK_OK(gf_session_save_state(session, NULL, 0, &bytes));
  state = (char*)malloc(bytes);
  CHECK(state != NULL);
  CHECK_INVALID(gf_session_save_state(session, state, bytes - 1, &bytes));
  CHECK_OK(gf_session_save_state(session, state, bytes, &bytes));
  CHECK_OK(gf_session_restore_state(session, state, bytes));
  state[bytes / 2] ^= 1;
  CHECK(gf_session_restore_state(session, state, bytes) == GF_DATA_LOSS);
  free(state);
}

static void test_reductions(void) {
  double sums[5];
  int32_t values[2 * RANKS];
  int32_t block[2];
  uint8_t bytes[3];
  uint64_t ticket = 0;
  gf_call call;
  int i;
  for (i = 0; i < 5; ++i) sums[i] = g_rank + i;
  CHECK_OK(gf_comm_allreduce(g_comm, sums, 5, GF_FLOAT64, GF_SUM));
  for (i = 0; i < 5; ++i) CHECK(sums[i] == 3.0 + 3.0 * i);
  for (i = 0; i < 2 * RANKS; ++i) values[i] = g_rank * 10 + i;
  gf_call_init(&call);
  call.output = values;
  call.count = 6;
  call.dtype = GF_INT32;
  call.op = GF_MAX;
  CHECK_OK(gf_comm_start(g_comm, &call, NULL, NULL, &ticket));
  CHECK_OK(gf_comm_wait(g_comm, ticket, 60));
  for (i = 0; i < 2 * RANKS; ++i) CHECK(values[i] == 20 + i);
  CHECK_INVALID(gf_comm_wait(g_comm, ticket, -1));
  CHECK_INVALID(gf_comm_wait(g_comm, ticket, 0));
  CHECK_INVALID(gf_comm_wait(g_comm, ticket + 2, 0));
  CHECK_OK(gf_comm_reduce_scatter(g_comm, values, block, 2, GF_INT32, GF_SUM));
  CHECK(block[1] == 3 * (20 + 2 * g_rank + 1));
  CHECK_OK(gf_comm_reduce(g_comm, block, values, 2, GF_INT32, GF_MIN, 1));
  if (g_rank == 1) CHECK(values[0] == 60 && values[1] == 63);
  for (i = 0; i < 3; ++i) bytes[i] = (uint8_t)((100 << i) + g_rank);
  CHECK_OK(gf_comm_allreduce(g_comm, bytes, 3, GF_UINT8, GF_SUM));
  /* (100 + 101 + 102), (200 + ...) and (400 + ...), modulo 256 */
  CHECK(bytes[0] == 47 && bytes[1] == 91 && bytes[2] == 179);
  bytes[0] = (uint8_t)(0x80 | g_rank);
  bytes[1] = bytes[2] = (uint8_t)(1 << g_rank);
  CHECK_OK(gf_comm_allreduce(g_comm, bytes, 1, GF_UINT8, GF_MAX));
  CHECK_OK(gf_comm_allreduce(g_comm, bytes + 1, 1, GF_UINT8, GF_BIT_OR));
  CHECK_OK(gf_comm_allreduce(g_comm, bytes + 2, 1, GF_UINT8, GF_BIT_AND));
  CHECK(bytes[0] == 0x82 && bytes[1] == 7 && bytes[2] == 0);
  values[0] = ~g_rank;
  CHECK_OK(gf_comm_allreduce(g_comm, values, 1, GF_INT32, GF_BIT_XOR));
  CHECK(values[0] == ~3); /* ~0 ^ ~1 ^ ~2 */
  CHECK_INVALID(gf_comm_allreduce(g_comm, sums, 1, GF_FLOAT64, GF_BIT_XOR));
  CHECK(strstr(gf_last_error(), "bit_xor") != NULL);
  CHECK(strstr(gf_last_error(), "float64") != NULL);
  CHECK_INVALID(gf_comm_allreduce(g_comm, values, 1, GF_INT32, GF_MEAN));
  CHECK_INVALID(gf_comm_allreduce(g_comm, values, 1, 99, GF_SUM));
  CHECK(strstr(gf_last_error(), "99: expected 0 (float32) to ") != NULL);
  CHECK_INVALID(gf_comm_allreduce(g_comm, values, 1, GF_INT32, GF_BIT_XOR + 1));
  CHECK_INVALID(gf_comm_allreduce(g_comm, values, 1, GF_INT32, -1));
  CHECK_INVALID(gf_comm_allreduce(NULL, values, 1, GF_INT32, GF_SUM));
}

static void test_moves(void) {
  int8_t byte = (int8_t)(g_rank + 40);
  int8_t all[RANKS];
  int64_t in[RANKS];
  int64_t out[RANKS];
  size_t sends[RANKS];
  size_t receives[RANKS];
  size_t parts[RANKS];
  int i;
  CHECK_OK(gf_comm_allgather(g_comm, &byte, all, 1, GF_INT8));
  for (i = 0; i < RANKS; ++i) CHECK(all[i] == 40 + i);
  for (i = 0; i < RANKS; ++i) parts[i] = (size_t)i; /* Rank 0 has none. */
  in[0] = in[1] = g_rank;
  CHECK_OK(gf_comm_allgather_v(g_comm, in, out, parts, GF_INT64));
  CHECK(out[0] == 1 && out[1] == 2 && out[2] == 2);
  CHECK_INVALID(gf_comm_allgather_v(g_comm, in, out, NULL, GF_INT64));
  /* Times the ranks, this is a size of 0 or one that is too small. */
  CHECK_INVALID(gf_comm_allgather(g_comm, in, NULL, SIZE_MAX / 2 + 1, GF_INT8));
  CHECK_OK(gf_comm_broadcast(g_comm, &byte, 1, GF_INT8, 2));
  CHECK(byte == 42);
  for (i = 0; i < RANKS; ++i) {
    in[i] = 100 * g_rank + i;
    sends[i] = receives[i] = 1;
  }
  CHECK_OK(gf_comm_all_to_all(g_comm, in, sends, out, receives, GF_INT64));
  for (i = 0; i < RANKS; ++i) CHECK(out[i] == 100 * i + g_rank);
  CHECK_INVALID(gf_comm_all_to_all(g_comm, in, NULL, out, NULL, GF_INT64));
  for (i = 0; i < RANKS; ++i) out[i] = -1;
  CHECK_OK(gf_comm_all_to_all_equal(g_comm, in, out, 1, GF_INT64));
  for (i = 0; i < RANKS; ++i) CHECK(out[i] == 100 * i + g_rank);
  CHECK_INVALID(gf_comm_all_to_all_equal(g_comm, in, NULL, 1, GF_INT64));
  CHECK_OK(gf_comm_gather(g_comm, in, out, sends, GF_INT64, 0));
  if (g_rank == 0) CHECK(out[2] == 200);
  CHECK_OK(gf_comm_scatter(g_comm, out, in, sends, GF_INT64, 0));
  CHECK(in[0] == 100 * g_rank);
  CHECK_OK(gf_comm_barrier(g_comm));
}

static void test_messages(void) {
  char text[8] = "sent";
  void* shared = NULL;
  if (g_rank == 0) {
    CHECK_OK(gf_comm_send(g_comm, text, sizeof(text), 1, 9));
    CHECK_INVALID(gf_comm_send(g_comm, text, 1, RANKS, 9));
    CHECK_INVALID(gf_comm_send(g_comm, NULL, 1, 1, 9));
  } else if (g_rank == 1) {
    memset(text, 0, sizeof(text));
    CHECK_OK(gf_comm_recv(g_comm, text, sizeof(text), 0, 9));
    CHECK(strcmp(text, "sent") == 0);
    CHECK_INVALID(gf_comm_recv(g_comm, text, 1, -5, 9));
    CHECK_INVALID(gf_comm_recv(g_comm, NULL, 1, 0, 9));
  }
  CHECK_OK(gf_comm_alloc_shared(g_comm, 4000, &shared));
  ((float*)shared)[999] = 1.5F;
  CHECK_OK(gf_comm_allreduce(g_comm, shared, 1000, GF_FLOAT32, GF_MEAN));
  CHECK(((float*)shared)[999] == 1.5F);
  CHECK_OK(gf_comm_free_shared(g_comm, shared));
}

static void test_abort(void) {
  gf_status status;
  char here = 1;
  int32_t r;
  /* All ranks have left the barrier before rank 2 ends the job. */
  for (r = 0; r < gf_comm_size(g_comm); ++r) {
    if (r == 2) continue;
    if (g_rank == 2) CHECK_OK(gf_comm_recv(g_comm, &here, 1, r, 99));
    if (g_rank == r) CHECK_OK(gf_comm_send(g_comm, &here, 1, 2, 99));
  }
  if (g_rank == 2) CHECK_OK(gf_comm_abort(g_comm, "enough is enough"));
  status = gf_comm_barrier(g_comm);
  CHECK(status == GF_ABORTED);
  CHECK(strstr(gf_last_error(), "enough is enough") != NULL);
  CHECK(strstr(gf_last_error(), "rank 2") != NULL);
}

static int run_rank(int rank, const char* meeting_place) {
  gf_session* session;
  g_rank = rank;
  session = open_session(rank, meeting_place);
  test_steps(session);
  test_state(session);
  test_reductions();
  test_moves();
  test_messages();
  CHECK_OK(gf_comm_barrier(g_comm));
  test_abort();
  gf_session_close(session);
  gf_comm_close(g_comm);
  return 0;
}

int main(void) {
  char path[512];
  char meeting_place[600];
  pid_t children[RANKS];
  int failed = 0;
  int r;
  test_without_a_session();
  test_kernels();
  test_dtype_names();
  test_csc();
  snprintf(path, sizeof(path), "/tmp/c_api_XXXXXX");
  if (mkdtemp(path) == NULL) return 1;
  snprintf(meeting_place, sizeof(meeting_place), "file://%s", path);
  for (r = 0; r < RANKS; ++r) {
    children[r] = fork();
    if (children[r] == 0) return run_rank(r, meeting_place);
    CHECK(children[r] > 0);
  }
  for (r = 0; r < RANKS; ++r) {
    int status = 0;
    waitpid(children[r], &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) failed = 1;
  }
  printf(failed ? "FAILED\n" : "OK\n");
  return failed;
}
