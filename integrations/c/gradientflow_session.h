/* A model's gradients, for programs that train: sessions, steps, optimizers and
 * checkpoints. gradientflow.h says what holds for every function. */
#ifndef INTEGRATIONS_C_GRADIENTFLOW_SESSION_H_
#define INTEGRATIONS_C_GRADIENTFLOW_SESSION_H_

#include "gradientflow_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* -- A model's gradients ------------------------------------------------ */

/* Opens a session of the ranks of `group`: 0 for all ranks, else an open group,
 * which must stay open as long as the session. This is a collective: all ranks
 * of the group call it with the same arguments, at the same place among their
 * collectives on the group. `tensors` is in forward order, and may be null if
 * the count is 0. The settings of the sections "Gradients" (but not
 * "algorithm") and "Coarse-grained sparse communication" count, "profile" and
 * "profile_batch". If tensors or settings that must be equal (see settings.md)
 * differ between ranks, or if a rank refuses, the error on every rank names
 * that rank. On failure *out is NULL. For one gf_comm, calls of this function
 * and of gf_session_close() are ordered. */
GF_API gf_status gf_session_open(gf_comm*, uint32_t group, const gf_options*,
                                 const gf_tensor* tensors, size_t count,
                                 gf_session** out);
/* In the middle of a step this blocks for up to 5 seconds: unless all ranks
 * close within that time, the job ends. */
GF_API void gf_session_close(gf_session*);

/* Free. The rank and size in the session's group; -1 if the handle is null. */
GF_API int32_t gf_session_rank(const gf_session*);
GF_API int32_t gf_session_size(const gf_session*);

/* -- A step ------------------------------------------------------------- */
/* A step begins with the first tensor that is marked, and ends when
 * gf_session_finish_step() returns GF_OK. The following functions are ordered:
 * gf_session_set_stream, gf_session_finish_step, gf_session_finish_step_async,
 * gf_session_set_loss_scale, gf_session_optimizer_step,
 * gf_session_zero_gradients and gf_session_selection. All others are free.
 *
 * A call at the wrong moment returns GF_FAILED_PRECONDITION and changes
 * nothing. If gf_session_finish_step() fails with any other status, the session
 * takes no more steps: all ordered functions but gf_session_selection then fail
 * with the reason of that first failure. */

/* Where the gradient of tensor i lives, in the dtype of the pool. */
GF_API gf_status gf_session_gradient(const gf_session*, size_t tensor,
                                     void** data, size_t* bytes);
/* All gradients, in generation order (last tensor first). Bytes between two of
 * them, which are there for alignment, are zero and must stay so. */
GF_API gf_status gf_session_pool(const gf_session*, void** data, size_t* bytes);
/* Where tensor i begins in the pool, in elements. */
GF_API gf_status gf_session_pool_offset(const gf_session*, size_t tensor,
                                        size_t* elements);

/* The pool's memory (option "device"): GF_CPU, or GF_CUDA and its number. */
GF_API gf_status gf_session_pool_device(const gf_session*, int32_t* kind,
                                        int32_t* index);
/* With GF_CUDA: sets the cudaStream_t that computes the gradients, which is at
 * first the legacy default stream. gf_session_ready(i) then means that the work
 * that writes gradient i has been submitted to this stream, and
 * gf_session_optimizer_step() submits its work to it. Allowed between steps
 * only. No effect with GF_CPU. */
GF_API gf_status gf_session_set_stream(gf_session*, void* stream);

/* Says that the gradient is written. It is lent to the session until
 * gf_session_finish_step() returns. Any thread may call this, for the tensors
 * in any order; it does not block. A second gf_session_ready() or
 * gf_session_absent() for the same tensor in a step touches no gradient but
 * ends the job: gf_session_finish_step() reports it. */
GF_API gf_status gf_session_ready(gf_session*, size_t tensor);
/* Says, in place of gf_session_ready(), that the tensor took no part in this
 * step on this rank. It counts as zeros, which are written to its gradient. */
GF_API gf_status gf_session_absent(gf_session*, size_t tensor);

typedef struct {
  size_t struct_bytes;
  uint64_t step;
  uint64_t buckets;
  /* Bytes of gradients that this rank sent, in the wire's type; in shared
   * memory, bytes read from and written to other ranks' buffers, in the pool's
   * type. Other collectives count neither here nor in the times below. */
  uint64_t bytes_sent;
  uint64_t selected_chunks; /* Of the `chunks`, those that were sent. */
  uint64_t chunks;
  double backward_seconds; /* From the first to the last gradient. */
  double exposed_seconds;  /* From there to the end of communication. */
  double hidden_seconds;   /* Communication during backward. */
  int32_t nonfinite;       /* 1 on all ranks if one has infinities or NaNs. With
                            * zero_kept, all gradients are then NaN. */
  /* The factor by which exchanged gradients are larger than the true ones: the
   * loss scale if the pool has 16 bits, else 1. Divide by it in float32, as
   * gf_session_optimizer_step() does. */
  float gradient_scale;
  uint64_t bucket_bytes; /* The bucket size in force. */
  /* What this rank's RDMA links have written since the step before, for all
   * sessions and collectives; 0 without such links. */
  uint64_t rdma_data_writes;    /* Writes with bytes of messages, */
  uint64_t rdma_control_writes; /* and those without. */
  uint64_t rdma_bytes;          /* Bytes of messages written. */
  int64_t rdma_retries; /* By the card, for all programs; -1 if not known. */
} gf_step_stats;
GF_API void gf_step_stats_init(gf_step_stats*);

