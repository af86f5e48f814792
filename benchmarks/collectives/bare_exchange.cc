// The bare exchange: one of two ranks of `bare_exchange MOST_BYTES RANK
// END...`. The ENDs are descriptors, rank 0's and rank 1's of each connection
// in turn. The ranks send each other the bytes of a batch at the same time,
// from and to memory that stays in the caches. Nothing is reduced, and only the
// sockets move bytes: this is the least that an allreduce of two ranks by
// messages has to do. It uses nothing but send, recv and poll.
//
// The best way to move the bytes is not known beforehand, so the driver tries
// several and takes the fastest as the bound. The words of a batch describe the
// way: the number of connections to use, the most bytes of one send or receive,
// and whether to spin (1) or block (0) when nothing moves.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "benchmarks/collectives/worker.h"

namespace gradientflow::benchmarks {
namespace {

// Small exchanges end before a sleeping thread would be awake.
constexpr std::size_t kSmallBytes = std::size_t{256} << 10;
constexpr int kSpins = 2000;

// The traffic of one connection, both ways at once. The bytes lie in `window`
// bytes from `begin` on of either buffer, which are used over and over.
struct Stream {
  int fd = -1;
  std::size_t begin = 0;
  std::size_t window = 1;
  std::size_t bytes = 0;
  std::size_t sent = 0;
  std::size_t received = 0;
  bool done() const { return sent == bytes && received == bytes; }
};
using Streams = std::vector<Stream>;

// Returns whether a call with result `n` has moved bytes, and counts them.
// Throws if the other side is gone.
bool Moved(ssize_t n, std::size_t* done) {
  if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
    throw std::system_error(n == 0 ? 0 : errno, std::generic_category(),
                            "the other side is gone");
  }
  if (n > 0) *done += static_cast<std::size_t>(n);
  return n > 0;
}

class BareExchange final : public Worker {
 public:
  BareExchange(std::vector<int> sockets, std::size_t most_bytes)
      : sockets_(std::move(sockets)), out_(most_bytes), in_(most_bytes) {}

  void Prepare(const Batch& batch) override {
    used_ =
        std::min<std::size_t>(sockets_.size(), std::stoul(batch.words.at(0)));
    call_bytes_ = std::stoul(batch.words.at(1));
    spins_ = batch.words.at(2) == "1" || batch.bytes <= kSmallBytes;
    bytes_ = batch.bytes;
  }
  void Once() override { Exchange(Share(bytes_, call_bytes_)); }
  void Barrier() override { Exchange(Share(1, call_bytes_)); }

  // Checks that all bytes arrive once each, with buffers that hold all of them.
  std::uint64_t CountWrong() override {
    for (std::size_t i = 0; i < bytes_; ++i) {
      out_[i] = static_cast<std::byte>(i % 251);
    }
    std::fill_n(in_.begin(), bytes_, std::byte{255});
    Exchange(Share(bytes_, bytes_));
    std::uint64_t wrong = 0;
    for (std::size_t i = 0; i < bytes_; ++i) wrong += in_[i] != out_[i];
    return wrong;
  }

 private:
  // Gives each connection a share of the bytes, with a window of its own, or
  // memory for all of its bytes if the window holds all.
  Streams Share(std::size_t bytes, std::size_t window) const {
    const std::size_t most = std::min(window, out_.size() / used_);
    Streams streams(used_);
    for (std::size_t i = 0; i < used_; ++i) {
      const std::size_t begin = bytes * i / used_;
      const std::size_t share = bytes * (i + 1) / used_ - begin;
      streams[i] = {sockets_[i], window < bytes ? i * most : begin,
                    std::max<std::size_t>(window < bytes ? most : share, 1),
                    share};
    }
    return streams;
  }

  // Moves as much as one call can. `call` gets the place of the bytes in the
  // buffer, and their number. Returns whether that is any.
  template <typename Call>
  bool Move(const Stream& stream, std::size_t* done, Call call) const {
    if (*done == stream.bytes) return false;
    const std::size_t at = *done % stream.window;
    return Moved(
        call(stream.begin + at,
             std::min({stream.bytes - *done, call_bytes_, stream.window - at})),
        done);
  }
  bool MoveBoth(Stream& stream) {
    const bool sent = Move(stream, &stream.sent, [&](auto at, auto bytes) {
      return send(stream.fd, &out_[at], bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    });
    const bool got = Move(stream, &stream.received, [&](auto at, auto bytes) {
      return recv(stream.fd, &in_[at], bytes, MSG_DONTWAIT);
    });
    return sent || got;
  }

  void Exchange(Streams streams) {
    for (int idle = 0;;) {
      bool moved = false;
      bool done = true;
      for (Stream& stream : streams) {
        moved |= MoveBoth(stream);
        done &= stream.done();
      }
      if (done) return;
      idle = moved ? 0 : idle + 1;
      if (idle > (spins_ ? kSpins : 0)) Block(streams);
    }
  }

  static void Block(const Streams& streams) {
    std::vector<pollfd> fds;
    for (const Stream& stream : streams) {
      const int in = stream.received < stream.bytes ? POLLIN : 0;
      const int out = stream.sent < stream.bytes ? POLLOUT : 0;
      fds.push_back(
          {in + out == 0 ? -1 : stream.fd, static_cast<short>(in | out), 0});
    }
    poll(fds.data(), fds.size(), -1);
  }

  const std::vector<int> sockets_;
  std::vector<std::byte> out_;
  std::vector<std::byte> in_;
  std::size_t used_ = 1;
  std::size_t call_bytes_ = 1;
  bool spins_ = false;
  std::size_t bytes_ = 0;
};

}  // namespace
}  // namespace gradientflow::benchmarks

int main(int argc, char** argv) {
  using namespace gradientflow::benchmarks;  // NOLINT: a main().
  if (argc < 5) return 2;
  const int rank = std::atoi(argv[2]);
  std::vector<int> sockets;
  for (int i = 3; i < argc; ++i) {
    const int end = std::atoi(argv[i]);
    if (i % 2 == (3 + rank) % 2) {
      sockets.push_back(end);
    } else {
      close(end);  // Else nobody would notice that the other side is gone.
    }
  }
  BareExchange worker(std::move(sockets), std::strtoull(argv[1], nullptr, 10));
  return ServeBatches(worker);
}
