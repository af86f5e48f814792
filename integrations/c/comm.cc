#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/fork.h"
#include "gradientflow/base/str_cat.h"
#include "integrations/c/handles.h"

// How a rank joins and leaves a job, and the job's groups and memory. A
// function checks its pointers, and Guard() runs the rest: it turns a Status or
// an exception into a gf_status. gf_last_error() then returns the text.
//
// gf_comm_open() calls back into the caller if that brings an exchange of its
// own: each rank gives its card, and for each rank's card the exchange calls
// PutCard(). A card that comes twice or not at all is an error.

using gradientflow::BufferView;
using gradientflow::Communicator;
using gradientflow::Result;
using gradientflow::Status;
using gradientflow::StatusCode;
using gradientflow::StrCat;
using gradientflow::c_api::Guard;
using gradientflow::c_api::Invalid;

namespace {

bool IsStatusCode(gf_status status) {
  return status > GF_OK && status <= GF_DATA_LOSS;
}

// Collects the cards that the caller's exchange delivers.
struct Cards {
  std::vector<std::string> texts;
  std::vector<bool> there;
  Status status;
};

void PutCard(void* sink, int32_t rank, const char* card, size_t bytes) {
  auto& cards = *static_cast<Cards*>(sink);
  const auto ranks = static_cast<int32_t>(cards.texts.size());
  if (rank < 0 || rank >= ranks || cards.there[rank] ||
      (card == nullptr && bytes > 0)) {
    cards.status =
        Status(StatusCode::kInvalidArgument,
               StrCat("the exchange put a card of rank ", rank,
                      ": expected one of ", "each rank, 0 to ", ranks - 1));
    return;
  }
  cards.there[rank] = true;
  cards.texts[rank].assign(card, bytes);
}

gradientflow::Exchange ExchangeOf(const gf_options& options) {
  if (options.exchange == nullptr) return {};
  return
      [&options](const std::string& mine) -> Result<std::vector<std::string>> {
        const int rank = options.options.rank;
        const int size = options.options.size;
        Cards cards;
        cards.texts.resize(static_cast<std::size_t>(size));
        cards.there.resize(cards.texts.size());
        const char* why = nullptr;
        const gf_status status =
            options.exchange(options.exchange_user, rank, size, mine.data(),
                             mine.size(), &PutCard, &cards, &why);
        if (status != GF_OK) {
          return Status(IsStatusCode(status) ? static_cast<StatusCode>(status)
                                             : StatusCode::kInternal,
                        StrCat("the exchange of ranks' addresses failed: ",
                               why == nullptr ? "no reason given" : why));
        }
        if (!cards.status.ok()) return cards.status;
        for (int r = 0; r < size; ++r) {
          if (cards.there[r]) continue;
          return Status(StatusCode::kInvalidArgument,
                        StrCat("the exchange brought no card of rank ", r));
        }
        return cards.texts;
      };
}

}  // namespace

Result<std::size_t> gf_comm::GroupSize(uint32_t group) const {
  if (group == 0) return static_cast<std::size_t>(comm->size());
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = group_sizes.find(group);
  if (found != group_sizes.end()) return found->second;
  return Status(StatusCode::kInvalidArgument,
                StrCat("group ", group, " is not open"));
}

gf_status gf_comm_open(const gf_options* options, gf_comm** out) {
  if (out == nullptr) return Invalid("out is null");
  *out = nullptr;
  if (options == nullptr) return Invalid("gf_comm_open: options are null");
  return Guard([&]() -> Status {
    auto handle = std::make_unique<gf_comm>();
    Result<std::shared_ptr<Communicator>> comm =
        Communicator::Open(options->options, ExchangeOf(*options));
    if (!comm.ok()) return comm.status();
    handle->comm = std::move(comm).value();
    *out = handle.release();
    return Status();
  });
}

void gf_comm_close(gf_comm* comm) {
  // A fork has no threads that could close the job: it leaves it alone.
  if (comm != nullptr && comm->comm->forked()) {
    return gradientflow::LeaveBehind(comm);
  }
  delete comm;
}

int32_t gf_comm_rank(const gf_comm* comm) {
  return comm == nullptr ? -1 : comm->comm->rank();
}

int32_t gf_comm_size(const gf_comm* comm) {
  return comm == nullptr ? -1 : comm->comm->size();
}

int32_t gf_comm_local_rank(const gf_comm* comm) {
  return comm == nullptr ? -1 : comm->comm->local_rank();
}

int32_t gf_comm_local_size(const gf_comm* comm) {
  return comm == nullptr ? -1 : comm->comm->local_size();
}

gf_status gf_comm_check(const gf_comm* comm) {
  if (comm == nullptr) return Invalid("comm is null");
  return Guard([&] { return comm->comm->Check(); });
}

gf_status gf_comm_abort(gf_comm* comm, const char* why) {
  if (comm == nullptr) return Invalid("comm is null");
  return Guard([&]() -> Status {
    GF_RETURN_IF_ERROR(comm->comm->CheckProcess());
    comm->comm->Abort(
        Status(StatusCode::kAborted, why == nullptr ? "no reason given" : why));
    return Status();
  });
}

gf_status gf_comm_set_stream(gf_comm* comm, void* stream) {
  if (comm == nullptr) return Invalid("comm is null");
  return Guard([&] { return comm->comm->SetStream(stream); });
}

gf_status gf_comm_alloc_shared(gf_comm* comm, size_t bytes, void** out) {
  if (comm == nullptr || out == nullptr) {
    return Invalid("gf_comm_alloc_shared: an argument is null");
  }
  *out = nullptr;
  return Guard([&]() -> Status {
    Result<BufferView> view = comm->comm->AllocateShared(bytes);
    if (!view.ok()) return view.status();
    *out = view.value().data;
    return Status();
  });
}

gf_status gf_comm_free_shared(gf_comm* comm, void* data) {
  if (comm == nullptr) return Invalid("comm is null");
  return Guard([&]() -> Status {
    GF_RETURN_IF_ERROR(comm->comm->CheckProcess());
    comm->comm->FreeShared({static_cast<std::byte*>(data), 0, {}});
    return Status();
  });
}

gf_status gf_comm_open_group(gf_comm* comm, uint32_t id, const int32_t* ranks,
                             size_t count) {
  if (comm == nullptr || (ranks == nullptr && count > 0)) {
    return Invalid("gf_comm_open_group: comm or ranks are null");
  }
  return Guard([&]() -> Status {
    GF_RETURN_IF_ERROR(comm->comm->CheckProcess());
    const std::lock_guard<std::mutex> lock(comm->mutex);
    GF_RETURN_IF_ERROR(
        comm->comm->OpenGroup(id, std::vector<int>(ranks, ranks + count)));
    comm->group_sizes[id] = count;
    return Status();
  });
}

gf_status gf_comm_close_group(gf_comm* comm, uint32_t id) {
  if (comm == nullptr) return Invalid("comm is null");
  return Guard([&]() -> Status {
    GF_RETURN_IF_ERROR(comm->comm->CheckProcess());
    const std::lock_guard<std::mutex> lock(comm->mutex);
    GF_RETURN_IF_ERROR(comm->comm->CloseGroup(id));
    comm->group_sizes.erase(id);
    return Status();
  });
}
