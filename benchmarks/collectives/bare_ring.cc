// The bare ring: one rank of `bare_ring MOST_BYTES RANK RANKS TO FROM`. TO and
// FROM are descriptors: the connections to the next rank and from the previous
// one. The ranks run a ring allreduce of float32 with nothing but send, recv,
// poll and a loop that adds:
//
//   previous rank -> recv -> landing -> added to a block   (the first ranks - 1
//                            a block                        steps)  (the
//                            others)
//   the block that came in the step before -> send -> next rank
//
// What has come of a block is passed on before the rest is there. The words of
// a batch are the most bytes of one recv and of one send.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "benchmarks/collectives/bare_sockets.h"
#include "benchmarks/collectives/worker.h"

namespace gradientflow::benchmarks {
namespace {

[[gnu::target_clones("avx2", "default")]] void Add(float* __restrict sum,
                                                   const float* __restrict more,
                                                   std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) sum[i] += more[i];
}

class BareRing final : public Worker {
 public:
  BareRing(std::size_t most_bytes, int rank, int ranks, int to, int from)
      : to_(to),
        from_(from),
        rank_(rank),
        ranks_(ranks),
        buffer_(most_bytes / sizeof(float)),
        token_(static_cast<std::size_t>(ranks)) {}

  void Prepare(const Batch& batch) override {
    count_ = batch.bytes / sizeof(float);
    landing_.resize(std::stoul(batch.words.at(0)) / sizeof(float));
    most_sent_ = std::stoul(batch.words.at(1));
  }
  void Once() override { Reduce(buffer_.data(), count_); }
  void Barrier() override { Reduce(token_.data(), token_.size()); }

  std::uint64_t CountWrong() override {
    FillPattern(DType::kFloat32, rank_, count_, buffer_.data());
    Once();
    const std::uint64_t wrong = CountUnexpected(DType::kFloat32, {0, ranks_, 0},
                                                count_, buffer_.data());
    std::fill(buffer_.begin(), buffer_.end(), 0.0F);
    return wrong;
  }

 private:
  // How far a direction is: in the step's block, in bytes.
  struct Place {
    int step = 0;
    std::size_t done = 0;
  };

  int steps() const { return 2 * (ranks_ - 1); }
  std::size_t BlockBegin(int block) const {
    return length_ * static_cast<std::size_t>(block) /
           static_cast<std::size_t>(ranks_) * sizeof(float);
  }
  // In step s a rank sends block rank - s, which came in step s - 1.
  int BlockOf(int step) const { return (rank_ - step + 2 * ranks_) % ranks_; }
  std::size_t BlockBytes(int block) const {
    return BlockBegin(block + 1) - BlockBegin(block);
  }
  // Goes to the next step that has bytes if this one is over.
  void Settle(Place* place, int ahead) const {
    while (place->step < steps() &&
           place->done == BlockBytes(BlockOf(place->step + ahead))) {
      *place = {place->step + 1, 0};
    }
  }
  // The bytes that may be sent now.
  std::size_t Sendable() const {
    if (out_.step >= steps()) return 0;
    if (out_.step == 0 || out_.step <= in_.step) {
      return BlockBytes(BlockOf(out_.step)) - out_.done;
    }
    return out_.step - 1 == in_.step ? in_.done - out_.done : 0;
  }

  bool Send() {
    const std::size_t bytes = Sendable();
    if (bytes == 0) return false;
    const std::size_t sent =
        Moved(send(to_, data_ + BlockBegin(BlockOf(out_.step)) + out_.done,
                   std::min(bytes, most_sent_), MSG_DONTWAIT | MSG_NOSIGNAL));
    out_.done += sent;
    Settle(&out_, 0);
    return sent > 0;
  }

  bool Receive() {
    if (in_.step >= steps()) return false;
    const int block = BlockOf(in_.step + 1);
    std::byte* const to = data_ + BlockBegin(block) + in_.done;
    const std::size_t left = BlockBytes(block) - in_.done;
    std::size_t got = 0;
    if (in_.step >= ranks_ - 1) {
      got = Moved(recv(from_, to, left, MSG_DONTWAIT));
      in_.done += got;
    } else {
      got =
          Moved(recv(from_, landed() + landed_,
                     std::min(left, landing_.size() * sizeof(float)) - landed_,
                     MSG_DONTWAIT));
      landed_ += got;
      const std::size_t whole = landed_ / sizeof(float);
      Add(reinterpret_cast<float*>(to), landing_.data(), whole);
      in_.done += whole * sizeof(float);
      landed_ %= sizeof(float);
      std::memmove(landed(), landing_.data() + whole, landed_);
    }
    Settle(&in_, 1);
    return got > 0;
  }

  void Reduce(float* data, std::size_t count) {
    data_ = reinterpret_cast<std::byte*>(data);
    length_ = count;
    out_ = in_ = {};
    Settle(&out_, 0);
    Settle(&in_, 1);
    while (out_.step < steps() || in_.step < steps()) {
      const bool sent = Send();
      if (Receive() || sent) continue;
      pollfd fds[] = {{in_.step < steps() ? from_ : -1, POLLIN, 0},
                      {Sendable() > 0 ? to_ : -1, POLLOUT, 0}};
      poll(fds, 2, -1);
    }
  }

  std::byte* landed() { return reinterpret_cast<std::byte*>(landing_.data()); }

  const int to_;
  const int from_;
  const int rank_;
  const int ranks_;
  std::vector<float> buffer_;
  std::vector<float> token_;
  std::vector<float> landing_;
  std::size_t landed_ = 0;  // Bytes in it.
  std::size_t most_sent_ = 0;
  std::size_t count_ = 0;
  std::byte* data_ = nullptr;
  std::size_t length_ = 0;  // In elements.
  Place out_;
  Place in_;
};

}  // namespace
}  // namespace gradientflow::benchmarks

int main(int argc, char** argv) {
  using namespace gradientflow::benchmarks;  // NOLINT: a main().
  if (argc != 6) return 2;
  BareRing worker(std::strtoull(argv[1], nullptr, 10), std::atoi(argv[2]),
                  std::atoi(argv[3]), std::atoi(argv[4]), std::atoi(argv[5]));
  return ServeBatches(worker);
}
