#include "exchange.h"

namespace gft {
namespace {

// The store's key for a rank's card.
std::string KeyOf(const Joining& joining, int rank) {
  return joining.prefix + "/card/" + std::to_string(rank);
}

// "ranks 1, 4 and 17 more": the ranks that have put no card.
std::string Missing(const Joining& joining) {
  constexpr int kNamed = 16;
  std::string text;
  int missing = 0;
  for (int rank = 0; rank < joining.size; ++rank) {
    if (joining.store->check({KeyOf(joining, rank)})) continue;
    if (missing++ >= kNamed) continue;
    text += (text.empty() ? "" : ", ") + std::to_string(rank);
  }
  if (missing > kNamed) {
    text += " and " + std::to_string(missing - kNamed) + " more";
  }
  return (missing == 1 ? "rank " : "ranks ") + text;
}

gf_status Exchange(const Joining& joining, const char* mine, size_t mine_bytes,
                   gf_put put, void* sink, std::string& why) {
  try {
    joining.store->set(KeyOf(joining, joining.rank),
                       std::vector<uint8_t>(mine, mine + mine_bytes));
    std::vector<std::string> keys;
    for (int rank = 0; rank < joining.size; ++rank) {
      keys.push_back(KeyOf(joining, rank));
    }
    try {
      joining.store->wait(keys, joining.timeout);
    } catch (const std::exception& error) {
      if (joining.store->check(keys)) throw;
      why = Missing(joining) + " did not join within " +
            std::to_string(joining.timeout.count()) + " ms";
      return GF_DEADLINE_EXCEEDED;
    }
    for (int rank = 0; rank < joining.size; ++rank) {
      const std::vector<uint8_t> card = joining.store->get(keys[rank]);
      put(sink, rank, reinterpret_cast<const char*>(card.data()), card.size());
    }
    return GF_OK;
  } catch (const std::exception& error) {
    why = std::string("torch's store: ") + error.what();
    return GF_UNAVAILABLE;
  }
}

struct User {
  const Joining& joining;
  std::string why;
};

gf_status Call(void* opaque, int32_t /*rank*/, int32_t /*size*/,
               const char* mine, size_t mine_bytes, gf_put put, void* sink,
               const char** why) {
  auto& user = *static_cast<User*>(opaque);
  const gf_status status =
      Exchange(user.joining, mine, mine_bytes, put, sink, user.why);
  if (status != GF_OK) *why = user.why.c_str();
  return status;
}

}  // namespace

std::string NextRound(c10d::Store& store, const std::string& prefix, int rank) {
  const std::string times = prefix + "/times/" + std::to_string(rank);
  return prefix + "/" + std::to_string(store.add(times, 1));
}

std::shared_ptr<Session> OpenOverStore(Options options, Joining joining,
                                       const std::vector<gf_tensor>* tensors) {
  joining.prefix = NextRound(*joining.store, joining.prefix, joining.rank);
  options.Set("rank", std::to_string(joining.rank));
  options.Set("size", std::to_string(joining.size));
  options.Set("join_timeout_seconds", joining.timeout);
  User user{joining, {}};
  Check(gf_options_set_exchange(options.get(), Call, &user), "exchange");
  return Session::Open(
      options, tensors,
      std::make_unique<Testimony>(joining.store, joining.prefix, joining.rank));
}

}  // namespace gft
