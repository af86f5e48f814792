/* GradientFlow's C API: stable, C99, no exceptions; also for Python's ctypes.
 *
 * A gf_comm is a rank's part in a job: links, collectives, messages. A
 * gf_session is the gradients of one model on it, and the steps that exchange
 * them. Several sessions may share a gf_comm.
 *
 * Every function that can fail returns a gf_status; GF_OK is 0. After a
 * failure gf_last_error() gives the text, per thread, until that thread's next
 * failing call. Structs start with their size, so that later versions can add
 * fields: set it with gf_*_init(). Pointers handed out by a session live as
 * long as the session.
 *
 * Threads. Each section says which of its functions are
 *   free:    any thread, any number at a time;
 *   ordered: one thread at a time for a session, all of them together, and not
 *            in a gf_done.
 * gf_comm_close() and gf_session_close() come when no other call on the handle
 * runs. What takes no handle and no gf_options is free.
 *
 * Handles belong to the process that opened them. In a fork() of that process
 * closing does nothing, what tells rank, size and the pool's place answers, the
 * pool is the fork's own copy, and all else is GF_FAILED_PRECONDITION; the job
 * does not notice.
 */
#ifndef INTEGRATIONS_C_GRADIENTFLOW_H_
#define INTEGRATIONS_C_GRADIENTFLOW_H_

#include <stddef.h>
#include <stdint.h>

#define GF_VERSION_MAJOR 2
#define GF_VERSION_MINOR 0

#if defined(__GNUC__)
#define GF_API __attribute__((visibility("default")))
#else
#define GF_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t gf_status;
enum {
  GF_OK = 0,
  GF_INVALID_ARGUMENT = 1,    /* The caller broke a precondition. */
  GF_FAILED_PRECONDITION = 2, /* Right call, wrong moment. */
  GF_UNAVAILABLE = 3,         /* A peer or link is gone. */
  GF_ABORTED = 4,             /* Ended here or by another rank. */
  GF_DEADLINE_EXCEEDED = 5,   /* A peer did not answer in time. */
  GF_RESOURCE_EXHAUSTED = 6,
  GF_UNIMPLEMENTED = 7,
  GF_INTERNAL = 8, /* A bug in the library. */
  GF_DATA_LOSS = 9 /* Garbage from a peer or in a saved state. */
};

enum {
  GF_FLOAT32 = 0,
  GF_FLOAT16 = 1,
  GF_BFLOAT16 = 2,
  GF_FLOAT64 = 3,
  GF_INT8 = 4,
  GF_INT32 = 5,
  GF_INT64 = 6,
  GF_UINT8 = 7
};
enum {
  GF_SUM = 0,
  GF_MIN = 1,
  GF_MAX = 2,
  GF_PRODUCT = 3,
  GF_MEAN = 4,
  GF_BIT_AND = 5, /* Integers only, like the next two. */
  GF_BIT_OR = 6,
  GF_BIT_XOR = 7
};

typedef struct gf_options gf_options; /* Settings; freed by gf_options_free. */
typedef struct gf_comm gf_comm;       /* A rank's part in a job. */
typedef struct gf_session gf_session; /* A model's gradients on it. */

/* GF_VERSION_MAJOR * 1000 + GF_VERSION_MINOR of the library loaded. */
GF_API int32_t gf_version(void);
/* Never null; "" if nothing failed yet on this thread. */
GF_API const char* gf_last_error(void);
/* "OK", "UNAVAILABLE", ... Static storage. */
GF_API const char* gf_status_name(gf_status status);

/* -- Settings ---------------------------------------------------------- */
/* One thread at a time for each gf_options. gf_options_from_env() reads the
 * environment, which no other thread may change meanwhile. */

/* Defaults and GRADIENTFLOW_* and launcher variables of this process. What is
 * set afterwards wins: launcher variables that say only half are an error of
 * gf_comm_open() if rank, size or rendezvous (or an exchange) were not set. */
GF_API gf_status gf_options_from_env(gf_options** out);
/* Defaults alone. */
GF_API gf_status gf_options_default(gf_options** out);
/* `name` without the prefix, any case: "rank", "WIRE_DTYPE", "bucket_bytes";
 * `value` as in the environment. Both are copied. */
GF_API gf_status gf_options_set(gf_options*, const char* name,
                                const char* value);
