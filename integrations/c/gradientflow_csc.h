/* Coarse-grained sparse communication with an exchange of your own: the part of
 * GradientFlow's C API for frameworks that keep their gradients in buckets and
 * bring their own collectives. What gradientflow.h says of statuses, structs
 * and threads holds here too. */
#ifndef INTEGRATIONS_C_GRADIENTFLOW_CSC_H_
#define INTEGRATIONS_C_GRADIENTFLOW_CSC_H_

#include "gradientflow_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Each bucket is cut into equal chunks, of which the last may be short. A step
 * sends the k chunks whose L1 norms, summed over the ranks, were largest in the
 * step before (arXiv 1902.06855); the other chunks stay in the residual. One
 * step:
 *
 *   gf_csc_pack()      each bucket, once it is full
 *   (exchange)         the mean, over the ranks, of its packed buffers
 *   gf_csc_unpack()    the same bucket
 *   gf_csc_end_step()  once all buckets are back
 *   (exchange)         the sum, over the ranks, of the norms of all chunks
 *   gf_csc_select()    before the next step's first bucket
 *
 * Gradients, residuals, packed buffers and norms are in the host's memory, or
 * all of them in that of one CUDA device. On a device, a call submits its work
 * to the stream that it is given (a cudaStream_t; NULL is the legacy default
 * stream), and the caller orders its streams. gf_csc_pack(), gf_csc_unpack(),
 * gf_csc_end_step() and gf_csc_set_loss_scale() do not wait for the device; the
 * others may. For the host's memory `stream` is ignored, and the calling thread
 * does the work.
 *
 * Threads: calls on one gf_csc come one at a time, except that gf_csc_pack()
 * and gf_csc_unpack() of different buckets may run at the same time, also while
 * gf_csc_add() runs. No call sends anything. Types are float32, float16 and
 * bfloat16. GF_INVALID_ARGUMENT means that an argument is null or out of range,
 * and that nothing has changed. */
typedef struct gf_csc gf_csc;

typedef struct {
  size_t struct_bytes;
  size_t chunk_elements;
  double sparsity;       /* The share of chunks kept back, in [0, 1). */
  uint64_t warmup_steps; /* The sparsity rises linearly over these. */
  uint64_t step;         /* The next one: 0, or that of a saved state. */
  float loss_scale;      /* The factor in the gradients and residuals. */
  float keep_factor;     /* Multiplies what is kept back, in each step. */
  int32_t wire_dtype;    /* The type of packed buffers. */
  int32_t cuda_device;   /* Of those that the process sees; -1: the host. */
} gf_csc_config;
/* Defaults: chunks of 32,000 elements, sparsity 0.85, no warm-up, step 0, both
 * factors 1, wire type float16, the host's memory. */
GF_API void gf_csc_config_init(gf_csc_config*);

/* The configuration is copied. The caller owns *out and closes it. Returns
 * GF_UNIMPLEMENTED if the library cannot use the device. */
GF_API gf_status gf_csc_open(const gf_csc_config*, gf_csc** out);
/* Frees the gf_csc, which may be null, and its buckets. Call it only when the
 * device has done its work with them. */
GF_API void gf_csc_close(gf_csc*);

/* Belongs to the gf_csc; the caller only reads it. */
typedef struct {
  /* One byte per chunk: 1 if the current or next step sends it. */
  const uint8_t* selected;
  size_t chunks;
  size_t selected_chunks;
  /* A packed buffer holds the elements of the selected chunks, in order,
   * followed by one mark per chunk, from which all ranks learn whether a rank
   * keeps back something that is not finite. */
  size_t packed_elements; /* Elements and marks. */
} gf_csc_bucket;

/* A zero or null member is not given. */
typedef struct {
  /* They lie in the bucket one after another; skip_lars is ignored. Chunks that
   * hold an element of an always_dense tensor are sent in every step. Copied.
   */
  const gf_tensor* tensors;
  size_t tensor_count;
  int32_t dtype;
  /* As many elements as the bucket has: zeros, or what was saved. Lent to the
   * gf_csc as long as the bucket lives. NULL: the bucket cannot be packed. */
  float* residual;
  /* A selection that was saved, one byte per chunk, or NULL to send all chunks.
   * Copied. */
  const uint8_t* selected;
  size_t selected_count;
} gf_csc_bucket_config;

/* Appends a bucket, which lives until it is dropped. */
GF_API gf_status gf_csc_add(gf_csc*, const gf_csc_bucket_config*,
                            gf_csc_bucket** out);
/* Drops all buckets but the first `count`, and frees their memory. Call it only
 * when the device has done its work with them. REQUIRES: the dropped buckets
 * are not packed. */
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
                             float scale, float* norms, void* stream);
/* Call it after the exchange has made `packed` the mean over the ranks. Sets
 * grads = packed in selected chunks, and takes their norms; chunks that any
 * rank has marked become NaN. Returns GF_FAILED_PRECONDITION if the bucket has
 * not been packed in this step. */
GF_API gf_status gf_csc_unpack(gf_csc_bucket*, void* stream);
/* Ends the step. Call it once all buckets are unpacked. If a gradient in them
 * is not finite, which is then so on all ranks, the residuals take back what
 * was sent, and the caller must skip its update. */
GF_API gf_status gf_csc_end_step(gf_csc*, void* stream);
/* Selects the chunks of the next step. `norm_sums`, in the host's memory, has
 * `chunks` elements: the norms of all chunks of all buckets, in order, summed
 * over the ranks. Every rank must pass the same bits. */
GF_API gf_status gf_csc_select(gf_csc*, const float* norm_sums, size_t chunks);
/* For buckets that were added with a selection that was saved: returns
 * GF_INVALID_ARGUMENT unless their selections together can be that of the next
 * step. */
GF_API gf_status gf_csc_check(const gf_csc*);
/* Returns the number of the current step or, between steps, of the next. */
GF_API uint64_t gf_csc_step(const gf_csc*);
/* Between steps: sets the factor of the coming gradients. Rescales the
 * residuals of the buckets; the caller multiplies any others by *factor. */
GF_API gf_status gf_csc_set_loss_scale(gf_csc*, float loss_scale, void* stream,
                                       float* factor);

#ifdef __cplusplus
}
#endif
#endif /* INTEGRATIONS_C_GRADIENTFLOW_CSC_H_ */
