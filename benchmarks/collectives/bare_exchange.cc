// The bare exchange: one of two ranks of `bare_exchange SOCKET...`, with a
// descriptor per connection. The ranks send each other the bytes of a batch at
// the same time, from and to memory that stays in the caches. Nothing is
// reduced, and only the sockets move bytes: this is the least that an allreduce
// of two ranks by messages has to do. It uses nothing but send, recv and poll.
//
// The best way to move the bytes is not known beforehand, so the driver tries
// several and takes the fastest as the bound. The words of a batch describe the
// way: the number of connections to use, the most bytes of one send or receive,
// and whether to spin (1) or block (0) when nothing moves.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>

#include "benchmarks/collectives/bare_sockets.h"
#include "benchmarks/collectives/worker.h"

namespace gradientflow::benchmarks {
namespace {

// Small exchanges end before a sleeping thread would be awake.
constexpr std::size_t kSmallBytes = std::size_t{256} << 10;
constexpr int kSpins = 2000;
// What is sent repeats, so that any part of it lies in little memory.
constexpr std::size_t kPeriod = std::size_t{64} * 251;

std::byte ByteAt(std::size_t i) {
  return static_cast<std::byte>(i % kPeriod / 64);
}

// The traffic of one connection, both ways at once.
struct Stream {
  int fd = -1;
  std::vector<std::byte> in = {};  // Each receive begins at its start.
  std::size_t bytes = 0;
  std::size_t sent = 0;
  std::size_t received = 0;
  bool done() const { return sent == bytes && received == bytes; }
};

class BareExchange final : public Worker {
 public:
  explicit BareExchange(const std::vector<int>& sockets) {
    for (const int fd : sockets) all_.push_back({fd});
  }

  void Prepare(const Batch& batch) override {
    used_ = std::min<std::size_t>(all_.size(), std::stoul(batch.words.at(0)));
    call_bytes_ = std::stoul(batch.words.at(1));
    spins_ = batch.words.at(2) == "1" || batch.bytes <= kSmallBytes;
    bytes_ = batch.bytes;
    for (Stream& stream : all_) stream.in.resize(call_bytes_);
    out_.resize(kPeriod + call_bytes_);
    for (std::size_t i = 0; i < out_.size(); ++i) out_[i] = ByteAt(i);
  }
  void Once() override { Exchange(bytes_); }
  void Barrier() override { Exchange(1); }

  std::uint64_t CountWrong() override {
    std::uint64_t wrong = 0;
    wrong_ = &wrong;
    Exchange(bytes_);
    wrong_ = nullptr;
    return wrong;
  }

 private:
  // Each moves as much as one call can, and returns whether that is any.
  bool Send(Stream& stream) const {
    if (stream.sent == stream.bytes) return false;
    const std::size_t n =
        Moved(send(stream.fd, &out_[stream.sent % kPeriod],
                   std::min(stream.bytes - stream.sent, call_bytes_),
                   MSG_DONTWAIT | MSG_NOSIGNAL));
    stream.sent += n;
    return n > 0;
  }
  bool Receive(Stream& stream) const {
    if (stream.received == stream.bytes) return false;
    const std::size_t n = Moved(recv(
        stream.fd, stream.in.data(),
        std::min(stream.bytes - stream.received, call_bytes_), MSG_DONTWAIT));
    for (std::size_t i = 0; wrong_ != nullptr && i < n; ++i) {
      *wrong_ += stream.in[i] != ByteAt(stream.received + i) ? 1 : 0;
    }
    stream.received += n;
    return n > 0;
  }

  // Gives each connection a share of the bytes.
  void Exchange(std::size_t bytes) {
    for (std::size_t i = 0; i < used_; ++i) {
      Stream& stream = all_[i];
      stream.bytes = bytes * (i + 1) / used_ - bytes * i / used_;
      stream.sent = stream.received = 0;
    }
    for (int idle = 0;;) {
      bool moved = false;
      bool done = true;
      for (std::size_t i = 0; i < used_; ++i) {
        moved |= Send(all_[i]);
        moved |= Receive(all_[i]);
        done &= all_[i].done();
      }
      if (done) return;
      idle = moved ? 0 : idle + 1;
      if (idle > (spins_ ? kSpins : 0)) Block();
    }
  }

  void Block() const {
    std::vector<pollfd> fds;
    for (std::size_t i = 0; i < used_; ++i) {
      const Stream& stream = all_[i];
      const int in = stream.received < stream.bytes ? POLLIN : 0;
      const int out = stream.sent < stream.bytes ? POLLOUT : 0;
      fds.push_back(
          {in + out == 0 ? -1 : stream.fd, static_cast<short>(in | out), 0});
    }
    poll(fds.data(), fds.size(), -1);
  }

  std::vector<Stream> all_;
  std::vector<std::byte> out_;
  std::size_t used_ = 1;
  std::size_t call_bytes_ = 1;
  bool spins_ = false;
  std::size_t bytes_ = 0;
  std::uint64_t* wrong_ = nullptr;  // Where wrong bytes are counted, if at all.
};

}  // namespace
}  // namespace gradientflow::benchmarks

int main(int argc, char** argv) {
  using namespace gradientflow::benchmarks;  // NOLINT: a main().
  std::vector<int> sockets;
  for (int i = 1; i < argc; ++i) sockets.push_back(std::atoi(argv[i]));
  BareExchange worker(sockets);
  return ServeBatches(worker);
}
