/* gf_profile_*, called from C99: two ranks in one process, whose steps are made
 * up, and the file that they leave. */
#define _XOPEN_SOURCE 700 /* For mkdtemp(). */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "integrations/c/gradientflow_profile.h"

enum { RANKS = 2 };

#define CHECK(condition)                                                     \
  do {                                                                       \
    if (!(condition)) {                                                      \
      fprintf(stderr, "line %d: %s; last error: %s\n", __LINE__, #condition, \
              gf_last_error());                                              \
      exit(1);                                                               \
    }                                                                        \
  } while (0)
#define CHECK_OK(call) CHECK((call) == GF_OK)
#define CHECK_INVALID(call, text)                   \
  do {                                              \
    CHECK((call) == GF_INVALID_ARGUMENT);           \
    CHECK(strstr(gf_last_error(), (text)) != NULL); \
  } while (0)

static char g_file[512];

static gf_options* options_for(const char* file) {
  gf_options* options = NULL;
  CHECK_OK(gf_options_default(&options));
  CHECK_OK(gf_options_set(options, "profile", file));
  CHECK_OK(gf_options_set(options, "profile_batch", "16"));
  return options;
}

/* Reads the file; returns what follows `"name": ` after `from`. */
static const char* after(const char* from, const char* name) {
  char field[64];
  const char* at;
  snprintf(field, sizeof(field), "\"%s\": ", name);
  at = strstr(from, field);
  if (at == NULL) fprintf(stderr, "no %s in %s\n", name, from);
  CHECK(at != NULL);
  return at + strlen(field);
}
static double median_of(const char* text, const char* name) {
  return strtod(after(after(text, name), "median"), NULL);
}
static int near(double seen, double expected) {
  return fabs(seen - expected) < 1e-6;
}

/* Sums what is due over the ranks; returns whether it was due. */
static int tell(gf_profile* const* ranks) {
  double* values[RANKS];
  size_t counts[RANKS];
  size_t i;
  int r;
  for (r = 0; r < RANKS; ++r) {
    CHECK_OK(gf_profile_tell(ranks[r], &values[r], &counts[r]));
  }
  CHECK(counts[0] == counts[1] && (values[0] == NULL) == (counts[0] == 0));
  for (i = 0; i < counts[0]; ++i) {
    values[0][i] = values[1][i] = values[0][i] + values[1][i];
  }
  for (r = 0; r < RANKS && counts[0] > 0; ++r) {
    CHECK_OK(gf_profile_told(ranks[r]));
  }
  return counts[0] > 0;
}

static void test_two_ranks(void) {
  const double ready[2] = {0.010, 0.004};
  gf_tensor tensors[2];
  gf_profile* ranks[RANKS];
  gf_profile_config config;
  gf_options* options = options_for(g_file);
  int told = 0;
  int step;
  int r;
  static char text[1 << 16];
  FILE* file;
  gf_tensor_init(&tensors[0]);
  gf_tensor_init(&tensors[1]);
  tensors[0].name = "first";
  tensors[0].elements = 300;
  tensors[1].name = "last";
  tensors[1].elements = 7;
  gf_profile_config_init(&config);
  config.tensors = tensors;
  config.tensor_count = 2;
  config.dtype = GF_BFLOAT16;
  config.size = RANKS;
  config.device = "a board";
  for (r = 0; r < RANKS; ++r) {
    config.rank = r;
    CHECK_OK(gf_profile_open(options, &config, &ranks[r]));
  }
  gf_options_free(options);
  for (step = 0; step < 8; ++step) {
    told += tell(ranks);
    for (r = 0; r < RANKS; ++r) {
      gf_profile_times times;
      gf_profile_times_init(&times);
      times.forward = 0.020 * (r + 1);
      times.backward = 0.012;
      times.wait = 0.003;
      times.optimizer = 0.002;
      times.ready = ready;
      if (step == 4) {
        CHECK_OK(gf_profile_skip(ranks[r]));
      } else {
        CHECK_OK(gf_profile_add(ranks[r], &times));
      }
    }
  }
  CHECK(told == 1); /* After six steps, of which one was not known. */
  for (r = 0; r < RANKS; ++r) gf_profile_close(ranks[r]);
  file = fopen(g_file, "r");
  CHECK(file != NULL);
  text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
  fclose(file);
  CHECK(strncmp(after(text, "device"), "\"a board\"", 9) == 0);
  CHECK(strncmp(after(text, "dtype"), "\"bfloat16\"", 10) == 0);
  CHECK(atoi(after(text, "batch_samples")) == 16);
  CHECK(atoi(after(text, "ranks")) == 2 && atoi(after(text, "steps")) == 5);
  CHECK(near(median_of(text, "forward_seconds"), 0.020));
  CHECK(near(median_of(text, "backward_seconds"), 0.012));
  CHECK(near(median_of(text, "wait_seconds"), 0.003));
  CHECK(near(median_of(text, "optimizer_seconds"), 0.002));
  CHECK(near(median_of(text, "step_seconds"), 0.037));
  /* 34 and 54 ms of own work. */
  CHECK(near(strtod(after(text, "rank_spread_fraction"), NULL),
             sqrt(2) * 0.010 / 0.044));
  /* The pool begins with the last tensor. */
  CHECK(strncmp(after(text, "name"), "\"last\"", 6) == 0);
  CHECK(near(median_of(after(text, "tensors"), "ready_seconds"), 0.004));
  CHECK(near(median_of(strstr(text, "\"first\""), "ready_seconds"), 0.010));
}

