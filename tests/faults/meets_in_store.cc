#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/communicator/transport.h"
#include "gradientflow/config/options.h"
#include "tests/faults/joining.h"

namespace {

namespace fs = std::filesystem;

// A framework's store: a folder, with a file for each rank.
std::string CardIn(const fs::path& folder, int rank) {
  std::ifstream file(folder / std::to_string(rank), std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void PutCard(const fs::path& folder, int rank, const std::string& card) {
  const fs::path part = folder / gradientflow::StrCat(rank, ".part");
  std::ofstream(part, std::ios::binary) << card;
  fs::rename(part, folder / std::to_string(rank));
}

}  // namespace

// meets_in_store FOLDER [dies]
//
// A rank that meets the others in a store, takes its other settings from the
// environment, and says how joining went. With `dies` it ends when it has put
// its card there, as if it were killed, and says "met".
int main(int argc, char** arguments, char** variables) {
  using namespace gradientflow;
  const auto options = Options::FromEnv(variables);
  if (argc < 2 || !options.ok()) return std::puts("expected a folder"), 1;
  const fs::path folder = arguments[1];
  const testing::Joining joining(options.value(), [&](const std::string& mine) {
    PutCard(folder, options.value().rank, mine);
    if (argc > 2) {
      std::puts("met");
      std::fflush(stdout);
      ::_exit(0);
    }
    std::vector<std::string> cards;
    for (int r = 0; r < options.value().size; ++r) {
      while (CardIn(folder, r).empty()) ::poll(nullptr, 0, 5);
      cards.push_back(CardIn(folder, r));
    }
    return Result<std::vector<std::string>>(std::move(cards));
  });
  const auto joined = Join(joining.args);
  std::puts(joined.ok() ? "joined" : joined.status().message().c_str());
  return 0;
}
