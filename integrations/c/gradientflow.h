/* GradientFlow's C API: stable C99 that raises no exceptions, so that Python's
 * ctypes and other languages can call it too.
 *
 * A gf_comm is a rank's part in a job: its links, collectives and messages. A
 * gf_session holds the gradients of one model on a gf_comm, and exchanges them
 * in steps. Several sessions may share a gf_comm.
 *
 * Every function that can fail returns a gf_status; GF_OK is 0. After a failure
 * gf_last_error() returns the text, which is kept per thread until the next
 * failing call of that thread. Structs start with their size, so that later
 * versions can add fields: gf_*_init() sets the size and the defaults. The
 * caller owns the handles that it gets, and gives them to gf_*_close() or
 * gf_options_free(), which accept NULL. Texts and settings are copied. Pointers
 * that a session hands out are valid as long as the session.
 *
 * Threads. Each section says which of its functions are
 *   free:    any thread may call them, any number at a time;
 *   ordered: all ordered functions of a session together are called by one
 *            thread at a time, and never in a gf_done.
 * gf_comm_close() and gf_session_close() may be called only while no other call
 * on the handle runs. Functions that take neither a handle nor a gf_options are
 * free.
 *
 * Handles belong to the process that opened them. In a fork() of that process
 * closing a handle does nothing, the functions that tell the rank, the size and
 * the place of the pool still answer, the pool is the child's own copy, and
 * every other call fails with GF_FAILED_PRECONDITION. The job does not notice
 * the fork. */
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
/* Returns the name of a type, as PyTorch spells it: "float32" for GF_FLOAT32.
 * NULL if no type has that number. Static storage. */
GF_API const char* gf_dtype_name(int32_t dtype);
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

typedef struct gf_options gf_options; /* Settings; gf_options_free() frees. */
typedef struct gf_comm gf_comm;       /* A rank's part in a job. */
typedef struct gf_session gf_session; /* A model's gradients on it. */

/* Returns GF_VERSION_MAJOR * 1000 + GF_VERSION_MINOR of the loaded library. */
GF_API int32_t gf_version(void);
/* Never null; "" if no call of this thread has failed yet. */
GF_API const char* gf_last_error(void);
/* Returns "OK", "UNAVAILABLE" and so on, in static storage. */
GF_API const char* gf_status_name(gf_status status);

/* -- Settings ---------------------------------------------------------- */
/* A gf_options is used by one thread at a time. gf_options_from_env() reads the
 * environment, which no other thread may change meanwhile. */

/* Takes the defaults, then the GRADIENTFLOW_* and launcher variables of this
 * process. Later calls of gf_options_set() override them. If the launcher
 * variables are incomplete and gf_options_set() does not supply rank, size and
 * rendezvous (or an exchange), then gf_comm_open() fails. */
GF_API gf_status gf_options_from_env(gf_options** out);
/* The same without the environment: only the defaults. */
GF_API gf_status gf_options_default(gf_options** out);
/* `name` has no prefix and any case: "rank", "WIRE_DTYPE", "bucket_bytes";
 * `value` is written as in the environment. GF_INVALID_ARGUMENT says what was
 * expected. */
GF_API gf_status gf_options_set(gf_options*, const char* name,
                                const char* value);
/* Writes the present value as text into `buf`, always with a zero at its end.
 * Returns GF_INVALID_ARGUMENT if it does not fit. */
GF_API gf_status gf_options_get(const gf_options*, const char* name, char* buf,
                                size_t buf_bytes);
GF_API void gf_options_free(gf_options*);

/* How the ranks meet if a framework has a store of its own; it takes the place
 * of the setting "rendezvous". gf_comm_open() calls the function once, on the
 * thread that called gf_comm_open(). It gives `mine` (mine_bytes bytes, not
 * text) to all ranks, and calls put(sink, r, card, bytes) once for every rank r
 * from 0 to size - 1, including its own. It returns GF_OK; any other status
 * makes gf_comm_open() fail, with the text `*why` (static or thread-local; it
 * may stay null). */
typedef void (*gf_put)(void* sink, int32_t rank, const char* card,
                       size_t bytes);
typedef gf_status (*gf_exchange)(void* user, int32_t rank, int32_t size,
                                 const char* mine, size_t mine_bytes,
                                 gf_put put, void* sink, const char** why);
/* `user` belongs to the caller and must outlive gf_comm_open(). If `exchange`
 * is null, ranks meet by the setting "rendezvous" again. */
