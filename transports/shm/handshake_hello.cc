#include <unistd.h>

#include <algorithm>
#include <string>

#include "gradientflow/base/str_cat.h"
#include "transports/shm/handshake.h"

// What a rank says of itself to a peer of its host, and believes of it.
namespace gradientflow {

Bits256 ShmHandshake::ProofOf(int from, int to) const {
  const int lower = std::min(from, to);
  const std::string& name =
      lower == args_.rank ? listener_.name : args_.addresses[lower];
  return HmacSha256(View(args_.secret),
                    StrCat("shm ", from, " ", to, " ", name));
}

Status ShmHandshake::CheckHello(const Hello& hello) const {
  if (!IsPeer(hello.rank) ||
      !EqualBits(hello.proof, ProofOf(hello.rank, args_.rank))) {
    return Status(StatusCode::kDataLoss,
                  StrCat("rank ", hello.rank, " of another session (pid ",
                         hello.pid, ")"));
  }
  if (hello.size != args_.size) {
    return Status(StatusCode::kDataLoss,
                  StrCat("rank ", hello.rank, " (pid ", hello.pid,
                         "): expected a job of size ", args_.size, ", seen ",
                         hello.size));
  }
  return Status();
}

Hello ShmHandshake::HelloTo(int rank) const {
  Hello hello;
  hello.rank = args_.rank;
  hello.size = args_.size;
  hello.pid = ::getpid();
  hello.proof = ProofOf(args_.rank, rank);
  hello.arena_bytes = arena_->mapping()->bytes();
  hello.fifo_offset = fifo_offsets_[rank];
  hello.fifo_bytes = fifo_bytes_;
  return hello;
}

}  // namespace gradientflow
