#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "gradientflow/base/buffer.h"
#include "gradientflow/base/done.h"
#include "gradientflow/base/status.h"

namespace gradientflow {

// The most network cards, or ports of them, that a rank may use at a time.
inline constexpr std::size_t kMostRails = 4;

// A place in the memory of some rank where its peers may write. Only the rank
// that named it knows what the numbers mean, and only its network card checks
// them: a wrong one harms nobody else.
struct RemotePlace {
  std::uint64_t address = 0;
  std::uint32_t key = 0;
  // The keys by which the rank's other cards know the same memory.
  std::array<std::uint32_t, kMostRails - 1> more_keys = {};

  RemotePlace At(std::size_t offset) const {
    return {address + offset, key, more_keys};
  }
  // The key for the rank's `rail`-th card, counted from 0.
  std::uint32_t& KeyOf(std::size_t rail) {
    return rail == 0 ? key : more_keys[rail - 1];
  }
};

// Memory of an accelerator, and how the network card may be told of it.
struct DeviceBuffer {
  BufferView memory;  // Which the processor need not be able to touch.
  // A file descriptor that stands for the memory, whose first byte is `offset`
  // bytes into it. It is borrowed for the call that takes the buffer. -1 if
  // there is none; `no_dma_buf` then says why.
  int dma_buf = -1;
  std::uint64_t offset = 0;
  std::string no_dma_buf = {};
};

// What comes with data: a number of at most kNoticeBits, which is told to the
// owner of the memory once all bytes are in place.
inline constexpr int kNoticeBits = 30;
// The most pieces of memory that one message is made of.
inline constexpr std::size_t kMostPutPieces = 2;

// Writes into the memory of peers without their participation: placed messages
// between hosts are made of this. A transport offers it if its links can do
// that. Its counterpart within a host is SharedArena, whose memory peers can
// also read.
//
// Every rank has slot memory of the same size, in which its peers write where
// the collective's schedule says. Other memory can be reached if it was
// allocated or lent here, and that of accelerators if it was attached.
// NOT thread-safe: driven by the thread that drives the fabric.
class RemotePlaces {
 public:
  class Sink {
   public:
    virtual ~Sink() = default;
    // `peer` has put something here. Each notice comes once. Those of one peer
    // come in any order, since its Put()s may take different ways. Called only
    // from Fabric::Poll().
    virtual void OnNotice(int peer, std::uint32_t notice) = 0;
  };

  virtual ~RemotePlaces() = default;

  // From now on tells `sink` of notices, including those that came before. The
  // sink outlives this object's links, or is replaced by null: from then on no
  // `done` of a Put() runs either, since its caller is gone as well.
  virtual void SetSink(Sink* sink) = 0;

  // This rank's slot memory: 4096-aligned and zeroed, of the same size on all
  // ranks, writable for all peers.
  virtual BufferView slots() const = 0;
  // Where the slot memory of `peer` begins.
  virtual RemotePlace SlotsOf(int peer) const = 0;

  // Returns `bytes` more of such memory, 4096-aligned and zeroed. They stay
  // valid until Free(). kResourceExhausted says which limit is in the way.
  virtual Result<BufferView> Allocate(std::size_t bytes) = 0;
  virtual void Free(BufferView memory) = 0;
  // Lets the network card reach memory that Allocate() did not return, until
  // Withdraw(). It consists of whole pages that are mapped shared. Errors as
  // Allocate().
  virtual Status Lend(BufferView memory) = 0;
  virtual void Withdraw(BufferView memory) = 0;

  // Lets the network card read and write memory of an accelerator directly,
  // until Detach(), which has to come before the memory is freed. Returns how:
  // "dma-buf" or "nvidia-peermem". kUnavailable has the reason against each,
  // and what may be done about it. The card reads what the accelerator has
  // written before the Put(). What the card has written becomes visible to the
  // accelerator by Device::FlushRemoteWrites().
  virtual Result<std::string> Attach(const DeviceBuffer& buffer) = 0;
  virtual void Detach(const std::byte* data) = 0;

  // Returns whether the network card can read [data, data + bytes) here and
  // write there for peers: in slots(), in what Allocate() gave, and in what
  // was lent or attached.
  virtual bool Reaches(const void* data, std::size_t bytes) const = 0;
  // The name by which peers can write to `data`. REQUIRES Reaches(data, 1).
  virtual RemotePlace NameOf(const void* data) const = 0;

  // Writes the pieces (at most kMostPutPieces, which are lent until `done`
  // runs, and which Reaches()) one behind another to `there`, in the memory of
  // `peer`, and then gives it the notice. `done` runs in Fabric::Poll() when
  // the memory may be changed, which is not when the notice has arrived; it may
  // be empty. (What the peer writes there because it was given the notice does
  // no harm.) Never blocks, and runs nothing.
  //
  // Before the link of a peer that leaves in good order is down, that peer has
  // got all notices, this rank has got the peer's, and every `done` has run. If
  // the fabric fails, `done` does not run, and once the links are closed
  // nothing touches any memory. A Put() to a peer that is down does nothing.
  virtual void Put(int peer, std::span<const ConstBufferView> pieces,
                   RemotePlace there, std::uint32_t notice, Done done) = 0;
};

}  // namespace gradientflow
