/* What all of GradientFlow's C API shares: statuses, types and settings.
 * gradientflow.h says what holds for every function: how it fails, who owns
 * what, and which threads may call it. */
#ifndef INTEGRATIONS_C_GRADIENTFLOW_BASE_H_
#define INTEGRATIONS_C_GRADIENTFLOW_BASE_H_

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

/* A memory: the host's, or that of a GPU. */
enum { GF_CPU = 0, GF_CUDA = 1 };

/* A tensor whose gradients are exchanged. */
typedef struct {
  size_t struct_bytes;
  const char* name; /* Unique in the session, else gf_session_open() fails;
                       copied. Null or "": "tensor<i>". */
  size_t elements;
  int32_t always_dense; /* CSC always sends it. */
  int32_t skip_lars;    /* LARS factor 1: biases, batch norms. */
} gf_tensor;
GF_API void gf_tensor_init(gf_tensor*);

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

/* -- Conversion -------------------------------------------------------- */

/* Free. Sets dst[i] to dst_dtype(scale * src[i]), rounded to nearest even, in
 * host memory and on the caller's thread. Both types are float32, float16 or
 * bfloat16. */
GF_API gf_status gf_convert(const void* src, int32_t src_dtype, void* dst,
                            int32_t dst_dtype, size_t n, float scale);

#ifdef __cplusplus
}
#endif
#endif /* INTEGRATIONS_C_GRADIENTFLOW_BASE_H_ */
