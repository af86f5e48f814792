#include <limits>

#include "gradientflow/base/str_cat.h"
#include "tests/c_api/model_rank.h"

// Collectives, messages and memory.
namespace gradientflow::testing {
namespace {

void SetDone(void* user, gf_status status, const char* /*message*/) {
  static_cast<std::atomic<int>*>(user)->store(status);
}

}  // namespace

void Rank::CheckAll(const std::vector<std::int64_t>& seen,
                    const std::vector<std::int64_t>& expected,
                    const char* what) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (seen[i] == expected[i]) continue;
    return Expect(false, StrCat(what, " element ", i, " is ", seen[i], ", not ",
                                expected[i]));
  }
}

void Rank::Collective(std::uint32_t number) {
  const std::uint32_t kind = number / 64 % 9;
  if (kind == 8) {
    OK(gf_comm_barrier(comm_));
  } else if (kind % 3 == 0) {
    Reduction(number);
  } else {
    Move(number);
  }
}

// This rank's block of `of`, with `n` elements per rank.
std::vector<std::int64_t> Rank::Block(const std::vector<std::int64_t>& of,
                                      std::size_t n) const {
  const auto begin =
      of.begin() + static_cast<std::ptrdiff_t>(n) * std::ptrdiff_t{rank_};
  return {begin, begin + static_cast<std::ptrdiff_t>(n)};
}

void Rank::Reduction(std::uint32_t number) {
  const std::size_t n = number % 700;
  const auto p = static_cast<std::size_t>(job_.ranks);
  const int root = static_cast<int>(number / 7 % p);
  std::vector<std::int64_t> in = script_.Values(rank_, number, n * p);
  std::vector<std::int64_t> out(n * p, -1);
  const std::vector<std::int64_t> sum = script_.Sum(number, n * p);
  switch (number % 3) {
    case 0:
      OK(gf_comm_allreduce(comm_, in.data(), n * p, GF_INT64, GF_SUM));
      return CheckAll(in, sum, "allreduce");
    case 1:
      OK(gf_comm_reduce(comm_, in.data(), out.data(), n * p, GF_INT64, GF_SUM,
                        root));
      if (rank_ == root) CheckAll(out, sum, "reduce");
      return;
    default:
      OK(gf_comm_reduce_scatter(comm_, in.data(), out.data(), n, GF_INT64,
                                GF_SUM));
      return CheckAll(out, Block(sum, n), "reduce_scatter");
  }
}

void Rank::Move(std::uint32_t number) {
  const std::size_t n = number % 700;
  const auto p = static_cast<std::size_t>(job_.ranks);
  const int root = static_cast<int>(number / 7 % p);
  std::vector<std::int64_t> in = script_.Values(rank_, number, n * p);
  std::vector<std::int64_t> out(n * p, -1);
  std::vector<std::int64_t> heads;   // From all ranks' inputs.
  std::vector<std::int64_t> blocks;  // This rank's block of them.
  for (int r = 0; r < job_.ranks; ++r) {
    const auto head = script_.Values(r, number, n);
    heads.insert(heads.end(), head.begin(), head.end());
    const auto block = Block(script_.Values(r, number, n * p), n);
    blocks.insert(blocks.end(), block.begin(), block.end());
  }
  const std::vector<std::size_t> counts(p, n);
  const std::size_t* const each = counts.data();
  switch (number % 5) {
    case 0:
      OK(gf_comm_broadcast(comm_, in.data(), n * p, GF_INT64, root));
      return CheckAll(in, script_.Values(root, number, n * p), "broadcast");
    case 1:
      OK(gf_comm_allgather(comm_, in.data(), out.data(), n, GF_INT64));
      return CheckAll(out, heads, "allgather");
    case 2:
      OK(gf_comm_gather(comm_, in.data(), out.data(), each, GF_INT64, root));
      if (rank_ == root) CheckAll(out, heads, "gather");
      return;
    case 3:
      if (number % 2 == 0) {
        OK(gf_comm_all_to_all_equal(comm_, in.data(), out.data(), n, GF_INT64));
      } else {
        OK(gf_comm_all_to_all(comm_, in.data(), each, out.data(), each,
                              GF_INT64));
      }
      return CheckAll(out, blocks, "all_to_all");
    default:
      OK(gf_comm_scatter(comm_, in.data(), out.data(), each, GF_INT64, root));
      return CheckAll(out, Block(script_.Values(root, number, n * p), n),
                      "scatter");
  }
}