GF_API gf_status gf_options_set_exchange(gf_options*, gf_exchange exchange,
                                         void* user);

/* -- Joining ------------------------------------------------------------ */

/* Joins the job, and blocks until all ranks have joined. On failure *out is
 * NULL. */
GF_API gf_status gf_comm_open(const gf_options*, gf_comm** out);
/* Once the sessions on it are closed too, this rank leaves the job, which may
 * take 2 seconds. Must not be called in a gf_done. */
GF_API void gf_comm_close(gf_comm*);

/* Free. Both return -1 if the handle is null. */
GF_API int32_t gf_comm_rank(const gf_comm*);
GF_API int32_t gf_comm_size(const gf_comm*);
/* Free. The same among the ranks of this host, in the order of their ranks. */
GF_API int32_t gf_comm_local_rank(const gf_comm*);
GF_API int32_t gf_comm_local_size(const gf_comm*);
/* Free. Returns GF_OK, or the reason why the job has ended. */
GF_API gf_status gf_comm_check(const gf_comm*);
/* Free. Ends the job on all ranks, with this text as the reason. */
GF_API gf_status gf_comm_abort(gf_comm*, const char* why);
/* Free. With a GPU: sets the cudaStream_t that produces the buffers of
 * collectives, at first the legacy default stream. A collective starts after
 * the work that the stream has been given so far. No effect with GF_CPU. */
GF_API gf_status gf_comm_set_stream(gf_comm*, void* stream);

/* Free. Allocates `bytes` bytes of zeroed host memory that collectives over
 * shared memory and RDMA use without a copy. It is valid until
 * gf_comm_free_shared() or gf_comm_close(). */
GF_API gf_status gf_comm_alloc_shared(gf_comm*, size_t bytes, void** out);
/* Free. No call may still use the memory. `data` may be null. */
GF_API gf_status gf_comm_free_shared(gf_comm*, void* data);

/* Free. Opens a group of some of the job's ranks, with collectives of its own,
 * on the same links and thread: rank i of the group is the job's rank ranks[i].
 * The ranks are distinct, include this one, and all members list them in the
 * same order. `id`, 1 to 2^31 - 1, is the same on all members, and no member
 * has another open group with this id. The call is local: it sends nothing.
 * Groups take host memory only. */
GF_API gf_status gf_comm_open_group(gf_comm*, uint32_t id, const int32_t* ranks,
                                    size_t count);
/* Free. If calls of the group are still under way, the job ends. Returns
 * GF_FAILED_PRECONDITION if a session has the group. */
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

enum { GF_CPU = 0, GF_CUDA = 1 };
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
  uint64_t selected_chunks; /* Of `chunks`; all of them when dense. */
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
  uint64_t rdma_bytes;          /* Of messages. */
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
 * has changed nothing, and can be made again. */
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

/* -- Collectives and messages ------------------------------------------- */
/* Free; but all ranks of a group make the same calls in the same order with
 * matching arguments, so the caller has to order the calls of several threads.
 * Messages need an order only per peer and tag. Groups, and the steps of
 * sessions, do not wait for each other. Counts are in elements. Buffers are in
 * host memory or in the memory of the gf_comm's GPU, the same choice on all
 * ranks that have a GPU, and are lent until the call ends. If a rank has no
 * elements in a call on host memory, it must nevertheless pass a host pointer:
 * a null pointer stands for the GPU. */

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
  uint32_t group;    /* An open one; 0: all ranks. `root` is a rank in it. */
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
                                the ranks' parts differ, instead of `count`. An
                                all-to-all without either of these sends `count`
                                elements to each rank, on all ranks. */
} gf_call;
GF_API void gf_call_init(gf_call*);

/* Returns 1 if the library accepts such a call on host memory, else 0. The
 * arguments are as in gf_call; `op` is ignored if the kind has none. */
GF_API int32_t gf_supports(int32_t kind, int32_t dtype, int32_t wire_dtype,
                           int32_t op);

/* Reports how a call ended. It runs once, on whatever thread drives the job,
 * and the library holds none of its locks meanwhile, so it may start calls. It
 * must not wait for other calls, since the same thread may have to drive them.
 * `message` is "" for GF_OK, and is valid until the function returns. */
typedef void (*gf_done)(void* user, gf_status status, const char* message);

/* Starts a collective and returns. *ticket is for gf_comm_wait(). `done`, which
 * may be null, runs when the call has ended, with `user`. A call without one
 * must be waited for once: its result is kept until then. If this function
 * returns an error, nothing was started, and `done` does not run. */
