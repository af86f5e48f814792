#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "gradientflow/base/fd.h"
#include "gradientflow/base/status.h"

namespace gradientflow {

// What two processes of a host say to each other before there is a link, all of
// it of one length. Same machine: native byte order.
struct Hello {
  static constexpr std::uint64_t kMagic = 0x6f6c6c6568464721;
  static constexpr std::uint32_t kVersion = 2;
  enum Step : std::uint32_t {
    kOffer = 1,   // The first, each way; the sender's arena travels along.
    kReady = 2,   // The sender has all that it needs of all of its peers.
    kFailed = 3,  // At any time: nobody goes on, for `why`.
  };
  std::uint64_t magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t step = kOffer;
  std::int32_t rank = 0;  // The sender's.
  std::int32_t size = 0;
  std::int32_t pid = 0;
  StatusCode code = StatusCode::kOk;  // kFailed only.
  std::uint64_t session_key = 0;
  std::uint64_t arena_bytes = 0;
  // In the sender's arena: what its receiver shall write to.
  std::uint64_t fifo_offset = 0;
  std::uint64_t fifo_bytes = 0;
  std::array<char, 1024> why = {};  // Ends with a zero.
};

struct ReceivedHello {
  Hello hello;
  Fd memory;  // Of an offer.
};

// Makes a hello say `why` its sender failed, and takes that from one.
void SetFailure(const Status& why, Hello* hello);
Status FailureOf(const Hello& hello);

// A listening socket under an unguessable abstract name, which goes with it.
struct ShmListener {
  Fd socket;
  std::string name;
};
Result<ShmListener> ListenAbstract();

// A non-blocking connection to `name`; an invalid Fd if the listener's queue
// is full at the moment.
Result<Fd> ConnectAbstract(const std::string& name);

// An invalid Fd if nobody waits.
Fd AcceptAbstract(const Fd& listener);

// `memory`: of the arena that is offered; -1: none.
Status SendHello(const Fd& socket, const Hello& hello, int memory);

// REQUIRES a readable socket. kUnavailable if the peer hung up, kDataLoss if
// it sent anything but a hello of this version, an offer with one descriptor.
Result<ReceivedHello> ReceiveHello(const Fd& socket);

// kDataLoss unless the process at the other end runs as this one's user.
Status CheckPeerUser(const Fd& socket);

// Readable once the peer's process has ended. Invalid where the kernel cannot
// tell, or where `pid`, which the peer said of itself, is not what the kernel
// says of it (another PID namespace, say).
Fd WatchProcess(const Fd& socket, int pid);

}  // namespace gradientflow
