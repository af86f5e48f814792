/* GradientFlow's C API: stable C99 that raises no exceptions, so that Python's
 * ctypes and other languages can call it too.
 *
 * A gf_comm is a rank's part in a job: its links, collectives and messages. A
 * gf_session holds the gradients of one model on a gf_comm, and exchanges them
 * in steps. Several sessions may share a gf_comm.
 *
 *   gradientflow_base.h     statuses, types, settings
 *   gradientflow_comm.h     joining a job, its collectives and messages
 *   gradientflow_session.h  gradients and their steps
 *
 * Two more headers are for frameworks that exchange gradients by themselves:
 * gradientflow_csc.h and gradientflow_profile.h.
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

#include "gradientflow_base.h"    /* IWYU pragma: export */
#include "gradientflow_comm.h"    /* IWYU pragma: export */
#include "gradientflow_session.h" /* IWYU pragma: export */

#endif /* INTEGRATIONS_C_GRADIENTFLOW_H_ */