/* The present value as text, into buf (always terminated). */
GF_API gf_status gf_options_get(const gf_options*, const char* name, char* buf,
                                size_t buf_bytes);
GF_API void gf_options_free(gf_options*); /* Null is fine. */

/* How the ranks meet where a framework has a store of its own, in place of the
 * setting "rendezvous". Called by gf_comm_open(), once, on its thread: gives
 * `mine` (mine_bytes, not text) to all ranks, and calls put(sink, r, card,
 * bytes) once for every rank r, 0 to size - 1, its own too. Returns GF_OK; any
 * other status fails gf_comm_open() with `*why` (static or thread-local text,
 * may stay null). */
typedef void (*gf_put)(void* sink, int32_t rank, const char* card,
                       size_t bytes);
typedef gf_status (*gf_exchange)(void* user, int32_t rank, int32_t size,
                                 const char* mine, size_t mine_bytes,
                                 gf_put put, void* sink, const char** why);
/* `user` is the caller's and outlives gf_comm_open(). Null: as the settings
 * say. */
GF_API gf_status gf_options_set_exchange(gf_options*, gf_exchange exchange,
                                         void* user);

/* -- Joining ------------------------------------------------------------ */

/* Joins the job; blocks until all ranks have. The settings are copied. On
 * failure *out is NULL. */
GF_API gf_status gf_comm_open(const gf_options*, gf_comm** out);
/* Gives the handle back. The job is left, and everything freed, once its
 * sessions are closed too. Null is fine. Not while another thread uses the
 * handle, nor in a gf_done. */
GF_API void gf_comm_close(gf_comm*);

/* Free. -1 if the handle is null. */
GF_API int32_t gf_comm_rank(const gf_comm*);
GF_API int32_t gf_comm_size(const gf_comm*);
/* The same among the ranks of this host, in the order of their ranks. */
GF_API int32_t gf_comm_local_rank(const gf_comm*);
GF_API int32_t gf_comm_local_size(const gf_comm*);
/* Free. GF_OK, or why the job has ended. */
GF_API gf_status gf_comm_check(const gf_comm*);
/* Free. Ends the job on all ranks with this text. */
GF_API gf_status gf_comm_abort(gf_comm*, const char* why);
/* With a GPU: the cudaStream_t that the buffers of collectives are computed on
 * (at first the legacy default stream); what it has been given so far comes
 * before a collective. Without effect with GF_CPU. */
GF_API gf_status gf_comm_set_stream(gf_comm*, void* stream);

/* Free. Memory that shared-memory collectives use without a copy; zeroed. */
GF_API gf_status gf_comm_alloc_shared(gf_comm*, size_t bytes, void** out);
GF_API gf_status gf_comm_free_shared(gf_comm*, void* data);

/* Free. Some of the job's ranks, with collectives of their own, on the same
 * links and thread: rank i of the group is the job's rank ranks[i]. The ranks
 * are distinct, this one is among them, and all members name them in the same
 * order. `id`, 1 to 2^31 - 1, is alike on all members and of no other group
 * that one of them has open. Local: nothing is sent. Host memory only. */
GF_API gf_status gf_comm_open_group(gf_comm*, uint32_t id, const int32_t* ranks,
                                    size_t count);
/* Free. Calls of the group that are still under way end the job. */
GF_API gf_status gf_comm_close_group(gf_comm*, uint32_t id);

/* -- A model's gradients ------------------------------------------------ */

typedef struct {
  size_t struct_bytes;
  const char* name; /* Unique in the session, else gf_session_open() fails;
                       copied. Null or "": "tensor<i>". */
  size_t elements;
  int32_t always_dense; /* CSC always sends it. */
  int32_t skip_lars;    /* LARS factor 1: biases, batch norms. */
} gf_tensor;
GF_API void gf_tensor_init(gf_tensor*);

/* Opens a session of the ranks of `group` (0: all of them; else an open one,
 * which stays open as long). A collective: all of those ranks call it alike, in
 * the same place among their collectives on the group. `tensors` in forward
 * order, may be null with count 0. Of the settings, those of sections
 * "Gradients" and "Coarse-grained sparse communication" count, and must not
 * differ between ranks, nor must the tensors: every rank's error names the rank
 * that differs or refuses. Settings and tensors are copied. On failure *out is
 * NULL. Ordered, with gf_session_close(), for a gf_comm. */
