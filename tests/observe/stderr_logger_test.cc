#include "gradientflow/observe/stderr_logger.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace gradientflow {
namespace {

// A pipe that keeps writes apart from each other.
class Pipe {
 public:
  Pipe() {
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends_.data()), 0);
  }
  ~Pipe() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  int in() const { return ends_[1]; }

  // The text of one write; "" if there is none.
  std::string Next() {
    std::array<char, 65536> text;
    const ssize_t got =
        ::recv(ends_[0], text.data(), text.size(), MSG_DONTWAIT);
    return got > 0 ? std::string(text.data(), static_cast<std::size_t>(got))
                   : "";
  }

 private:
  std::array<int, 2> ends_ = {-1, -1};
};

TEST(StderrLogger, WritesALineWithRankAndLevelInOneWrite) {
  Pipe pipe;
  StderrLogger logger(LogLevel::kDebug, 2, pipe.in());
  logger.Log(LogLevel::kError, "e");
  logger.Log(LogLevel::kWarning, "rank 3 is late");
  logger.Log(LogLevel::kInfo, "");
  logger.Log(LogLevel::kDebug, "d");
  EXPECT_EQ(pipe.Next(), "gradientflow[rank 2] E: e\n");
  EXPECT_EQ(pipe.Next(), "gradientflow[rank 2] W: rank 3 is late\n");
  EXPECT_EQ(pipe.Next(), "gradientflow[rank 2] I: \n");
  EXPECT_EQ(pipe.Next(), "gradientflow[rank 2] D: d\n");
  EXPECT_EQ(pipe.Next(), "");
}

TEST(StderrLogger, LeavesOutWhatIsLessWeighty) {
  Pipe pipe;
  StderrLogger logger(LogLevel::kWarning, 0, pipe.in());
  EXPECT_TRUE(logger.Enabled(LogLevel::kError));
  EXPECT_TRUE(logger.Enabled(LogLevel::kWarning));
  EXPECT_FALSE(logger.Enabled(LogLevel::kInfo));
  logger.Log(LogLevel::kInfo, "no");
  EXPECT_EQ(pipe.Next(), "");
}

TEST(StderrLogger, PrefixesEachLineOfALongerText) {
  Pipe pipe;
  StderrLogger logger(LogLevel::kInfo, -1, pipe.in());
  logger.Log(LogLevel::kInfo, "a\nb\n");
  EXPECT_EQ(pipe.Next(), "gradientflow I: a\ngradientflow I: b\n");
  EXPECT_EQ(pipe.Next(), "") << "both in one write";
}

TEST(StderrLogger, KeepsLinesOfManyThreadsWhole) {
  Pipe pipe;
  StderrLogger logger(LogLevel::kInfo, 1, pipe.in());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&logger, t] {
      for (int i = 0; i < 25; ++i) {
        logger.Log(LogLevel::kInfo,
                   std::string(100, static_cast<char>('a' + t)));
      }
    });
  }
  int lines = 0;
  const std::string prefix = "gradientflow[rank 1] I: ";
  while (lines < 100) {
    const std::string line = pipe.Next();
    if (line.empty()) {
      std::this_thread::yield();
      continue;
    }
    ++lines;
    ASSERT_EQ(line.size(), prefix.size() + 101);
    EXPECT_EQ(line, prefix + std::string(100, line[prefix.size()]) + "\n");
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(StderrLogger, LosesLinesThatNobodyTakes) {
  StderrLogger logger(LogLevel::kInfo, 0, -1);
  logger.Log(LogLevel::kError, "to nowhere");
}

}  // namespace
}  // namespace gradientflow