static void test_what_is_refused(void) {
  gf_tensor tensor;
  gf_profile* profile = NULL;
  gf_profile_config config;
  gf_profile_times times;
  double ready = 0;
  double* values;
  size_t count;
  gf_options* options = options_for("");
  gf_tensor_init(&tensor);
  gf_profile_config_init(&config);
  config.tensors = &tensor;
  config.tensor_count = 1;
  tensor.elements = 1;
  /* No file is wanted. */
  CHECK_OK(gf_profile_open(options, &config, &profile));
  CHECK(profile == NULL);
  gf_profile_close(profile);
  gf_options_free(options);
  /* There is nothing to exchange. */
  options = options_for(g_file);
  tensor.elements = 0;
  CHECK_OK(gf_profile_open(options, &config, &profile));
  CHECK(profile == NULL);
  tensor.elements = 1;
  CHECK_INVALID(gf_profile_open(NULL, &config, &profile), "null");
  config.dtype = GF_FLOAT64;
  CHECK_INVALID(gf_profile_open(options, &config, &profile), "dtype");
  config.dtype = GF_FLOAT32;
  config.rank = 1;
  CHECK_INVALID(gf_profile_open(options, &config, &profile), "rank 1 of 1");
  config.rank = 0;
  config.struct_bytes = 8;
  CHECK_INVALID(gf_profile_open(options, &config, &profile), "struct_bytes");
  gf_profile_config_init(&config);
  config.tensor_count = 1;
  CHECK_INVALID(gf_profile_open(options, &config, &profile), "tensors");
  config.tensors = &tensor;
  CHECK_OK(gf_options_set(options, "profile", "/no/such/folder/profile"));
  CHECK_INVALID(gf_profile_open(options, &config, &profile),
                "profile: cannot write");
  CHECK_OK(gf_options_set(options, "profile", g_file));
  CHECK_OK(gf_profile_open(options, &config, &profile));
  gf_profile_times_init(&times);
  CHECK_INVALID(gf_profile_add(profile, &times), "ready");
  times.ready = &ready;
  times.wait = -1;
  CHECK_INVALID(gf_profile_add(profile, &times), "wait: expected seconds");
  times.wait = 0;
  ready = NAN;
  CHECK_INVALID(gf_profile_add(profile, &times), "ready[0]: expected seconds");
  CHECK_INVALID(gf_profile_add(NULL, &times), "null");
  CHECK_INVALID(gf_profile_skip(NULL), "null");
  CHECK_INVALID(gf_profile_tell(profile, NULL, &count), "null");
  CHECK_INVALID(gf_profile_told(NULL), "null");
  CHECK_OK(gf_profile_tell(profile, &values, &count));
  CHECK(values == NULL && count == 0);
  gf_profile_close(profile);
  gf_options_free(options);
}

int main(void) {
  char folder[] = "/tmp/c_profile_XXXXXX";
  if (mkdtemp(folder) == NULL) return 1;
  snprintf(g_file, sizeof(g_file), "%s/profile.json", folder);
  test_two_ranks();
  test_what_is_refused();
  remove(g_file);
  remove(folder);
  printf("OK\n");
  return 0;
}
