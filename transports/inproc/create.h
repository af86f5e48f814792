#pragma once

#include <memory>
#include <vector>

#include "gradientflow/base/status.h"
#include "transports/arena.h"
#include "transports/link.h"
#include "transports/poller.h"
#include "transports/shm/shm_options.h"

namespace gradientflow {

// Ranks that are threads of one process. They use the same links, FIFOs and
// arenas as processes do, but have nothing to negotiate. One thread per rank
// may call Connect(rank) and arena(rank), all at the same time.
class InprocGroup {
 public:
  // Makes everything that any rank needs, so that Connect() waits for no one.
  static Result<std::shared_ptr<InprocGroup>> Create(int size,
                                                     const ShmOptions& options);
  ~InprocGroup();
  InprocGroup(const InprocGroup&) = delete;
  InprocGroup& operator=(const InprocGroup&) = delete;

  int size() const;

  // Returns the links of `rank`, by peer; result[rank] is null. May be called
  // once per rank. Both arguments outlive the links, which may outlive the
  // group. Its peers see a rank die when its links are closed.
  Result<std::vector<std::unique_ptr<Link>>> Connect(int rank, Poller* poller,
                                                     LinkEvents* events);

  // Can be used at once, by the thread of `rank` only.
  SharedArena& arena(int rank);

 private:
  struct State;
  explicit InprocGroup(std::unique_ptr<State> state);

  const std::unique_ptr<State> state_;
};

}  // namespace gradientflow
