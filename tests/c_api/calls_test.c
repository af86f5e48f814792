/* Groups, messages and calls with completions, from C99, by ranks that are
 * processes and meet by an exchange of their own: files in a folder. */
#define _XOPEN_SOURCE 700 /* For mkdtemp() and fork(). */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "integrations/c/gradientflow.h"

enum { RANKS = 4, CARD_BYTES = 1 << 16, PATH_BYTES = 700 };

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
#define CHECK_INVALID(call, words)                   \
  do {                                               \
    CHECK((call) == GF_INVALID_ARGUMENT);            \
    CHECK(strstr(gf_last_error(), (words)) != NULL); \
  } while (0)

/* Writes the card under another name first, so that readers see all of it. */
static void write_card(const char* folder, int rank, const char* card,
                       size_t bytes) {
  char path[PATH_BYTES];
  char hidden[PATH_BYTES];
  FILE* file;
  snprintf(path, sizeof(path), "%s/%d", folder, rank);
  snprintf(hidden, sizeof(hidden), "%s/.%d", folder, rank);
  file = fopen(hidden, "wb");
  CHECK(file != NULL);
  CHECK(fwrite(card, 1, bytes, file) == bytes);
  CHECK(fclose(file) == 0);
  CHECK(rename(hidden, path) == 0);
}

static size_t read_card(const char* folder, int rank, char* card) {
  char path[PATH_BYTES];
  const time_t give_up = time(NULL) + 60;
  FILE* file = NULL;
  size_t bytes;
  snprintf(path, sizeof(path), "%s/%d", folder, rank);
  while ((file = fopen(path, "rb")) == NULL) CHECK(time(NULL) < give_up);
  bytes = fread(card, 1, CARD_BYTES, file);
  fclose(file);
  return bytes;
}

static gf_status exchange(void* user, int32_t rank, int32_t size,
                          const char* mine, size_t mine_bytes, gf_put put,
                          void* sink, const char** why) {
  static char card[CARD_BYTES];
  int32_t r;
  if (user == NULL) {
    *why = "no folder was given";
    return GF_UNAVAILABLE;
  }
  write_card((const char*)user, rank, mine, mine_bytes);
  for (r = 0; r < size; ++r) {
    const size_t bytes = read_card((const char*)user, r, card);
    put(sink, r, card, bytes);
  }
  return GF_OK;
}

static gf_options* make_options(int rank) {
  gf_options* options = NULL;
  char text[16];
  CHECK_OK(gf_options_default(&options));
  snprintf(text, sizeof(text), "%d", rank);
  CHECK_OK(gf_options_set(options, "rank", text));
  snprintf(text, sizeof(text), "%d", RANKS);
  CHECK_OK(gf_options_set(options, "size", text));
  CHECK_OK(gf_options_set(options, "join_timeout_seconds", "60"));
  return options;
}

static void test_exchanges_that_fail(void) {
  gf_options* options = make_options(0);
  CHECK_OK(gf_options_set_exchange(options, exchange, NULL));
  CHECK(gf_comm_open(options, &g_comm) == GF_UNAVAILABLE);
  CHECK(g_comm == NULL);
  CHECK(strstr(gf_last_error(), "no folder was given") != NULL);
  CHECK_INVALID(gf_options_set_exchange(NULL, exchange, NULL), "null");
  gf_options_free(options);
}

struct told {
  int times;
  gf_status status;
  char message[512];
};

static void tell(void* user, gf_status status, const char* message) {
  struct told* told = (struct told*)user;
  ++told->times;
  told->status = status;
  snprintf(told->message, sizeof(told->message), "%s", message);
}

/* Starts `call` and waits for its end. */
static struct told run(const gf_call* call) {
  struct told told = {0, GF_INTERNAL, ""};
  uint64_t ticket = 0;
  CHECK_OK(gf_comm_start(g_comm, call, tell, &told, &ticket));
  CHECK_OK(gf_comm_wait(g_comm, ticket, 60));
  CHECK(told.times == 1);
  return told;
}

static void test_groups(void) {
  /* The ranks of this rank's parity, last first. */
  const int32_t ranks[2] = {g_rank % 2 + 2, g_rank % 2};
  const uint32_t id = 40u + (uint32_t)(g_rank % 2);
  const int me = g_rank < 2 ? 1 : 0;
  const size_t counts[2] = {1, 3};
  const float mine[3] = {(float)g_rank, 1, 2};
  float values[4] = {0, 0, 0, 0};
  gf_call call;
  CHECK_OK(gf_comm_open_group(g_comm, id, ranks, 2));
  CHECK_INVALID(gf_comm_open_group(g_comm, id, ranks, 2), "open already");
  CHECK_INVALID(gf_comm_open_group(g_comm, 7, NULL, 1), "null");
  gf_call_init(&call);
  call.kind = GF_ALLREDUCE;
  call.group = id;
  call.output = values;
  call.count = 2;
  call.op = GF_MEAN;
  call.scale = 10;
  call.wire_dtype = GF_FLOAT16;
  values[0] = (float)g_rank;
  values[1] = 1;
  CHECK(run(&call).status == GF_OK);
  CHECK(values[0] == (float)(10 * (g_rank % 2 + 1)) && values[1] == 10);

  gf_call_init(&call);
  call.kind = GF_GATHER;
  call.group = id;
  call.input = mine;
  call.output = values;
  call.root = 1;
  call.recv_counts = counts;
  call.count = counts[me]; /* Not used, so it may differ between ranks. */
  CHECK(run(&call).status == GF_OK);
  if (me == 1) {
    CHECK(values[0] == (float)ranks[0] && values[1] == (float)g_rank &&
          values[2] == 1 && values[3] == 2);
  }
  CHECK_OK(gf_comm_close_group(g_comm, id));
  CHECK_INVALID(gf_comm_close_group(g_comm, id), "not open");
}