GF_API gf_status gf_session_open(gf_comm*, uint32_t group, const gf_options*,
                                 const gf_tensor* tensors, size_t count,
                                 gf_session** out);
/* Collectives of the session that are under way end the job. Null is fine. */
GF_API void gf_session_close(gf_session*);

/* Free. In the session's group; -1 if the handle is null. */
GF_API int32_t gf_session_rank(const gf_session*);
GF_API int32_t gf_session_size(const gf_session*);

/* -- A step ------------------------------------------------------------- */
/* A step begins with the first tensor that is marked, and ends when
 * gf_session_finish_step() returns GF_OK. Ordered: gf_session_set_stream,
 * gf_session_finish_step, gf_session_set_loss_scale, gf_session_optimizer_step
 * and gf_session_selection. All others are free.
 *
 * A call at the wrong moment is GF_FAILED_PRECONDITION, and changes nothing.
 * Once gf_session_finish_step() has failed with another status than that, the
 * session takes no more steps: it, gf_session_optimizer_step(),
 * gf_session_set_loss_scale(), gf_session_set_stream(), gf_session_save_state()
 * and gf_session_restore_state() fail with the reason of that first failure. */

/* Where tensor i's gradient lives, in the pool's dtype. */
GF_API gf_status gf_session_gradient(const gf_session*, size_t tensor,
                                     void** data, size_t* bytes);
/* All gradients, contiguous, in generation order (last tensor first). */
GF_API gf_status gf_session_pool(const gf_session*, void** data, size_t* bytes);
/* Where in the pool tensor i begins, in elements. */
GF_API gf_status gf_session_pool_offset(const gf_session*, size_t tensor,
                                        size_t* elements);

enum { GF_CPU = 0, GF_CUDA = 1 };
/* In whose memory the pool lies: GF_CPU or GF_CUDA, and which; as the option
 * "device" says. */
GF_API gf_status gf_session_pool_device(const gf_session*, int32_t* kind,
                                        int32_t* index);
/* With GF_CUDA: the cudaStream_t on which gradients are computed (at first the
 * legacy default stream). gf_session_ready(i) then means that the work that
 * writes gradient i has been submitted to it, and gf_session_optimizer_step()
 * submits to it. Between steps only. Without effect with GF_CPU. */
GF_API gf_status gf_session_set_stream(gf_session*, void* stream);

/* The gradient is written; lent until gf_session_finish_step() returns. Any
 * thread, any order. Does not block. A second gf_session_ready() or
 * gf_session_absent() of a tensor in a step touches no gradient, and ends the
 * job: gf_session_finish_step() says so. */
GF_API gf_status gf_session_ready(gf_session*, size_t tensor);
/* The tensor took no part in this step here: counts as zeros, which are written
 * to its gradient. In place of gf_session_ready(). */
GF_API gf_status gf_session_absent(gf_session*, size_t tensor);

typedef struct {
  size_t struct_bytes;
  uint64_t step;
  uint64_t buckets;
  uint64_t bytes_sent; /* For the gradients, headers apart; in shared memory,
                          bytes read from and written to other ranks' buffers,
                          in the pool's type: nothing has the wire's there.
                          Other collectives that ran meanwhile do not count,
                          here and in the seconds. */
  uint64_t selected_chunks;
  uint64_t chunks;
  double backward_seconds;
  double exposed_seconds;
  double hidden_seconds;
  int32_t nonfinite; /* 1 on all ranks alike. */
  /* Exchanged gradients are so many times the true ones: the loss scale in a
   * pool of 16 bits, else 1. Divide by it, in float32;
   * gf_session_optimizer_step() does. */
  float gradient_scale;
  uint64_t bucket_bytes;
} gf_step_stats;
GF_API void gf_step_stats_init(gf_step_stats*);

/* Blocks until the step is aggregated. `stats` may be null.
 * GF_FAILED_PRECONDITION, and the step goes on, if a tensor is neither ready
 * nor absent. */
GF_API gf_status gf_session_finish_step(gf_session*, gf_step_stats* stats);
/* From the next step on; the same on all ranks. GF_INVALID_ARGUMENT, and
 * nothing changes, if it or its inverse is not a positive number. */
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
/* weights[i]: tensor i's float32 weights, the caller's, where the pool is;
 * null: the tensor is left alone, with its momentum. Chunk-aware: only what was
 * sent changes. Skips a nonfinite step. Once for a step, before the next one
 * begins. With residual=momentum the momentum must be that of the option
 * "momentum": else GF_INVALID_ARGUMENT. After that nothing has changed, and the
 * call can be made again. */
