/* Coarse-grained sparse communication with an exchange of your own: the part of
 * GradientFlow's C API for frameworks that keep their gradients in buckets and
 * bring their own collectives. What gradientflow.h says of statuses, structs
 * and threads holds here too.
 */
#ifndef INTEGRATIONS_C_GRADIENTFLOW_CSC_H_
#define INTEGRATIONS_C_GRADIENTFLOW_CSC_H_

#include "gradientflow.h"

#ifdef __cplusplus
extern "C" {
#endif

/* -- CSC with an exchange of your own ------------------------------------ */
/* Coarse-grained sparse communication (GradientFlow, arXiv 1902.06855) for a
 * framework that has its gradients in buckets and exchanges them itself. Each
 * bucket is cut into equal chunks, of which the last may be short. A step sends
 * the k of all chunks whose L1 norms, summed over the ranks, were largest in
 * the step before; the others wait in the residual. One step:
 *
 *   gf_csc_pack()      each bucket, once it is full
 *   (exchange)         the mean, over the ranks, of its packed buffers
 *   gf_csc_unpack()    the same bucket
 *   gf_csc_end_step()  once all buckets are back
 *   (exchange)         the sum, over the ranks, of the norms of all chunks
 *   gf_csc_select()    before the next step's first bucket
 *
 * Threads: calls for one gf_csc come one at a time, except that gf_csc_pack()
 * and gf_csc_unpack() of different buckets may run at the same time, and beside
 * gf_csc_add(). The calling thread does all work, sends nothing, and waits for
 * nothing. Types are float32, float16 and bfloat16. GF_INVALID_ARGUMENT: an
 * argument is null or out of range, and nothing has changed. */
typedef struct gf_csc gf_csc;

typedef struct {
  size_t struct_bytes;
  size_t chunk_elements;
  double sparsity;       /* The share of the chunks kept back, in [0, 1). */
  uint64_t warmup_steps; /* The sparsity rises linearly over these. */
  uint64_t step;         /* The first to come: 0, or that of a saved state. */
  float loss_scale;      /* Gradients and residuals are multiplied with it. */
  float keep_factor;     /* Multiplies what is kept back, in each step. */
  int32_t wire_dtype;    /* The type of packed buffers. */
} gf_csc_config;
/* Chunks of 32,000, sparsity 0.85, no warm-up, step 0, factors 1, float16. */
GF_API void gf_csc_config_init(gf_csc_config*);

/* The caller closes *out, and with it its buckets. NULL may be closed. */
GF_API gf_status gf_csc_open(const gf_csc_config*, gf_csc** out);
GF_API void gf_csc_close(gf_csc*);

/* The gf_csc owns this; the caller only reads it. */
typedef struct {
  /* One byte per chunk: 1 if the step under way, or that comes, sends it. */
  const uint8_t* selected;
  size_t chunks;
  /* A packed buffer holds the elements of the selected chunks, in order, and
   * then one mark for each chunk that is kept back. */
  size_t packed_elements; /* Of both. */
  size_t marks;
} gf_csc_bucket;

/* Appends a bucket. It lives until it is dropped. `residual` has as many
 * elements as the bucket, holds zeros or what was saved, and is lent for as
 * long; it may be NULL if the gradients are not in the host's memory, and then
 * the caller itself does what gf_csc_pack() and gf_csc_unpack() do, with
 * gf_csc_get_factors(). `always_dense` and `selected` have one byte per chunk
 * and are copied: 1 for chunks that every step sends, and a selection that was
 * saved, or NULL to send all. */
GF_API gf_status gf_csc_add(gf_csc*, size_t elements, int32_t dtype,
                            float* residual, const uint8_t* always_dense,
                            const uint8_t* selected, gf_csc_bucket** out);
/* Drops all buckets but the first `count`. REQUIRES: they are not packed. */
GF_API gf_status gf_csc_drop(gf_csc*, size_t count);

/* Adds the residual to the gradients: s = grads + residual. For a selected
 * chunk, packed = wire_dtype(scale * s), and the residual keeps what rounding
 * took if the gradients have 16 bits. For another, residual = keep_factor * s,
 * grads = 0, norms[c] = sum |s| / loss scale, and the mark is a NaN if that is
 * not finite, else 0. `scale` makes means of the caller's exchange: 1 if it
 * takes means, 1 / ranks if it takes sums. `norms` has one element per chunk.
 * All three buffers are lent until gf_csc_end_step(). */
GF_API gf_status gf_csc_pack(gf_csc_bucket*, void* grads, void* packed,
                             float scale, float* norms);
/* After the exchange, by which `packed` became the mean: grads = packed in
 * selected chunks, whose norms are taken, and NaN in chunks that any rank had
 * marked. *nonfinite = 1 if any of this is not finite, on all ranks alike, else
 * 0. GF_FAILED_PRECONDITION: the bucket has not been packed in this step. */
GF_API gf_status gf_csc_unpack(gf_csc_bucket*, int32_t* nonfinite);
/* Ends the step. If `nonfinite`, which is that of any bucket, is not 0, the
 * caller skips its update, and the residuals take back what was sent. */
GF_API gf_status gf_csc_end_step(gf_csc*, int32_t nonfinite);
/* Selects the chunks of the next step. `norm_sums` has the norms of all chunks
 * of all buckets, in order, summed over the ranks: the same bits on each. */
GF_API gf_status gf_csc_select(gf_csc*, const float* norm_sums, size_t chunks);
GF_API uint64_t gf_csc_step(const gf_csc*); /* Under way, or to come. */
/* Between steps: what the coming gradients are multiplied with. The residuals
 * of buckets follow; the caller multiplies any others by *factor. */
GF_API gf_status gf_csc_set_loss_scale(gf_csc*, float loss_scale,
                                       float* factor);
/* What a caller's own passes multiply with. */
typedef struct {
  float keep_factor; /* residual = keep_factor * s, of a chunk kept back. */
  float kept_norm;   /* norms[c] = kept_norm * sum |s| */
  float sent_norm;   /* norms[c] = sent_norm * sum |grads|, after unpacking. */
  float give_back;   /* residual += give_back * grads, of a skipped step. */
} gf_csc_factors;
/* Valid as long as the gf_csc; gf_csc_set_loss_scale() changes it. */
GF_API const gf_csc_factors* gf_csc_get_factors(const gf_csc*);

#ifdef __cplusplus
}
#endif
#endif /* INTEGRATIONS_C_GRADIENTFLOW_CSC_H_ */
