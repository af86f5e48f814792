#include "tests/rdma/verbs_end.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

namespace gradientflow {
namespace {

// An IPv4 address.
bool IsMapped(const ibv_gid& gid) {
  return std::all_of(gid.raw, gid.raw + 10, [](int b) { return b == 0; }) &&
         gid.raw[10] == 0xFF && gid.raw[11] == 0xFF;
}

}  // namespace

bool IsReadable(int fd) {
  pollfd waits = {fd, POLLIN, 0};
  return ::poll(&waits, 1, 0) == 1;
}

bool MakeNonBlocking(int fd) { return ::fcntl(fd, F_SETFL, O_NONBLOCK) == 0; }

VerbsEnd::VerbsEnd(std::shared_ptr<const VerbsApi> verbs,
                   const std::string& device, std::function<void()> move,
                   const VerbsEndOptions& options)
    : verbs_(std::move(verbs)),
      move_(std::move(move)),
      options_(options),
      memory_(options.bytes) {
  Open(device);
  if (context_ == nullptr) {
    ADD_FAILURE() << "no device is called " << device;
    return;
  }
  ReadAddress();
  domain_ = verbs_->alloc_pd(context_);
  channel_ = verbs_->create_comp_channel(context_);
  queue_ = verbs_->create_cq(context_, options.completions, this, channel_, 0);
  region_ = verbs_->reg_mr(domain_, memory_.data(), memory_.size(), At(0),
                           options.access);
  EXPECT_NE(region_, nullptr) << std::strerror(errno);
  MakePair();
}

VerbsEnd::~VerbsEnd() {
  if (abandoned_ || context_ == nullptr) return;
  DestroyPair();
  EXPECT_EQ(verbs_->dereg_mr(region_), 0);
  EXPECT_EQ(verbs_->destroy_cq(queue_), 0);
  EXPECT_EQ(verbs_->destroy_comp_channel(channel_), 0);
  EXPECT_EQ(verbs_->dealloc_pd(domain_), 0);
  EXPECT_EQ(verbs_->close_device(context_), 0);
}

void VerbsEnd::Open(const std::string& device) {
  int count = 0;
  ibv_device** const list = verbs_->get_device_list(&count);
  for (int i = 0; i < count; ++i) {
    if (device == list[i]->name) context_ = verbs_->open_device(list[i]);
  }
  if (list != nullptr) verbs_->free_device_list(list);
}

void VerbsEnd::ReadAddress() {
  EXPECT_EQ(verbs_->query_port(context_, 1, &port_), 0);
  std::array<ibv_gid_entry, 64> gids = {};
  const ssize_t count = verbs_->query_gids(context_, gids.data(), gids.size());
  for (ssize_t i = 0; i < count; ++i) {
    const ibv_gid_entry& gid = gids.at(static_cast<std::size_t>(i));
    if (gid.gid_type != IBV_GID_TYPE_ROCE_V2 || !IsMapped(gid.gid)) continue;
    address_.gid = gid.gid;
    gid_index_ = static_cast<std::uint8_t>(gid.gid_index);
  }
  address_.lid = port_.lid;
}

void VerbsEnd::MakePair() {
  ibv_qp_init_attr wanted = {};
  wanted.send_cq = queue_;
  wanted.recv_cq = queue_;
  wanted.qp_type = IBV_QPT_RC;
  wanted.sq_sig_all = options_.signals_all ? 1 : 0;
  wanted.cap.max_send_wr = options_.sends;
  wanted.cap.max_recv_wr = options_.receives;
  wanted.cap.max_send_sge = 2;
  wanted.cap.max_recv_sge = 2;
  wanted.cap.max_inline_data = options_.inline_bytes;
  pair_ = verbs_->create_qp(domain_, &wanted);
  ASSERT_NE(pair_, nullptr) << std::strerror(errno);
  address_.number = pair_->qp_num;
  // So that it begins again from 0 soon.
  address_.psn = (1 << 24) - 1 - pair_->qp_num % 17;
}

void VerbsEnd::DestroyPair() {
  if (pair_ == nullptr) return;
  EXPECT_EQ(verbs_->destroy_qp(pair_), 0);
  pair_ = nullptr;
}

void VerbsEnd::Init() {
  ibv_qp_attr set = {};
  set.qp_state = IBV_QPS_INIT;
  set.port_num = 1;
  set.qp_access_flags = options_.pair_access;
  EXPECT_EQ(verbs_->modify_qp(pair_, &set, kInitMask), 0);
}

ibv_qp_attr VerbsEnd::Receiving(const VerbsAddress& peer) const {
  ibv_qp_attr set = {};
  set.qp_state = IBV_QPS_RTR;
  set.path_mtu = std::min(port_.active_mtu, IBV_MTU_1024);
  set.dest_qp_num = peer.number;
  set.rq_psn = peer.psn;
  set.min_rnr_timer = 1;
  set.ah_attr.port_num = 1;
  set.ah_attr.dlid = peer.lid;
  if (port_.link_layer != IBV_LINK_LAYER_ETHERNET) return set;
  set.ah_attr.is_global = 1;
  set.ah_attr.grh.dgid = peer.gid;
  set.ah_attr.grh.sgid_index = gid_index_;
  set.ah_attr.grh.hop_limit = 64;
  return set;
}

ibv_qp_attr VerbsEnd::Sending(std::uint32_t psn) const {
  ibv_qp_attr set = {};
  set.qp_state = IBV_QPS_RTS;
  set.timeout = options_.timeout;
  set.retry_cnt = options_.retries;
  set.rnr_retry = options_.rnr_retries;
  set.sq_psn = psn;
  return set;
}

int VerbsEnd::ToReceive(const VerbsAddress& peer) {
  ibv_qp_attr set = Receiving(peer);
  return verbs_->modify_qp(pair_, &set, kReceivingMask);
}

int VerbsEnd::ToSend(std::uint32_t psn) {
  ibv_qp_attr set = Sending(psn);
  return verbs_->modify_qp(pair_, &set, kSendingMask);
}

void VerbsEnd::Connect(const VerbsAddress& peer) {
  Init();
  EXPECT_EQ(ToReceive(peer), 0);
  EXPECT_EQ(ToSend(address_.psn), 0);
}

std::uint64_t VerbsEnd::At(std::size_t offset) const {
  return reinterpret_cast<std::uint64_t>(memory_.data()) + offset;
}

ibv_send_wr* VerbsEnd::Message(std::size_t from, std::uint32_t bytes) {
  sge_ = {At(from), bytes, region_->lkey};
  wr_ = {};
  wr_.opcode = IBV_WR_SEND;
  wr_.send_flags = IBV_SEND_SIGNALED;
  wr_.sg_list = &sge_;
  wr_.num_sge = bytes == 0 ? 0 : 1;
  return &wr_;
}

ibv_send_wr* VerbsEnd::Write(const VerbsEnd& peer, std::size_t from,
                             std::size_t to, std::uint32_t bytes) {
  Message(from, bytes);
  wr_.opcode = IBV_WR_RDMA_WRITE;
  wr_.wr.rdma.remote_addr = peer.At(to);
  wr_.wr.rdma.rkey = peer.region_->rkey;
  return &wr_;
}

ibv_send_wr* VerbsEnd::Notice(const VerbsEnd& peer, std::size_t from,
                              std::size_t to, std::uint32_t bytes,
                              std::uint32_t value) {
  Write(peer, from, to, bytes);
  wr_.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  wr_.imm_data = htonl(value);
  return &wr_;
}

int VerbsEnd::Post(ibv_send_wr* wr) {
  // Soft-RoCE does not always say which one was bad.
  ibv_send_wr* bad = nullptr;
  return verbs_->post_send(pair_, wr, &bad);
}

int VerbsEnd::PostReceive(std::uint64_t id, std::size_t to,
                          std::uint32_t bytes) {
  ibv_sge sge = {At(to), bytes, region_->lkey};
  ibv_recv_wr wr = {};
  wr.wr_id = id;
  wr.sg_list = &sge;
  wr.num_sge = bytes == 0 ? 0 : 1;
  ibv_recv_wr* bad = nullptr;
  return verbs_->post_recv(pair_, &wr, &bad);
}

int VerbsEnd::PostReceive(std::uint64_t id) { return PostReceive(id, 0, 0); }

std::vector<ibv_wc> VerbsEnd::Poll() {
  std::vector<ibv_wc> found;
  ibv_wc wc = {};
  while (verbs_->poll_cq(queue_, 1, &wc) == 1) found.push_back(wc);
  return found;
}

std::vector<ibv_wc> VerbsEnd::Await(std::size_t count) {
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(10);
  std::vector<ibv_wc> found;
  while (found.size() < count && std::chrono::steady_clock::now() < deadline) {
    move_();
    ibv_wc wc = {};
    if (verbs_->poll_cq(queue_, 1, &wc) == 1) {
      found.push_back(wc);
    } else {
      std::this_thread::yield();
    }
  }
  EXPECT_EQ(found.size(), count);
  found.resize(count);
  return found;
}

}  // namespace gradientflow
