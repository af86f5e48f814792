#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "gradientflow/base/fd.h"
#include "gradientflow/base/status.h"
#include "transports/tcp/addresses.h"

namespace gradientflow {

// Owns the descriptor of a TCP socket.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}

  int fd() const { return fd_.get(); }
  bool valid() const { return fd_.valid(); }
  void Close() { fd_.Reset(); }

 private:
  Fd fd_;
};

// Returns a text like "Connection refused".
std::string ErrorText(int error);
// Returns kResourceExhausted if descriptors or memory have run out, else
// `code`.
Status SocketError(StatusCode code, std::string_view what, int error);

// All sockets are non-blocking and close-on-exec. `buffer_bytes` is the size of
// the buffer of each direction; 0 leaves it to the kernel's tuning.
Result<Socket> ListenOn(const SocketAddress& at, std::size_t buffer_bytes);
// Begins to connect. ConnectError() tells the result once the socket is
// writable. If connecting fails at once, `error`, unless null, gets errno.
Result<Socket> StartConnect(const SocketAddress& to, std::size_t buffer_bytes,
                            int* error = nullptr);
int ConnectError(const Socket& socket);  // errno, or 0 if connected.
// After an error of ConnectError(): whether a message of the network (ICMP), as
// a firewall sends it, was the reason. A host resets connections to a port at
// which no process listens.
bool WasRefusedOnTheWay(const Socket& socket);
// Returns an invalid Socket if no connection is waiting, or it has gone again.
Result<Socket> Accept(const Socket& listener);

// Prepares a connection that carries messages: no delay, and keep-alive, so
// that an idle peer whose machine has vanished is noticed.
Status PrepareConnection(const Socket& socket);

// Gives it this congestion control, which may be empty: then nothing changes.
// kInvalidArgument says which ones there are.
Status SetCongestion(const Socket& socket, std::string_view name);

SocketAddress LocalAddress(const Socket& socket);
SocketAddress PeerAddress(const Socket& socket);

// Return the number of bytes moved; 0 if the peer has closed (Receive() only);
// -EAGAIN if nothing can be moved at present; or another -errno. Never raise
// SIGPIPE.
std::int64_t Receive(const Socket& socket, void* to, std::size_t bytes);
// As Receive(), but the bytes stay there.
std::int64_t Peek(const Socket& socket, void* to, std::size_t bytes);
// Returns whether the next thing to read is the end of the connection, or an
// error.
bool HasEnded(const Socket& socket);
std::int64_t Send(const Socket& socket, const void* from, std::size_t bytes);

// What one call of the next two should move at most, so that connections that
// share a thread take turns.
inline constexpr std::size_t kMostPiecesAtOnce = 128;
inline constexpr std::size_t kMostBytesAtOnce = std::size_t{512} << 10;

// As Receive() and Send(), into and from several pieces of memory (at least
// one), for a descriptor that the caller keeps open.
std::int64_t ReceivePieces(int fd, std::span<const iovec> pieces);
std::int64_t SendPieces(int fd, std::span<const iovec> pieces);

}  // namespace gradientflow
