#pragma once

#include <map>
#include <string>
#include <vector>

#include "gradientflow/base/secret.h"
#include "gradientflow/base/status.h"
#include "gradientflow/collectives/call_plan.h"
#include "gradientflow/communicator/cores.h"

// What a rank has to know of the others before it connects. It is computed from
// the cards of all ranks where these are known (see Introduce in rendezvous.h),
// so that rank 0 of a large job need not send every card to every rank.
namespace gradientflow {

struct Introduction {
  // By rank: its host, in the numbering of Topology.
  std::vector<int> hosts;
  // This rank's place on its host, which may be several hosts of `hosts`.
  LocalPlace local;
  bool hosts_share = false;  // See CallGroup.
  // See RankWithoutMemory().
  int without_memory = -1;
  // Fresh in each meeting, since every rank has put a nonce into it.
  Bits256 meeting = {};
  // The addresses of NeighboursOf(), to connect to at once: by the name of a
  // transport, then by rank. A rank is connected by the first transport for
  // which it has an address here, or by the next one if that cannot link it.
  std::map<std::string, std::map<int, std::string>> addresses;

  // The addresses of one transport, by rank; empty where there is none.
  std::vector<std::string> AddressesOf(const std::string& kind) const;
};

struct IntroduceArgs {
  std::string fabric;   // The name of the only transport, or "auto".
  int lanes = 2;        // Connections to a rank of another host.
  bool needed = false;  // Links are made when they are needed.
};

// Returns what each of `ranks` is told: an encoded Introduction. `cards` are
// encoded, too, by rank. Returns the failure of the first rank that has one;
// kInvalidArgument if settings differ or `args.fabric` does not reach all
// ranks; kResourceExhausted if a rank may open too few files; kDataLoss if a
// text is not a card.
Result<std::vector<std::string>> IntroduceRanks(
    const IntroduceArgs& args, const std::vector<std::string>& cards,
    const std::vector<int>& ranks);

// Returns kDataLoss if `text` does not introduce `size` ranks.
Result<Introduction> DecodeIntroduction(int size, const std::string& text);

// The group of all ranks, as `rank` sees it.
CallGroup GroupOf(int rank, const Introduction& introduction);

// Returns the secret of this meeting of the job's ranks, from the secret of the
// job.
Bits256 SessionSecret(const Bits256& job, const Introduction& introduction);

}  // namespace gradientflow
