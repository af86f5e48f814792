/* One rank of MPI's collectives for collectives.py, with the protocol of
 * worker.h on a socket, since mpirun has one standard input for all ranks.
 *
 *   mpirun ... openmpi_peer SOCKET MOST_BYTES */
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static int rank, size;
static float *data, *other;

static float Value(int of, size_t i) {
  const size_t at = i % 1009;
  return (float)((at * at + (size_t)(13 * of)) % 11) - 5;
}

static void Call(const char* name, size_t count, int root) {
  const int n = (int)count;
  const MPI_Comm all = MPI_COMM_WORLD;
  if (strcmp(name, "allreduce") == 0) {
    MPI_Allreduce(MPI_IN_PLACE, data, n, MPI_FLOAT, MPI_SUM, all);
  } else if (strcmp(name, "broadcast") == 0) {
    MPI_Bcast(data, n, MPI_FLOAT, root, all);
  } else if (strcmp(name, "reduce") == 0) {
    MPI_Reduce(other, data, n, MPI_FLOAT, MPI_SUM, root, all);
  } else if (strcmp(name, "allgather") == 0) {
    MPI_Allgather(other, n, MPI_FLOAT, data, n, MPI_FLOAT, all);
  } else if (strcmp(name, "reduce_scatter") == 0) {
    MPI_Reduce_scatter_block(other, data, n, MPI_FLOAT, MPI_SUM, all);
  } else if (strcmp(name, "all_to_all") == 0) {
    MPI_Alltoall(other, n, MPI_FLOAT, data, n, MPI_FLOAT, all);
  } else if (strcmp(name, "gather") == 0) {
    MPI_Gather(other, n, MPI_FLOAT, data, n, MPI_FLOAT, root, all);
  } else if (strcmp(name, "scatter") == 0) {
    MPI_Scatter(other, n, MPI_FLOAT, data, n, MPI_FLOAT, root, all);
  } else {
    MPI_Abort(all, 1);
  }
}

/* Only sums of all ranks are checked. */
static size_t Check(const char* name, size_t count) {
  size_t wrong = 0;
  if (strcmp(name, "allreduce") != 0) return 0;
  for (size_t i = 0; i < count; ++i) data[i] = Value(rank, i);
  Call(name, count, 0);
  for (size_t i = 0; i < count; ++i) {
    float expected = 0;
    for (int r = 0; r < size; ++r) expected += Value(r, i);
    wrong += data[i] != expected;
  }
  memset(data, 0, count * sizeof(float));
  return wrong;
}

static long long Now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* As in worker.cc: a call with a root begins at a moment that all agree on. */
static double Timed(const char* name, size_t count, int root, int warmup,
                    int iterations) {
  const long long run_up = 2000000;
  long long nanoseconds = 0;
  for (int i = 0; i < warmup; ++i) Call(name, count, root);
  MPI_Barrier(MPI_COMM_WORLD);
  if (root < 0) {
    const long long begin = Now();
    for (int i = 0; i < iterations; ++i) Call(name, count, root);
    return 1e-9 * (Now() - begin) / iterations;
  }
  for (int i = 0; i < iterations; ++i) {
    long long begin = Now() + run_up;
    MPI_Allreduce(MPI_IN_PLACE, &begin, 1, MPI_LONG_LONG, MPI_MAX,
                  MPI_COMM_WORLD);
    while (Now() < begin) sched_yield();
    Call(name, count, root);
    nanoseconds += Now() - begin;
  }
  return 1e-9 * nanoseconds / iterations;
}

int main(int argc, char** argv) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  char line[512], name[32];
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const size_t most = argc == 3 ? strtoull(argv[2], NULL, 10) : 0;
  data = calloc(most + 1, 1);
  other = calloc(most + 1, 1);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (argc != 3 || data == NULL || other == NULL || fd < 0)
    MPI_Abort(MPI_COMM_WORLD, 1);
  snprintf(address.sun_path, sizeof(address.sun_path), "%s", argv[1]);
  if (connect(fd, (struct sockaddr*)&address, sizeof(address)) != 0) {
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  FILE* in = fdopen(fd, "r");
  FILE* out = fdopen(dup(fd), "w");
  fprintf(out, "ready\n");
  fflush(out);
  while (fgets(line, sizeof(line), in) != NULL) {
    size_t bytes = 0;
    int warmup = 0, iterations = 1, check = 0, root = -1;
    if (sscanf(line, "%zu %d %d %d %d %31s", &bytes, &warmup, &iterations,
               &check, &root, name) != 6 ||
        root >= size) {
      fprintf(out, "error not a batch: %s", line);
    } else if (check) {
      fprintf(out, "ok 0 %zu\n", Check(name, bytes / sizeof(float)));
    } else {
      fprintf(out, "ok %.9g 0\n",
              Timed(name, bytes / sizeof(float), root, warmup, iterations));
    }
    fflush(out);
  }
  MPI_Finalize();
  return 0;
}
