/* A rank's part in a job, for programs that call collectives and send messages:
 * joining, groups of ranks, memory that ranks share. gradientflow.h says what
 * holds for every function. */
#ifndef INTEGRATIONS_C_GRADIENTFLOW_COMM_H_
#define INTEGRATIONS_C_GRADIENTFLOW_COMM_H_

#include "gradientflow_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* -- Joining ------------------------------------------------------------ */

/* Joins the job, and blocks until all ranks have joined. On failure *out is
 * NULL. */
GF_API gf_status gf_comm_open(const gf_options*, gf_comm** out);
/* Once the sessions on it are closed too, this rank leaves the job, which may
 * take 2 seconds. Must not be called in a gf_done, nor while a call is running
 * on another thread: gf_comm_abort() ends those that wait. */
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
 * nothing else is affected. A message has at most 2^40 bytes. A send may last
 * until the peer receives, and ends with GF_OK, too, if the peer will not: it
 * closes the group, or leaves the job. `done`, `user` and `ticket` are as for
 * gf_comm_start(). Host memory only. */
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
/* Sends `count` elements to each rank and receives the same number from it:
 * both buffers have count * size elements. `count` is the same on all ranks, so
 * that small parts can travel together: log2 size messages per rank instead of
 * size. If one rank calls this function for an exchange, all ranks do. */
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

#ifdef __cplusplus
}
#endif
#endif /* INTEGRATIONS_C_GRADIENTFLOW_COMM_H_ */
