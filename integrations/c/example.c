/* Data-parallel training of a linear model, y = w.x + b, with GradientFlow's C
 * API. Start one process per rank:
 *
 *   GRADIENTFLOW_SIZE=2 GRADIENTFLOW_RENDEZVOUS=127.0.0.1:29400 \
 *   GRADIENTFLOW_RANK=0 ./example &   (and the same with RANK=1)
 *
 * or use torchrun, mpirun or srun, whose variables say the same. */
#include <stdio.h>
#include <stdlib.h>

#include "integrations/c/gradientflow.h"

enum { FEATURES = 8, SAMPLES = 64, STEPS = 200 };

static void check(gf_status status, const char* what) {
  if (status == GF_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, gf_status_name(status),
          gf_last_error());
  exit(1);
}

/* Pseudo-random numbers in [-1, 1], the same on every machine. */
static float draw(uint32_t* state) {
  *state = *state * 1664525U + 1013904223U;
  return (float)(*state >> 8) / 8388608.0F - 1.0F;
}

/* Returns the loss on this rank's samples, and writes the gradients to where
 * the session keeps them. */
static float backward(uint32_t seed, const float* w, float b, float* dw,
                      float* db) {
  float loss = 0;
  int s;
  int f;
  for (f = 0; f < FEATURES; ++f) dw[f] = 0;
  *db = 0;
  for (s = 0; s < SAMPLES; ++s) {
    float x[FEATURES];
    float error = b - 0.5F; /* The truth: w = 1, 2, ... 8; b = 0.5. */
    for (f = 0; f < FEATURES; ++f) {
      x[f] = draw(&seed);
      error += (w[f] - (float)(f + 1)) * x[f];
    }
    loss += error * error / SAMPLES;
    *db += 2 * error / SAMPLES;
    for (f = 0; f < FEATURES; ++f) dw[f] += 2 * error * x[f] / SAMPLES;
  }
  return loss;
}

int main(void) {
  float w[FEATURES] = {0};
  float b = 0;
  float* weights[2];
  float loss = 0;
  void* dw;
  void* db;
  gf_options* options;
  gf_tensor tensors[2]; /* In forward order. */
  gf_comm* comm;
  gf_session* session;
  gf_optimizer sgd;
  int step;

  check(gf_options_from_env(&options), "settings");
  gf_tensor_init(&tensors[0]);
  gf_tensor_init(&tensors[1]);
  tensors[0].name = "w";
  tensors[0].elements = FEATURES;
  tensors[1].name = "b";
  tensors[1].elements = 1;
  check(gf_comm_open(options, &comm), "joining");
  check(gf_session_open(comm, 0, options, tensors, 2, &session), "opening");
  gf_options_free(options);
  check(gf_session_gradient(session, 0, &dw, NULL), "gradient of w");
  check(gf_session_gradient(session, 1, &db, NULL), "gradient of b");
  gf_optimizer_init(&sgd);
  sgd.lr = 0.1F;
  weights[0] = w;
  weights[1] = &b;

  for (step = 0; step < STEPS; ++step) {
    /* Each rank has samples of its own. */
    uint32_t seed = (uint32_t)(step * gf_comm_size(comm) + gf_comm_rank(comm));
    loss = backward(seed, w, b, dw, db);
    /* Backward makes the last tensor first; hooks may come in any order. */
    check(gf_session_ready(session, 1), "b");
    check(gf_session_ready(session, 0), "w");
    /* From here the gradients are the mean over the ranks. */
    check(gf_session_finish_step(session, NULL), "step");
    check(gf_session_optimizer_step(session, &sgd, weights, 2), "update");
    if (step % 50 == 0) {
      printf("rank %d step %d loss %g\n", gf_comm_rank(comm), step, loss);
    }
  }
  check(gf_comm_allreduce(comm, &loss, 1, GF_FLOAT32, GF_MEAN), "mean loss");
  printf("rank %d final loss %g, w[0] %.3f, b %.3f\n", gf_comm_rank(comm), loss,
         w[0], b);
  gf_session_close(session);
  gf_comm_close(comm);
  return loss < 1e-3F ? 0 : 1;
}