static void test_bad_calls(void) {
  const size_t counts[RANKS] = {1, 1, 1, 1};
  uint64_t ticket = 0;
  struct told told = {0, GF_OK, ""};
  float value = 0;
  gf_call call;
  gf_call_init(&call);
  call.output = &value;
  call.count = 1;
  CHECK_INVALID(gf_comm_start(g_comm, &call, tell, &told, NULL), "null");
  CHECK_INVALID(gf_comm_start(g_comm, NULL, tell, &told, &ticket), "null");
  call.kind = 9;
  CHECK_INVALID(gf_comm_start(g_comm, &call, tell, &told, &ticket), "kind 9");
  call.kind = GF_ALLREDUCE;
  call.dtype = 99;
  CHECK_INVALID(gf_comm_start(g_comm, &call, tell, &told, &ticket), "dtype 99");
  call.dtype = GF_INT32;
  call.op = 256;
  CHECK_INVALID(gf_comm_start(g_comm, &call, tell, &told, &ticket), "op 256");
  call.op = GF_MEAN;
  CHECK_INVALID(gf_comm_start(g_comm, &call, tell, &told, &ticket), "mean");
  call.dtype = GF_FLOAT32;
  call.group = 5;
  CHECK_INVALID(gf_comm_start(g_comm, &call, tell, &told, &ticket), "group 5");
  call.send_counts = counts;
  CHECK_INVALID(gf_comm_start(g_comm, &call, tell, &told, &ticket), "group 5");
  call.struct_bytes = 8;
  CHECK_INVALID(gf_comm_start(g_comm, &call, tell, &told, &ticket),
                "struct_bytes is 8");
  CHECK_INVALID(
      gf_comm_send_start(g_comm, 0, &value, 4, g_rank, 1, tell, &told, &ticket),
      "expected another rank");
  CHECK_INVALID(
      gf_comm_recv_start(g_comm, 0, NULL, 4, 0, 1, NULL, tell, &told, &ticket),
      "null");
  CHECK(told.times == 0);
  CHECK_OK(gf_comm_check(g_comm));
  CHECK_INVALID(gf_comm_check(NULL), "null");
}

/* Every rank except `to` sends one message to `to`, which takes them as they
 * come. */
static void collect(int to) {
  struct told told[RANKS];
  uint64_t tickets[RANKS];
  int32_t values[RANKS];
  int32_t sources[RANKS];
  int r;
  memset(told, 0, sizeof(told));
  if (g_rank != to) {
    values[0] = 100 + g_rank;
    CHECK_OK(
        gf_comm_send_start(g_comm, 0, values, 4, to, 6, tell, told, tickets));
    CHECK_OK(gf_comm_wait(g_comm, tickets[0], 60));
    CHECK(told[0].times == 1 && told[0].status == GF_OK);
    return;
  }
  for (r = 1; r < RANKS; ++r) {
    CHECK_OK(gf_comm_recv_start(g_comm, 0, &values[r], 4, GF_ANY_RANK, 6,
                                &sources[r], tell, &told[r], &tickets[r]));
  }
  for (r = 1; r < RANKS; ++r) {
    CHECK_OK(gf_comm_wait(g_comm, tickets[r], 60));
    CHECK(told[r].times == 1 && told[r].status == GF_OK);
    CHECK(values[r] == 100 + sources[r]);
  }
}

/* A call to which a rank does not come ends with the reason. */
static void test_abort(void) {
  float value = 1;
  gf_call call;
  struct told told;
  gf_call_init(&call);
  call.output = &value;
  call.count = 1;
  /* Once this rank has heard from all, they have finished everything else. */
  collect(2);
  if (g_rank == 2) {
    CHECK_OK(gf_comm_abort(g_comm, "rank two has had enough"));
  }
  told = run(&call);
  CHECK(told.status == GF_ABORTED);
  CHECK(strstr(told.message, "rank two has had enough") != NULL);
  CHECK(gf_comm_check(g_comm) == GF_ABORTED);
}

static int run_rank(int rank, char* folder) {
  gf_options* options = make_options(rank);
  g_rank = rank;
  CHECK_OK(gf_options_set_exchange(options, exchange, folder));
  CHECK_OK(gf_comm_open(options, &g_comm));
  gf_options_free(options);
  test_groups();
  test_bad_calls();
  collect(0);
  test_abort();
  gf_comm_close(g_comm);
  return 0;
}

int main(void) {
  char folder[] = "/tmp/calls_XXXXXX";
  pid_t children[RANKS];
  int failed = 0;
  int r;
  test_exchanges_that_fail();
  if (mkdtemp(folder) == NULL) return 1;
  for (r = 0; r < RANKS; ++r) {
    children[r] = fork();
    if (children[r] == 0) return run_rank(r, folder);
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
