#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transports/rdma/verbs_api.h"

// One end of a connection by bare verbs, for tests of what verbs do: a device
// with its domain, queue and channel, memory, and a queue pair.
namespace gradientflow {

// Where a pair is, as its peer must know.
struct VerbsAddress {
  ibv_gid gid = {};
  std::uint16_t lid = 0;
  std::uint32_t number = 0;
  std::uint32_t psn = 0;  // Of the first message that it sends.
};

struct VerbsEndOptions {
  int completions = 64;
  std::uint32_t sends = 16;
  std::uint32_t receives = 16;
  std::uint32_t inline_bytes = 32;
  std::size_t bytes = 1 << 16;  // Of memory.
  unsigned access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  unsigned pair_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  std::uint8_t timeout = 10;  // 4 ms.
  std::uint8_t retries = 6;
  std::uint8_t rnr_retries = 2;
  bool signals_all = false;
};

// Whether an event waits at this descriptor.
bool IsReadable(int fd);
bool MakeNonBlocking(int fd);

// Failures of verbs that it calls are failures of the test. NOT thread-safe.
class VerbsEnd {
 public:
  // Opens the device of that name. `move` is called while completions are
  // awaited.
  VerbsEnd(std::shared_ptr<const VerbsApi> verbs, const std::string& device,
           std::function<void()> move, const VerbsEndOptions& options = {});
  ~VerbsEnd();
  VerbsEnd(const VerbsEnd&) = delete;
  VerbsEnd& operator=(const VerbsEnd&) = delete;

  VerbsAddress address() const { return address_; }
  // The pair goes from RESET to INIT, and with the peer's address to RTS.
  void Init();
  void Connect(const VerbsAddress& peer);
  // The steps of Connect() after Init(); they return an errno.
  int ToReceive(const VerbsAddress& peer);
  int ToSend(std::uint32_t psn);
  // What these set, for tests that set something else.
  ibv_qp_attr Receiving(const VerbsAddress& peer) const;
  ibv_qp_attr Sending(std::uint32_t psn) const;
  static constexpr int kInitMask =
      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  static constexpr int kReceivingMask =
      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
      IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  static constexpr int kSendingMask = IBV_QP_STATE | IBV_QP_TIMEOUT |
                                      IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                      IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;

  // A request to write `bytes` from the offset `from` of this memory to the
  // offset `to` of the peer's. Valid until the next one is made.
  ibv_send_wr* Write(const VerbsEnd& peer, std::size_t from, std::size_t to,
                     std::uint32_t bytes);
  // The same with an immediate value, and signalled.
  ibv_send_wr* Notice(const VerbsEnd& peer, std::size_t from, std::size_t to,
                      std::uint32_t bytes, std::uint32_t value);
  ibv_send_wr* Message(std::size_t from, std::uint32_t bytes);
  int Post(ibv_send_wr* wr);
  // Receives into memory from an offset on, or without memory.
  int PostReceive(std::uint64_t id, std::size_t to, std::uint32_t bytes);
  int PostReceive(std::uint64_t id);

  // Waits for as many completions, for 10 s at most.
  std::vector<ibv_wc> Await(std::size_t count);
  // Those that there are.
  std::vector<ibv_wc> Poll();

  const VerbsApi& verbs() const { return *verbs_; }
  ibv_context* context() const { return context_; }
  ibv_pd* domain() const { return domain_; }
  ibv_comp_channel* channel() const { return channel_; }
  ibv_cq* queue() const { return queue_; }
  ibv_qp* pair() const { return pair_; }
  ibv_mr* region() const { return region_; }
  std::vector<char>& memory() { return memory_; }
  std::uint64_t At(std::size_t offset) const;
  // Destroys the pair now.
  void DestroyPair();
  // Leaves all as it is when this is destroyed, as a process that is killed.
  void Abandon() { abandoned_ = true; }

 private:
  void Open(const std::string& device);
  void ReadAddress();
  void MakePair();

  const std::shared_ptr<const VerbsApi> verbs_;
  const std::function<void()> move_;
  const VerbsEndOptions options_;
  bool abandoned_ = false;
  std::vector<char> memory_;
  ibv_context* context_ = nullptr;
  ibv_pd* domain_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* queue_ = nullptr;
  ibv_mr* region_ = nullptr;
  ibv_qp* pair_ = nullptr;
  ibv_port_attr port_ = {};
  std::uint8_t gid_index_ = 0;
  VerbsAddress address_;
  ibv_send_wr wr_ = {};
  ibv_sge sge_ = {};
};

}  // namespace gradientflow