GF_API gf_status gf_session_optimizer_step(gf_session*, const gf_optimizer*,
                                           float* const* weights, size_t count);
/* The same with settings of their own for groups of tensors: tensor i goes by
 * groups[group_of[i]], or is left alone if that is -1. */
GF_API gf_status gf_session_optimizer_step_groups(
    gf_session*, const gf_optimizer* const* groups, size_t group_count,
    const int32_t* group_of, float* const* weights, size_t count);
/* 1 for each chunk the last finished step sent; *chunks = 0 when dense. `out`
 * may be null to ask for the count. */
GF_API gf_status gf_session_selection(const gf_session*, uint8_t* out,
                                      size_t out_bytes, size_t* chunks);

/* -- Checkpoints -------------------------------------------------------- */
/* Ordered, with those of a step. */

/* This rank's residual, momentum, selection and step, between steps. `out`
 * null: only *bytes is set, at no cost. GF_INVALID_ARGUMENT if out_bytes is too
 * small. */
GF_API gf_status gf_session_save_state(const gf_session*, void* out,
                                       size_t out_bytes, size_t* bytes);
/* A collective, between steps: all ranks call it, each with the state that it,
 * the same rank, saved after the same step of the same run. Either all go on
 * from there, or none changes and every rank's error names the rank whose state
 * is refused and why. Tensors and settings must be those of the saving run, but
 * for how gradients travel: algorithm, bucket_bytes, connections,
 * segment_bytes, segments_in_flight and the first loss_scale may differ. */
GF_API gf_status gf_session_restore_state(gf_session*, const void* state,
                                          size_t bytes);

/* -- Collectives and messages ------------------------------------------- */
/* Free; but same order and arguments on every rank of a group, so calls of
 * several threads are put in order by the caller. Messages only per peer and
 * tag. Groups, and the steps of sessions, do not wait for each other. Counts
 * are elements. Buffers are in the host's memory or in that of the gf_comm's
 * GPU, alike on all ranks with a GPU, and are lent until the call ends. Of a
 * rank that has no elements in a call on host memory, pass a pointer of the
 * host all the same: null stands for the GPU. */

enum {
  GF_ALLREDUCE = 0,
  GF_BROADCAST = 1,
  GF_REDUCE = 2,
  GF_ALLGATHER = 3,
  GF_REDUCE_SCATTER = 4,
  GF_ALL_TO_ALL = 5,
  GF_GATHER = 6,
  GF_SCATTER = 7,
  GF_BARRIER = 8
};
typedef struct {
  size_t struct_bytes;
  int32_t kind;      /* GF_ALLREDUCE... */
  uint32_t group;    /* As opened; 0: all ranks. Ranks below are the group's. */
  const void* input; /* As in the blocking calls; null for allreduce and */
  void* output;      /* broadcast, which are in place in `output`. */
  size_t count;      /* Elements. */
  int32_t dtype;
  int32_t wire_dtype; /* On the wire; -1: dtype. Another one for allreduces of
                         float32, float16 and bfloat16. */
  int32_t op;
  int32_t root;
  float scale; /* Multiplies the result of an allreduce of floats, once. */
  const size_t* send_counts; /* Copied. Scatter: of the root, on all ranks. */
  const size_t* recv_counts; /* Copied. Gather: on all ranks; allgather too, if
                                the ranks' parts differ, instead of `count`. */
} gf_call;
GF_API void gf_call_init(gf_call*);

/* 1 if such a call on host memory is taken: kind GF_ALLREDUCE..., element type,
 * type on the wire (-1: the same), operation (looked at if the kind has one).
 * Else 0. */
GF_API int32_t gf_supports(int32_t kind, int32_t dtype, int32_t wire_dtype,
                           int32_t op);

/* How a call ended. Runs once, on whatever thread drives the job, with none of
 * the library's locks held: it may start calls. It must not wait for others,
 * since they may be driven by the same thread. `message` is "" for GF_OK, and
 * lives until it returns. */
typedef void (*gf_done)(void* user, gf_status status, const char* message);

