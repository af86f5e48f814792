/* Profiles of steps that are not a session's: the part of GradientFlow's C API
 * for frameworks that exchange gradients by themselves and want to know, by
 * gradientflow_plan, what a step would take on another cluster. What
 * gradientflow.h says of statuses, structs and threads holds here too. A
 * session makes its profile by itself. */
#ifndef INTEGRATIONS_C_GRADIENTFLOW_PROFILE_H_
#define INTEGRATIONS_C_GRADIENTFLOW_PROFILE_H_

#include "gradientflow_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* -- Profiles of steps of your own --------------------------------------- */
/* The file "profile" of gradientflow/docs/planner.md, which says what each time
 * is. The options "profile" and "profile_batch" name the file and the samples
 * of a step. One step, on every rank:
 *
 *   gf_profile_tell()   at its begin, and if it gives values: their sums over
 *                       the ranks, then gf_profile_told(), in this step
 *   gf_profile_add()    once it has ended; or gf_profile_skip(), if its times
 *                       are not known
 *
 * The first two steps are left out. The file is written after 4, 16 and 64
 * steps, then every minute, and by gf_profile_close(); gf_profile_add() takes
 * so much longer when it is. All functions are ordered, together. */
typedef struct gf_profile gf_profile;

typedef struct {
  size_t struct_bytes;
  const gf_tensor* tensors; /* In forward order; name and elements count. */
  size_t tensor_count;
  int32_t dtype;      /* Of the gradients: float32, float16 or bfloat16. */
  int32_t rank;       /* Rank 0 writes the file, or each one a file of its */
  int32_t size;       /* own if its name has a %r. */
  const char* device; /* What backward runs on; a text for people. NULL: the
                         option "device". */
} gf_profile_config;
/* No tensors, float32, rank 0 of 1, and no device. */
GF_API void gf_profile_config_init(gf_profile_config*);

/* *out belongs to the caller, who closes it; settings, names and sizes are
 * copied. *out is NULL, with GF_OK, if the options want no profile or if there
 * are no gradients. GF_INVALID_ARGUMENT with the path and the system's reason
 * if the file cannot be written, or if an argument is out of range. */
GF_API gf_status gf_profile_open(const gf_options*, const gf_profile_config*,
                                 gf_profile** out);
/* Writes the file, if there is anything new. Accepts NULL. */
GF_API void gf_profile_close(gf_profile*);

/* All in seconds. */
typedef struct {
  size_t struct_bytes;
  double forward;   /* From the end of the step before to the first gradient. */
  double backward;  /* From there until the last gradient was ready, */
  double wait;      /* and from there until all were exchanged. */
  double optimizer; /* An update after that, which ended before the next forward
                       began. */
  const double* ready; /* By tensor: after the first gradient. */
} gf_profile_times;
GF_API void gf_profile_times_init(gf_profile_times*);
/* GF_INVALID_ARGUMENT for a time that is negative or not finite; the step then
 * does not count. A file that cannot be written any more is an error, too, but
 * the step counts. */
GF_API gf_status gf_profile_add(gf_profile*, const gf_profile_times*);
GF_API gf_status gf_profile_skip(gf_profile*);

/* What ranks tell each other of their times, now and then: after the same steps
 * on all ranks, so that all take part in the sum. Sets *values to *count
 * numbers of the profile's, in the host's memory, for the caller to sum over
 * all ranks in place, or to NULL and 0 if nothing is due. */
GF_API gf_status gf_profile_tell(gf_profile*, double** values, size_t* count);
/* The sums are there. */
GF_API gf_status gf_profile_told(gf_profile*);

#ifdef __cplusplus
}
#endif
#endif /* INTEGRATIONS_C_GRADIENTFLOW_PROFILE_H_ */
