/* Coarse-grained sparse communication with an exchange of your own: the part of
 * GradientFlow's C API for frameworks that keep their gradients in buckets and
 * bring their own collectives. What gradientflow.h says of statuses, structs
 * and threads holds here too. */
#ifndef INTEGRATIONS_C_GRADIENTFLOW_CSC_H_
#define INTEGRATIONS_C_GRADIENTFLOW_CSC_H_

#include "gradientflow.h"

#ifdef __cplusplus
extern "C" {
#endif

/* -- CSC with an exchange of your own ------------------------------------ */
/* Coarse-grained sparse communication (GradientFlow, arXiv 1902.06855) for a
 * framework that keeps its gradients in buckets and exchanges them itself. Each
 * bucket is cut into equal chunks, of which the last may be short. A step sends
 * the k chunks whose L1 norms, summed over the ranks, were largest in the step
 * before; the other chunks stay in the residual. One step:
 *
 *   gf_csc_pack()      each bucket, once it is full
 *   (exchange)         the mean, over the ranks, of its packed buffers
 *   gf_csc_unpack()    the same bucket
 *   gf_csc_end_step()  once all buckets are back
 *   (exchange)         the sum, over the ranks, of the norms of all chunks
 *   gf_csc_select()    before the next step's first bucket
 *
 * Threads: calls on one gf_csc come one at a time, except that gf_csc_pack()
 * and gf_csc_unpack() of different buckets may run at the same time, and beside
 * gf_csc_add(). The calling thread does all the work; no call sends anything or
 * waits for anything. Types are float32, float16 and bfloat16.
 * GF_INVALID_ARGUMENT means that an argument is null or out of range, and that
 * nothing has changed. */
typedef struct gf_csc gf_csc;

typedef struct {
  size_t struct_bytes;
  size_t chunk_elements;
  double sparsity;       /* The share of chunks kept back, in [0, 1). */
  uint64_t warmup_steps; /* The sparsity rises linearly over these. */
  uint64_t step;         /* The next one: 0, or that of a saved state. */
  float loss_scale;      /* Gradients and residuals are multiplied by it. */
  float keep_factor;     /* Multiplies what is kept back, in each step. */
  int32_t wire_dtype;    /* The type of packed buffers. */
} gf_csc_config;
/* Defaults: chunks of 32,000 elements, sparsity 0.85, no warm-up, step 0, both
 * factors 1, wire type float16. */
GF_API void gf_csc_config_init(gf_csc_config*);

/* *out belongs to the caller, who closes it; that frees its buckets too.
 * gf_csc_close() accepts NULL. */
GF_API gf_status gf_csc_open(const gf_csc_config*, gf_csc** out);
GF_API void gf_csc_close(gf_csc*);

/* Belongs to the gf_csc; the caller only reads it. */
typedef struct {
  /* One byte per chunk: 1 if the current or next step sends it. */
  const uint8_t* selected;
  size_t chunks;
  /* A packed buffer holds the elements of the selected chunks, in order,
   * followed by one mark for each chunk that is kept back. */
  size_t packed_elements; /* Elements and marks. */
  size_t marks;
} gf_csc_bucket;

/* Appends a bucket, which lives until it is dropped. `residual` has as many
 * elements as the bucket, and holds zeros or what was saved; it is lent to the
 * gf_csc as long as the bucket lives. It may be NULL if the gradients are not
 * in host memory: the caller then does the work of gf_csc_pack() and
 * gf_csc_unpack() itself, with the factors of gf_csc_get_factors().
 * `dense` and `selected` have one byte per chunk and are copied. `dense` is 1
 * for chunks that every step sends; it may be NULL if there are none.
 * `selected` is a selection that was saved, or NULL to send all chunks. */
GF_API gf_status gf_csc_add(gf_csc*, size_t elements, int32_t dtype,
                            float* residual, const uint8_t* dense,
                            const uint8_t* selected, gf_csc_bucket** out);
/* Drops all buckets but the first `count`. REQUIRES: the dropped buckets are
 * not packed. */
GF_API gf_status gf_csc_drop(gf_csc*, size_t count);

/* Adds the residual to the gradients: s = grads + residual. For a selected
 * chunk, packed = wire_dtype(scale * s), and the residual keeps the rounding
 * error if the gradients have 16 bits. For any other chunk, residual =
 * keep_factor * s, grads = 0, norms[c] = sum |s| / loss scale, and the mark is
 * a NaN if that norm is not finite, else 0. `scale` turns the result of the
 * caller's exchange into a mean: it is 1 if the exchange takes means, 1 / ranks
 * if it takes sums. `norms` has one element per chunk. All three buffers are
 * lent until gf_csc_end_step(). */
GF_API gf_status gf_csc_pack(gf_csc_bucket*, void* grads, void* packed,
                             float scale, float* norms);
/* Called after the exchange has made `packed` the mean over the ranks. In
 * selected chunks grads = packed, and their norms are taken; chunks that any
 * rank has marked become NaN. *nonfinite = 1, on all ranks alike, if any of
 * these values is not finite, else 0. Returns GF_FAILED_PRECONDITION if the
 * bucket has not been packed in this step. */
GF_API gf_status gf_csc_unpack(gf_csc_bucket*, int32_t* nonfinite);
/* Ends the step. `nonfinite` is not 0 if any bucket reported so: the caller
 * then skips its update, and the residuals take back what was sent. */
GF_API gf_status gf_csc_end_step(gf_csc*, int32_t nonfinite);
/* Selects the chunks of the next step. `norm_sums` has the norms of all chunks
 * of all buckets, in order, summed over the ranks; every rank must pass the
 * same bits. */
GF_API gf_status gf_csc_select(gf_csc*, const float* norm_sums, size_t chunks);
GF_API uint64_t gf_csc_step(const gf_csc*); /* The current or next one. */
/* Between steps: sets the factor of the coming gradients. The residuals of the
 * buckets are rescaled; the caller multiplies any others by *factor. */
GF_API gf_status gf_csc_set_loss_scale(gf_csc*, float loss_scale,
                                       float* factor);
/* Factors for callers that do the passes themselves. */
typedef struct {
  float keep_factor; /* residual = keep_factor * s, for a kept chunk. */
  float kept_norm;   /* norms[c] = kept_norm * sum |s| */
  float sent_norm;   /* norms[c] = sent_norm * sum |grads|, after unpacking. */
  float give_back;   /* residual += give_back * grads, of a skipped step. */
} gf_csc_factors;
/* gf_csc_set_loss_scale() changes them. */
GF_API gf_csc_factors gf_csc_get_factors(const gf_csc*);

#ifdef __cplusplus
}
#endif
#endif /* INTEGRATIONS_C_GRADIENTFLOW_CSC_H_ */