void Rank::Start(std::uint32_t number) {
  Started& call = started_.emplace_back();
  call.data = script_.Values(rank_, number, number % 5000);
  call.expected = script_.Sum(number, number % 5000);
  gf_call given;
  gf_call_init(&given);
  given.output = call.data.data();
  given.count = call.data.size();
  given.dtype = GF_INT64;
  OK(gf_comm_start(comm_, &given, nullptr, nullptr, &call.ticket));
}

void Rank::WaitOldest() {
  if (started_.empty()) return;
  const Started& call = started_.front();
  OK(gf_comm_wait(comm_, call.ticket, Local(2) == 0 ? 60 : -1));
  CheckAll(call.data, call.expected, "a started allreduce");
  INVALID(gf_comm_wait(comm_, call.ticket, -1));
  INVALID(gf_comm_wait(comm_, call.ticket, 0));
  started_.pop_front();
}

void Rank::Group(std::uint32_t number) {
  std::vector<std::int32_t> ranks;
  for (int r = 0; r < job_.ranks; ++r) {
    if ((number >> r) % 2 == 1) ranks.push_back(r);
  }
  if (number % 64 >= 32) std::reverse(ranks.begin(), ranks.end());
  const std::uint32_t id = number + 1;
  std::vector<std::int64_t> data = script_.Values(rank_, number, 50);
  std::atomic<int> told{-1};
  std::uint64_t ticket = 0;
  gf_call call;
  gf_call_init(&call);
  call.group = id;
  call.output = data.data();
  call.count = data.size();
  call.dtype = GF_INT64;
  INVALID(gf_comm_start(comm_, &call, SetDone, &told, &ticket));
  if (std::count(ranks.begin(), ranks.end(), rank_) == 0) {
    INVALID(gf_comm_open_group(comm_, id, ranks.data(), ranks.size()));
    return;
  }
  OK(gf_comm_open_group(comm_, id, ranks.data(), ranks.size()));
  INVALID(gf_comm_open_group(comm_, id, ranks.data(), ranks.size()));
  OK(gf_comm_start(comm_, &call, SetDone, &told, &ticket));
  OK(gf_comm_wait(comm_, ticket, 60));
  Expect(told == GF_OK, StrCat("the group's call was told ", told.load()));
  std::vector<std::int64_t> expected(data.size(), 0);
  for (const int r : ranks) {
    const auto theirs = script_.Values(r, number, data.size());
    for (std::size_t i = 0; i < data.size(); ++i) expected[i] += theirs[i];
  }
  CheckAll(data, expected, "a group's allreduce");
  OK(gf_comm_close_group(comm_, id));
  INVALID(gf_comm_close_group(comm_, id));
}

void Rank::Messages(std::uint32_t number) {
  if (job_.ranks == 1) return;
  const int next = (rank_ + 1) % job_.ranks;
  const int before = (rank_ + job_.ranks - 1) % job_.ranks;
  const std::size_t n = number % 3000;
  const std::vector<std::int64_t> mine = script_.Values(rank_, number, n);
  std::vector<std::int64_t> theirs(n, -1);
  std::atomic<int> told{-1};
  std::uint64_t ticket = 0;
  OK(gf_comm_send_start(comm_, 0, mine.data(), n * 8, next, number, SetDone,
                        &told, &ticket));
  OK(gf_comm_recv(comm_, theirs.data(), n * 8, before, number));
  OK(gf_comm_wait(comm_, ticket, 60));
  Expect(told == GF_OK, StrCat("a message's sender was told ", told.load()));
  CheckAll(theirs, script_.Values(before, number, n), "a message");
}

void Rank::Shared(std::uint32_t number) {
  const std::size_t n = number % 2000 + 1;
  void* memory = nullptr;
  if (!OK(gf_comm_alloc_shared(comm_, n * 8, &memory))) return;
  auto* data = static_cast<std::int64_t*>(memory);
  const std::vector<std::int64_t> mine = script_.Values(rank_, number, n);
  std::copy(mine.begin(), mine.end(), data);
  OK(gf_comm_allreduce(comm_, data, n, GF_INT64, GF_SUM));
  CheckAll(std::vector<std::int64_t>(data, data + n), script_.Sum(number, n),
           "shared memory");
  OK(gf_comm_free_shared(comm_, memory));
}

}  // namespace gradientflow::testing
