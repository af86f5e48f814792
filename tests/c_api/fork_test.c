/* Every function that takes a session, called in a fork of its process: it
 * fails there, and the job is not affected. Ranks are processes, over shared
 * memory and over TCP. */
#define _XOPEN_SOURCE 700 /* For mkdtemp() and fork(). */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "integrations/c/gradientflow.h"

enum { RANKS = 2, ELEMENTS = 5000 };

static int g_rank = -1;
static gf_comm* g_comm = NULL;

#define CHECK(condition)                                                \
  do {                                                                  \
    if (!(condition)) {                                                 \
      fprintf(stderr, "rank %d, line %d: %s; last error: %s\n", g_rank, \
              __LINE__, #condition, gf_last_error());                   \
      _exit(1);                                                         \
    }                                                                   \
  } while (0)
#define CHECK_OK(call) CHECK((call) == GF_OK)
#define CHECK_REFUSED(call)                              \
  do {                                                   \
    CHECK((call) == GF_FAILED_PRECONDITION);             \
    CHECK(strstr(gf_last_error(), "is a fork") != NULL); \
  } while (0)

static gf_session* open_session(const char* meeting_place, const char* fabric) {
  gf_tensor tensor;
  gf_options* options = NULL;
  gf_session* session = NULL;
  char text[16];
  CHECK_OK(gf_options_default(&options));
  sprintf(text, "%d", g_rank);
  CHECK_OK(gf_options_set(options, "rank", text));
  sprintf(text, "%d", (int)RANKS);
  CHECK_OK(gf_options_set(options, "size", text));
  CHECK_OK(gf_options_set(options, "rendezvous", meeting_place));
  CHECK_OK(gf_options_set(options, "fabric", fabric));
  CHECK_OK(gf_options_set(options, "arena_bytes", "64MB"));
  gf_tensor_init(&tensor);
  tensor.elements = ELEMENTS;
  CHECK_OK(gf_comm_open(options, &g_comm));
  CHECK_OK(gf_session_open(g_comm, 0, options, &tensor, 1, &session));
  gf_options_free(options);
  return session;
}

static void done(void* user, gf_status status, const char* message) {
  (void)user;
  (void)status;
  (void)message;
}

static void test_what_is_known(gf_session* session, float* pool) {
  void* data = NULL;
  size_t bytes = 0;
  size_t offset = 1;
  int32_t kind = -1;
  int32_t index = -1;
  int i;
  CHECK(gf_comm_rank(g_comm) == g_rank && gf_comm_size(g_comm) == RANKS);
  CHECK_OK(gf_session_gradient(session, 0, &data, &bytes));
  CHECK(data == pool && bytes == ELEMENTS * sizeof(float));
  CHECK_OK(gf_session_pool(session, &data, &bytes));
  CHECK_OK(gf_session_pool_offset(session, 0, &offset));
  CHECK_OK(gf_session_pool_device(session, &kind, &index));
  CHECK(offset == 0 && kind == GF_CPU);
  /* The pool is a copy: the ranks reduce what they had. */
  for (i = 0; i < ELEMENTS; ++i) {
    CHECK(pool[i] == (float)g_rank + 1);
    pool[i] = 1e9F;
  }
}

static void test_step(gf_session* session) {
  float weights[ELEMENTS];
  float* all = weights;
  gf_optimizer optimizer;
  size_t chunks = 0;
  size_t bytes = 0;
  gf_optimizer_init(&optimizer);
  CHECK_REFUSED(gf_comm_check(g_comm));
  CHECK_REFUSED(gf_session_set_stream(session, NULL));
  CHECK_REFUSED(gf_session_ready(session, 0));
  CHECK_REFUSED(gf_session_absent(session, 0));
  CHECK_REFUSED(gf_session_finish_step(session, NULL));
  CHECK_REFUSED(gf_session_finish_step_async(session, NULL, NULL, NULL));
  CHECK_REFUSED(gf_session_set_loss_scale(session, 2));
  CHECK_REFUSED(gf_session_zero_gradients(session));
  CHECK_REFUSED(gf_session_optimizer_step(session, &optimizer, &all, 1));
  CHECK_REFUSED(gf_session_selection(session, NULL, 0, &chunks));
  CHECK_REFUSED(gf_session_save_state(session, NULL, 0, &bytes));
  CHECK_REFUSED(gf_session_restore_state(session, "state", 5));
}

static void test_calls(void) {
  float data[RANKS] = {1, 2};
  float out[RANKS * RANKS];
  size_t counts[RANKS] = {1, 1};
  int32_t ranks[RANKS] = {0, 1};
  gf_call call;
  void* shared = NULL;
  uint64_t ticket = 0;
  CHECK_REFUSED(gf_comm_allreduce(g_comm, data, 2, GF_FLOAT32, GF_SUM));
  CHECK_REFUSED(gf_comm_broadcast(g_comm, data, 2, GF_FLOAT32, 0));
  CHECK_REFUSED(gf_comm_reduce(g_comm, data, out, 2, GF_FLOAT32, GF_SUM, 0));
  CHECK_REFUSED(gf_comm_allgather(g_comm, data, out, 2, GF_FLOAT32));
  CHECK_REFUSED(
      gf_comm_reduce_scatter(g_comm, data, out, 1, GF_FLOAT32, GF_SUM));
  CHECK_REFUSED(
      gf_comm_all_to_all(g_comm, data, counts, out, counts, GF_FLOAT32));
  CHECK_REFUSED(gf_comm_gather(g_comm, data, out, counts, GF_FLOAT32, 0));
  CHECK_REFUSED(gf_comm_scatter(g_comm, data, out, counts, GF_FLOAT32, 0));
  CHECK_REFUSED(gf_comm_barrier(g_comm));
  CHECK_REFUSED(gf_comm_send(g_comm, data, 4, 1 - g_rank, 7));
  CHECK_REFUSED(gf_comm_recv(g_comm, data, 4, 1 - g_rank, 7));
  CHECK_REFUSED(gf_comm_wait(g_comm, 1, 0));
  CHECK_REFUSED(gf_comm_wait(g_comm, 1, -1));
  CHECK_REFUSED(gf_comm_allgather_v(g_comm, data, out, counts, GF_FLOAT32));
  CHECK_REFUSED(gf_comm_set_stream(g_comm, NULL));
  CHECK_REFUSED(gf_comm_open_group(g_comm, 5, ranks, RANKS));
  CHECK_REFUSED(gf_comm_close_group(g_comm, 4));
  gf_call_init(&call);
  call.output = data;
  call.count = 2;
  CHECK_REFUSED(gf_comm_start(g_comm, &call, done, NULL, &ticket));
  call.group = 4;
  CHECK_REFUSED(gf_comm_start(g_comm, &call, done, NULL, &ticket));
  CHECK_REFUSED(gf_comm_send_start(g_comm, 4, data, 4, 1 - g_rank, 7, done,
                                   NULL, &ticket));
  CHECK_REFUSED(gf_comm_recv_start(g_comm, 4, data, 4, 1 - g_rank, 7, NULL,
                                   done, NULL, &ticket));
  CHECK_REFUSED(gf_comm_alloc_shared(g_comm, 8, &shared));
  CHECK_REFUSED(gf_comm_free_shared(g_comm, data));
  CHECK_REFUSED(gf_comm_abort(g_comm, "said a child"));
}

static int run_child(gf_session* session, float* pool) {
  test_what_is_known(session, pool);
  test_step(session);
  test_calls();
  gf_session_close(session);
  gf_comm_close(g_comm);
  return 0;
}

static int run_rank(const char* meeting_place, const char* fabric) {
  static const int32_t ranks[RANKS] = {0, 1};
  gf_session* session = open_session(meeting_place, fabric);
  float* pool = NULL;
  void* data = NULL;
  size_t bytes = 0;
  int step;
  int i;
  CHECK_OK(gf_session_pool(session, &data, &bytes));
  pool = (float*)data;
  CHECK_OK(gf_comm_open_group(g_comm, 4, ranks, RANKS));
  for (step = 0; step < 3; ++step) {
    int status = -1;
    pid_t child;
    for (i = 0; i < ELEMENTS; ++i) pool[i] = (float)g_rank + 1;
    fflush(NULL);
    child = fork();
    if (child == 0) exit(run_child(session, pool));
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK_OK(gf_session_ready(session, 0));
    CHECK_OK(gf_session_finish_step(session, NULL));
    for (i = 0; i < ELEMENTS; ++i) CHECK(pool[i] == 1.5F);
  }
  CHECK_OK(gf_comm_close_group(g_comm, 4));
  gf_session_close(session);
  gf_comm_close(g_comm);
  return 0;
}

static int run_job(const char* fabric) {
  char path[64] = "/tmp/c_api_fork_XXXXXX";
  char meeting_place[80];
  pid_t children[RANKS];
  int failed = 0;
  int r;
  if (mkdtemp(path) == NULL) return 1;
  sprintf(meeting_place, "file://%s", path);
  for (r = 0; r < RANKS; ++r) {
    children[r] = fork();
    if (children[r] == 0) {
      g_rank = r;
      alarm(60);
      _exit(run_rank(meeting_place, fabric));
    }
    CHECK(children[r] > 0);
  }
  for (r = 0; r < RANKS; ++r) {
    int status = 0;
    waitpid(children[r], &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) failed = 1;
  }
  rmdir(path);
  return failed;
}

int main(void) {
  const int failed = run_job("shm") + run_job("tcp");
  printf(failed ? "FAILED\n" : "OK\n");
  return failed;
}
