#include "testimony.h"

#include <chrono>
#include <utility>

namespace gft {
namespace {

// How long to wait for others: a rank that is in no operation reports nothing.
constexpr std::chrono::milliseconds kPatience(2000);

}  // namespace

Testimony::Testimony(StorePtr store, std::string prefix, int rank)
    : store_(std::move(store)), prefix_(std::move(prefix)), rank_(rank) {}

std::string Testimony::KeyOf(int rank) const {
  return prefix_ + "/called/" + std::to_string(rank);
}

void Testimony::Remember(const std::string& mine) {
  const std::lock_guard lock(mutex_);
  if (mine_.empty()) mine_ = mine;
}

std::string Testimony::Of(const std::vector<int32_t>& ranks) {
  const std::lock_guard lock(asking_);
  if (!std::exchange(asked_, true) && store_ != nullptr) {
    try {
      all_ = Ask(ranks);
    } catch (const std::exception&) {
      // The store has gone, and perhaps other ranks with it.
    }
  }
  return all_;
}

std::string Testimony::Ask(const std::vector<int32_t>& ranks) {
  std::string mine;
  {
    const std::lock_guard lock(mutex_);
    mine = mine_;
  }
  // A connection of its own: another thread may be waiting in the other one.
  const StorePtr store = store_->clone();
  store->set(KeyOf(rank_), mine);
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  std::string all;
  for (const int rank : ranks) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    const std::string key = KeyOf(rank);
    if (left.count() > 0 && !store->check({key})) {
      try {
        store->wait({key}, left);
      } catch (const std::exception&) {
        // The rank is asked once more below.
      }
    }
    all += "\n  rank " + std::to_string(rank) + ": " +
           (store->check({key}) ? store->get_to_str(key)
                                : "none that has failed yet");
  }
  return all;
}

}  // namespace gft
