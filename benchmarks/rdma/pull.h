#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transports/rdma/card_memory.h"
#include "transports/rdma/rail.h"

namespace gradientflow::benchmarks {

// The allreduce of MiMatrix (arXiv 1802.02326) as its text has it, to show what
// that costs. The library's gdraa has the same two synchronisations in the data
// itself, and nobody may read its memory. With a one-way latency a:
//
//   synchronise   by a server: a message up, and one down        2a
//   read          my block from the pool of each other rank      2a
//   add
//   write         the sums into the pool of each, until it has
//                 acknowledged them                              2a
//   synchronise                                                  2a
//
// Rank 0 is the server, and needs no messages for itself.
class PullRank {
 public:
  // As those of BareRank.
  PullRank(const std::string& port, std::size_t rank, std::size_t ranks,
           std::size_t floats);
  ~PullRank();
  PullRank(const PullRank&) = delete;
  PullRank& operator=(const PullRank&) = delete;
  void Link(PullRank& other);

  std::size_t rank() const { return rank_; }
  float* data() { return pool_; }

  // Sums over all ranks. Returns when this rank is done; it yields while it
  // waits. REQUIRES that the number of ranks divides that of the floats.
  void Allreduce();

 private:
  // Towards one peer.
  struct End {
    ibv_qp* pair = nullptr;
    const float* pool = nullptr;  // The peer's, in its own memory.
    std::uint32_t key = 0;
  };

  void MakePair(std::size_t peer);
  void PostReceive(std::size_t peer);
  // Starts a read or a write of the block at `begin` of the peer's pool.
  void Move(ibv_wr_opcode what, std::size_t peer, float* here,
            std::size_t begin);
  void Notify(std::size_t peer);
  void Post(std::size_t peer, ibv_send_wr request);
  // Once all that was posted has ended.
  void AwaitCompletions();
  void AwaitNotices(std::size_t count);
  void Poll();
  void Synchronise();

  const std::size_t rank_;
  const std::size_t floats_;
  std::shared_ptr<Rail> rail_;
  CardMemory memory_;
  Registration registration_;
  ibv_cq* cq_ = nullptr;
  float* pool_ = nullptr;
  float* staging_ = nullptr;  // This rank's block, from each rank.
  std::vector<End> ends_;     // By rank.
  std::size_t under_way_ = 0;
  std::size_t notices_ = 0;  // That came, and were not awaited yet.
};

}  // namespace gradientflow::benchmarks
