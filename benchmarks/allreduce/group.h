#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/allreduce/batch.h"
#include "gradientflow/base/status.h"

namespace gradientflow::benchmarks {

// What a rank process of a group does with a batch, in step with its peers.
class Worker {
 public:
  virtual ~Worker() = default;
  virtual Result<Outcome> Run(const Batch& batch) = 0;
};

// A process of a group. `main` runs in a child and returns its exit status;
// descriptors other than `keep` and the standard ones are closed there.
struct Program {
  std::function<int()> main;
  std::vector<int> keep;
};

// Processes that run the same batches together, told over a socket; between
// batches they block and use no processor. Ranks tell by themselves: one
// program may start several.
class Group {
 public:
  // Starts `programs` and waits for `ranks` ranks to report at
  // `<folder>/<name>`. REQUIRES: no other threads in this process.
  static Result<std::unique_ptr<Group>> Start(
      const std::string& folder, const std::string& name, int ranks,
      const std::vector<Program>& programs);
  ~Group();  // Ends them, by force if need be.
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const std::string& name() const { return name_; }

  // The slowest rank's time and all wrong elements.
  Result<Outcome> Run(const Batch& batch);

 private:
  explicit Group(std::string name) : name_(std::move(name)) {}
  Status Accept(int listener, int ranks);
  Status Expect(int connection);
  bool AnyEnded();
  Result<std::string> ReadLine(int connection, std::string& buffer);

  const std::string name_;
  std::vector<pid_t> pids_;
  std::vector<int> connections_;
  std::vector<std::string> buffers_;  // Read ahead, by connection.
};

// The socket at which a rank process of `name` reports.
std::string SocketPath(const std::string& folder, const std::string& name);

// The life of a rank process: connects to `path`, makes its worker, serves
// batches until the other side closes. Returns the exit status.
int Serve(const std::string& path,
          const std::function<Result<std::unique_ptr<Worker>>()>& make);

}  // namespace gradientflow::benchmarks
