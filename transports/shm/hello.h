#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "gradientflow/base/fd.h"
#include "gradientflow/base/secret.h"
#include "gradientflow/base/status.h"

namespace gradientflow {

// What two processes of a host send each other before there is a link. All
// hellos have the same length, and native byte order, since both are on one
// machine.
struct Hello {
  static constexpr std::uint64_t kMagic = 0x6f6c6c6568464721;
  static constexpr std::uint32_t kVersion = 4;
  enum Kind : std::uint32_t {
    kOffer = 1,   // The first, each way, with the sender's arena.
    kReady = 2,   // The sender has all it needs from its peers.
    kFailed = 3,  // At any time: the job fails, for `why`.
    // Instead of an offer or kReady: the sender cannot use the receiver's
    // memory, or has none for it, for `why`, and will not be linked to it.
    kDeclined = 4,
  };
  std::uint64_t magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t kind = kOffer;
  std::int32_t rank = 0;  // The sender's.
  std::int32_t size = 0;
  std::int32_t pid = 0;
  StatusCode code = StatusCode::kOk;  // For kFailed and kDeclined.
  Bits256 proof = {};                 // See ShmHandshake::ProofOf().
  std::uint64_t arena_bytes = 0;
  // The FIFO in the sender's arena that the receiver of this hello writes to.
  std::uint64_t fifo_offset = 0;
  std::uint64_t fifo_bytes = 0;
  std::array<char, 1024> why = {};  // Ends with a zero.
};

struct ReceivedHello {
  Hello hello;
  Fd memory;  // Only with an offer.
  // kResourceExhausted if there is no descriptor here for the one that came.
  Status memory_lost;
};

// Make a hello say why its sender failed, and read that from a hello.
void SetFailure(const Status& why, Hello* hello);
Status FailureOf(const Hello& hello);

// A listening socket under an unguessable abstract name, which vanishes with
// it.
struct ShmListener {
  Fd socket;
  std::string name;
};
Result<ShmListener> ListenAbstract();

// Returns a non-blocking connection to `name`, or an invalid Fd if the queue of
// the listener is full at present.
Result<Fd> ConnectAbstract(const std::string& name);

// Returns an invalid Fd if no connection is waiting, and kResourceExhausted if
// there is no descriptor for it.
Result<Fd> AcceptAbstract(const Fd& listener);

// `memory` is the descriptor of the arena in an offer, else -1.
Status SendHello(const Fd& socket, const Hello& hello, int memory);

// REQUIRES a readable socket. Returns kUnavailable if the peer hung up, and
// kDataLoss if it sent anything but a hello of this version, or an offer
// without exactly one descriptor.
Result<ReceivedHello> ReceiveHello(const Fd& socket);

// Returns kDataLoss unless the process at the other end runs as the same user.
Status CheckPeerUser(const Fd& socket);

// Returns a descriptor that becomes readable when the process of the peer ends.
// It is invalid if the kernel cannot tell, or if `pid`, which the peer claims,
// is not what the kernel reports (in another PID namespace, for example).
Fd WatchProcess(const Fd& socket, int pid);

}  // namespace gradientflow