/* Blocks until the gradients of the step are aggregated. `stats` may be null.
 * Returns GF_FAILED_PRECONDITION if a tensor is neither ready nor absent; the
 * step then goes on. */
GF_API gf_status gf_session_finish_step(gf_session*, gf_step_stats* stats);
/* The same without waiting for a GPU. Work that the caller submits to the
 * stream of gf_session_set_stream() after this call sees the step's gradients,
 * and gf_session_optimizer_step() may follow at once. Other streams must wait
 * for *event, a cudaEvent_t of the session, valid until the next step ends; it
 * is null if the gradients are there already, as on the CPU or without NCCL.
 * *known is 1 if `stats` was written: those of the latest step whose result is
 * known and was not returned before, with NCCL the step before this one. If the
 * step fails, the next call that ends a step or needs its result returns the
 * error; weights updated since are unspecified. Pointers may be null. */
GF_API gf_status gf_session_finish_step_async(gf_session*, gf_step_stats* stats,
                                              int32_t* known, void** event);
/* Takes effect with the next step that begins; all ranks set the same scale.
 * GF_INVALID_ARGUMENT: it or its inverse is not a positive finite number. */
GF_API gf_status gf_session_set_loss_scale(gf_session*, float scale);

enum { GF_SGD = 0, GF_LARS = 1 };
typedef struct {
  size_t struct_bytes;
  int32_t kind; /* GF_SGD or GF_LARS. */
  float lr;
  float momentum;
  float weight_decay;
  int32_t nesterov;
  float lars_eta;
  float lars_eps;
} gf_optimizer;
GF_API void gf_optimizer_init(gf_optimizer*);
/* weights[i] points to the float32 weights of tensor i, which the caller owns
 * and which are in the same memory as the pool. If it is null, the tensor and
 * its momentum are left alone. The update is chunk-aware: it changes only the
 * weights of chunks that were sent. It skips a nonfinite step. A step may be
 * applied once, before the next one begins. With residual=momentum the momentum
 * must equal the option "momentum", else the call returns GF_INVALID_ARGUMENT,
 * has changed nothing, and can be made again. The same goes for
 * GF_FAILED_PRECONDITION while the stream is being captured. */
GF_API gf_status gf_session_optimizer_step(gf_session*, const gf_optimizer*,
                                           float* const* weights, size_t count);
/* The same, with separate settings for groups of tensors: tensor i follows
 * groups[group_of[i]], or is left alone if group_of[i] is -1. */
GF_API gf_status gf_session_optimizer_step_groups(
    gf_session*, const gf_optimizer* const* groups, size_t group_count,
    const int32_t* group_of, float* const* weights, size_t count);
/* With the option "accumulate", backward ADDS gradients to what the pool holds:
 * zeros at first; later, in chunks that CSC has kept back, what was kept. Call
 * this in place of zero_grad, after gf_session_finish_step() and the update: it
 * zeroes what the step sent. No other code may zero the pool. If a gradient is
 * marked before this call, the job ends. No effect without "accumulate", and
 * when there is nothing to zero. */
GF_API gf_status gf_session_zero_gradients(gf_session*);
/* Writes one byte for each chunk: 1 if the last finished step sent it, else 0.
 * Sets *chunks to their number, 0 if the session is dense. `out` may be null to
 * ask for the number only. */
GF_API gf_status gf_session_selection(const gf_session*, uint8_t* out,
                                      size_t out_bytes, size_t* chunks);

/* -- Checkpoints -------------------------------------------------------- */
/* All functions here are ordered, together with those of a step. */

/* Writes this rank's residual, momentum, selection and step. Allowed between
 * steps. If `out` is null, only *bytes is set, at no cost. Returns
 * GF_INVALID_ARGUMENT if out_bytes is too small. */
GF_API gf_status gf_session_save_state(const gf_session*, void* out,
                                       size_t out_bytes, size_t* bytes);
/* A collective, between steps: every rank calls it with the state that it
 * saved, as the same rank, after the same step of the same run. Either all
 * ranks go on from that state, or none changes and the error on every rank
 * names the rank whose state was refused, and why. Tensors and settings must be
 * those of the saving run, except for how gradients travel: algorithm,
 * bucket_bytes, connections, segment_bytes, segments_in_flight and the first
 * loss_scale may differ. */
GF_API gf_status gf_session_restore_state(gf_session*, const void* state,
                                          size_t bytes);

#ifdef __cplusplus
}
#endif
#endif /* INTEGRATIONS_C_GRADIENTFLOW_SESSION_H_ */