/* Starts a collective and returns. `done` (null: not wanted) is told how it
 * ended. An error returned here is the caller's: nothing was started, and
 * `done` does not run. */
GF_API gf_status gf_comm_start(gf_comm*, const gf_call*, gf_done done,
                               void* user, uint64_t* ticket);
enum { GF_ANY_RANK = -1 };
/* Messages match by (group, peer, tag), in order. A length that differs from
 * the sent one is the receiver's GF_INVALID_ARGUMENT, and ends nothing else. */
GF_API gf_status gf_comm_send_start(gf_comm*, uint32_t group, const void* data,
                                    size_t bytes, int32_t peer, uint32_t tag,
                                    gf_done done, void* user, uint64_t* ticket);
/* `peer` may be GF_ANY_RANK: the first message with the tag that comes.
 * Receives of one tag are served in the order in which they began. *source
 * (null: not wanted) is set as it ends. */
GF_API gf_status gf_comm_recv_start(gf_comm*, uint32_t group, void* data,
                                    size_t bytes, int32_t peer, uint32_t tag,
                                    int32_t* source, gf_done done, void* user,
                                    uint64_t* ticket);
/* Waits until that call is over, at most `seconds` (to 0.1 s; negative: without
 * limit), and drives the job meanwhile. Returns how the call ended, and the
 * ticket is spent: waiting again is GF_INVALID_ARGUMENT. Of a call with a
 * gf_done: GF_OK once that has returned, however often it is asked.
 * GF_DEADLINE_EXCEEDED while gf_comm_check() is GF_OK: it is still under way.
 * GF_INVALID_ARGUMENT: no such ticket was given out. Not in a gf_done. */
GF_API gf_status gf_comm_wait(gf_comm*, uint64_t ticket, double seconds);

/* The calls below, of all ranks, block. Not in a gf_done. */
GF_API gf_status gf_comm_allreduce(gf_comm*, void* data, size_t count,
                                   int32_t dtype, int32_t op);
GF_API gf_status gf_comm_broadcast(gf_comm*, void* data, size_t count,
                                   int32_t dtype, int32_t root);
/* `output` on the root only, may equal input. */
GF_API gf_status gf_comm_reduce(gf_comm*, const void* input, void* output,
                                size_t count, int32_t dtype, int32_t op,
                                int32_t root);
/* output: count * size. */
GF_API gf_status gf_comm_allgather(gf_comm*, const void* input, void* output,
                                   size_t count, int32_t dtype);
/* counts[r]: elements of rank r, on every rank; output: their sum. */
GF_API gf_status gf_comm_allgather_v(gf_comm*, const void* input, void* output,
                                     const size_t* counts, int32_t dtype);
/* input: count * size; output: count. */
GF_API gf_status gf_comm_reduce_scatter(gf_comm*, const void* input,
                                        void* output, size_t count,
                                        int32_t dtype, int32_t op);
/* send_counts[r] elements to rank r, recv_counts[r] from it. */
GF_API gf_status gf_comm_all_to_all(gf_comm*, const void* input,
                                    const size_t* send_counts, void* output,
                                    const size_t* recv_counts, int32_t dtype);
/* counts[r]: elements of rank r, on every rank. */
GF_API gf_status gf_comm_gather(gf_comm*, const void* input, void* output,
                                const size_t* counts, int32_t dtype,
                                int32_t root);
GF_API gf_status gf_comm_scatter(gf_comm*, const void* input, void* output,
                                 const size_t* counts, int32_t dtype,
                                 int32_t root);
GF_API gf_status gf_comm_barrier(gf_comm*);
GF_API gf_status gf_comm_send(gf_comm*, const void* data, size_t bytes,
                              int32_t peer, uint32_t tag);
GF_API gf_status gf_comm_recv(gf_comm*, void* data, size_t bytes, int32_t peer,
                              uint32_t tag);

/* -- Kernels ---------------------------------------------------------- */
/* Free. For gradients that are not in a session's pool. On the host, on the
 * caller's thread. Types: float32, float16, bfloat16. */
/* dst[i] = dst_dtype(scale * src[i]); rounds to the nearest even. */
GF_API gf_status gf_convert(const void* src, int32_t src_dtype, void* dst,
                            int32_t dst_dtype, size_t n, float scale);

#ifdef __cplusplus
}
#endif
#endif /* INTEGRATIONS_C_GRADIENTFLOW_H_ */