GF_API gf_status gf_comm_start(gf_comm*, const gf_call*, gf_done done,
                               void* user, uint64_t* ticket);
enum { GF_ANY_RANK = -1 };
/* Messages match by (group, peer, tag), in order. If the receiver's length
 * differs from the sender's, the receive ends with GF_INVALID_ARGUMENT, and
 * nothing else is affected. A send may last until the peer receives. `done`,
 * `user` and `ticket` are as for gf_comm_start(). Host memory only. */
GF_API gf_status gf_comm_send_start(gf_comm*, uint32_t group, const void* data,
                                    size_t bytes, int32_t peer, uint32_t tag,
                                    gf_done done, void* user, uint64_t* ticket);
/* `peer` may be GF_ANY_RANK: the first message with this tag from any rank.
 * Receives of one tag are served in the order in which they started. *source,
 * if not null, is set to the sender's rank when the receive ends. */
GF_API gf_status gf_comm_recv_start(gf_comm*, uint32_t group, void* data,
                                    size_t bytes, int32_t peer, uint32_t tag,
                                    int32_t* source, gf_done done, void* user,
                                    uint64_t* ticket);
/* Waits until the call is over, and drives the job meanwhile. It waits at most
 * `seconds`, with a resolution of 0.1 s; a negative value means no limit. Must
 * not be called in a gf_done. Returns how the call ended, and consumes the
 * ticket: waiting for it again returns GF_INVALID_ARGUMENT. For a call with a
 * gf_done it returns GF_OK once the gf_done has returned, however often it is
 * asked. GF_DEADLINE_EXCEEDED while gf_comm_check() returns GF_OK means that
 * the call is still under way. GF_INVALID_ARGUMENT means that no such ticket
 * was given out. */
GF_API gf_status gf_comm_wait(gf_comm*, uint64_t ticket, double seconds);

/* The calls below involve all ranks, and block. They must not be called in a
 * gf_done. */
GF_API gf_status gf_comm_allreduce(gf_comm*, void* data, size_t count,
                                   int32_t dtype, int32_t op);
GF_API gf_status gf_comm_broadcast(gf_comm*, void* data, size_t count,
                                   int32_t dtype, int32_t root);
/* `output` is written on the root only, where it may equal `input`. */
GF_API gf_status gf_comm_reduce(gf_comm*, const void* input, void* output,
                                size_t count, int32_t dtype, int32_t op,
                                int32_t root);
/* `output` has count * size elements. */
GF_API gf_status gf_comm_allgather(gf_comm*, const void* input, void* output,
                                   size_t count, int32_t dtype);
/* counts[r] is the number of elements of rank r, the same on every rank;
 * `output` has room for their sum. */
GF_API gf_status gf_comm_allgather_v(gf_comm*, const void* input, void* output,
                                     const size_t* counts, int32_t dtype);
/* `input` has count * size elements, `output` has count. */
GF_API gf_status gf_comm_reduce_scatter(gf_comm*, const void* input,
                                        void* output, size_t count,
                                        int32_t dtype, int32_t op);
/* Sends send_counts[r] elements to rank r, receives recv_counts[r] from it. */
GF_API gf_status gf_comm_all_to_all(gf_comm*, const void* input,
                                    const size_t* send_counts, void* output,
                                    const size_t* recv_counts, int32_t dtype);
/* Sends `count` elements to each rank and receives as many from it: both
 * buffers have count * size elements. `count` is the same on all ranks, so that
 * small parts can travel together: log2 size messages per rank instead of size.
 * If one rank calls this function for an exchange, all ranks do. */
GF_API gf_status gf_comm_all_to_all_equal(gf_comm*, const void* input,
                                          void* output, size_t count,
                                          int32_t dtype);
/* counts[r] is the number of elements of rank r, the same on every rank. The
 * root's `output` (of a scatter: `input`) has the parts in rank order. */
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
/* Free. These work on gradients that are not in a session's pool: in host
 * memory, on the caller's thread. Types are float32, float16 and bfloat16. */
/* dst[i] = dst_dtype(scale * src[i]), rounded to nearest even. */
GF_API gf_status gf_convert(const void* src, int32_t src_dtype, void* dst,
                            int32_t dst_dtype, size_t n, float scale);

#ifdef __cplusplus
}
#endif
#endif /* INTEGRATIONS_C_GRADIENTFLOW_H_ */
