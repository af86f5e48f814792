#pragma once

#include <memory>
#include <vector>

#include "gradientflow/base/status.h"
#include "transports/arena.h"
#include "transports/link.h"
#include "transports/poller.h"
#include "transports/shm/shm_options.h"

namespace gradientflow {

// Ranks that are threads of this process: the same links, FIFOs and arenas as
// between processes, with nothing to negotiate. One thread per rank may use
// Connect(rank) and arena(rank), all at the same time.
class InprocGroup {
 public:
  // Everything that any rank needs, so that Connect() waits for nobody.
  static Result<std::shared_ptr<InprocGroup>> Create(int size,
                                                     const ShmOptions& options);
  ~InprocGroup();
  InprocGroup(const InprocGroup&) = delete;
  InprocGroup& operator=(const InprocGroup&) = delete;

  int size() const;

  // result[r]: the link to rank r; null for `rank` itself. Once per rank. Both
  // arguments outlive the links, which may outlive the group. To its peers a
  // rank dies when its links are closed.
  Result<std::vector<std::unique_ptr<Link>>> Connect(int rank, Poller* poller,
                                                     LinkEvents* events);

  // Usable at once. To be used by the thread of `rank` only.
  SharedArena& arena(int rank);

 private:
  struct State;
  explicit InprocGroup(std::unique_ptr<State> state);

  const std::unique_ptr<State> state_;
};

}  // namespace gradientflow
