#include "gradientflow/observe/timeline.h"

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gradientflow/base/manual_clock.h"
#include "gradientflow/observe/null_recorder.h"
#include "gtest/gtest.h"

namespace gradientflow {
namespace {

using nlohmann::json;
using std::chrono::microseconds;
using std::chrono::nanoseconds;

std::string TempName(const std::string& name) {
  return ::testing::TempDir() + std::to_string(::getpid()) + "-" + name;
}

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

json ReadTrace(const std::string& path) { return json::parse(ReadText(path)); }

std::vector<json> Events(const json& trace, const std::string& phase) {
  std::vector<json> events;
  for (const json& event : trace) {
    if (event["ph"] == phase) events.push_back(event);
  }
  return events;
}

std::unique_ptr<Timeline> OpenOrDie(const Timeline::Options& config) {
  auto timeline = Timeline::Open(config);
  EXPECT_TRUE(timeline.ok()) << timeline.status().message();
  return std::move(timeline).value();
}

TEST(Timeline, WritesASpanWithItsLaneTimesAndArguments) {
  const std::string path = TempName("one.json");
  ManualClock clock(microseconds(5000));
  {
    auto timeline = OpenOrDie({path, 3, clock.Now(), 64});
    Span span{"bucket", "", 7, 2, 1 << 20, clock.Now(), {}};
    clock.Advance(nanoseconds(1234567));
    span.end = clock.Now();
    timeline->Record(span);
  }
  const json trace = ReadTrace(path);
  const std::vector<json> spans = Events(trace, "X");
  ASSERT_EQ(spans.size(), 1U);
  EXPECT_EQ(spans[0]["pid"], 3);
  EXPECT_EQ(spans[0]["name"], "bucket");
  EXPECT_EQ(spans[0]["ts"], 0.0);
  EXPECT_EQ(spans[0]["dur"], 1234.567);
  EXPECT_EQ(spans[0]["args"]["step"], 7);
  EXPECT_EQ(spans[0]["args"]["id"], 2);
  EXPECT_EQ(spans[0]["args"]["bytes"], 1 << 20);
  std::map<std::string, json> names;
  for (const json& event : Events(trace, "M")) {
    names[event["name"]] = event["args"];
    EXPECT_EQ(event["pid"], 3);
  }
  EXPECT_EQ(names["process_name"]["name"], "rank 3");
  EXPECT_EQ(names["thread_name"]["name"], "bucket");
  EXPECT_EQ(names.count("dropped_spans"), 0U);
}

TEST(Timeline, TimesBeforeTheOriginAreNegative) {
  const std::string path = TempName("negative.json");
  OpenOrDie({path, 0, microseconds(10), 64})
      ->Record({"wait", "", 0, 0, 0, nanoseconds(8500), microseconds(9)});
  const json trace = ReadTrace(path);
  EXPECT_EQ(Events(trace, "X").at(0)["ts"], -1.5);
  EXPECT_EQ(Events(trace, "X").at(0)["dur"], 0.5);
}

TEST(Timeline, GivesEachLaneATrack) {
  const std::string path = TempName("lanes.json");
  {
    auto timeline = OpenOrDie({path, 0, {}, 64});
    for (int i = 0; i < 3; ++i) {
      for (const char* lane : {"backward", "wait", "kernel"}) {
        timeline->Record({lane, "n", 0, 0, 0, microseconds(10 * i),
                          microseconds(10 * i + 5)});
      }
    }
  }
  const json trace = ReadTrace(path);
  std::map<std::string, std::set<int>> tracks;
  for (const json& span : Events(trace, "X")) {
    tracks[span["cat"]].insert(span["tid"].get<int>());
  }
  ASSERT_EQ(tracks.size(), 3U);
  std::set<int> all;
  for (const auto& [lane, numbers] : tracks) {
    EXPECT_EQ(numbers.size(), 1U) << lane;
    all.insert(numbers.begin(), numbers.end());
  }
  EXPECT_EQ(all.size(), 3U);
}

TEST(Timeline, IsAWholeDocumentAfterEachDrain) {
  const std::string path = TempName("drains.json");
  auto timeline = OpenOrDie({path, 0, {}, 64});
  EXPECT_EQ(Events(ReadTrace(path), "X").size(), 0U) << "before any span";
  for (std::size_t i = 1; i <= 5; ++i) {
    timeline->Record({"wait", "", i, 0, 0, {}, microseconds(1)});
    ASSERT_TRUE(timeline->Drain().ok());
    EXPECT_EQ(Events(ReadTrace(path), "X").size(), i);
  }
  const std::string before = ReadText(path);
  ASSERT_TRUE(timeline->Drain().ok());
  EXPECT_EQ(ReadText(path), before) << "nothing new, nothing written";
}

TEST(Timeline, CountsWhatItDropsAndSaysSoInTheFile) {
  const std::string path = TempName("drops.json");
  {
    auto timeline = OpenOrDie({path, 0, {}, 8});
    for (std::uint64_t i = 0; i < 20; ++i) {
      timeline->Record({"wait", "", i, 0, 0, {}, microseconds(1)});
    }
    EXPECT_EQ(timeline->dropped(), 12U);
    ASSERT_TRUE(timeline->Drain().ok());
    timeline->Record({"wait", "", 99, 0, 0, {}, microseconds(1)});
    EXPECT_EQ(timeline->dropped(), 12U) << "there is room again";
  }
  const json trace = ReadTrace(path);
  EXPECT_EQ(Events(trace, "X").size(), 9U);
  std::vector<std::uint64_t> counts;
  for (const json& event : Events(trace, "M")) {
    if (event["name"] == "dropped_spans")
      counts.push_back(event["args"]["count"]);
  }
  EXPECT_EQ(counts, std::vector<std::uint64_t>{12});
}

TEST(Timeline, EscapesNames) {
  const std::string path = TempName("escape.json");
  OpenOrDie({path, 0, {}, 8})
      ->Record({"wait", "a\"b\\c\nd", 0, 0, 0, {}, microseconds(1)});
  EXPECT_EQ(Events(ReadTrace(path), "X").at(0)["name"], "a\"b\\c d");
}

TEST(Timeline, PutsTheRankIntoTheName) {
  EXPECT_EQ(TimelinePath("t.%r.json", 12), "t.12.json");
  EXPECT_EQ(TimelinePath("%r/%r", 1), "1/1");
  EXPECT_EQ(TimelinePath("plain%", 1), "plain%");
  const std::string path = TempName("%r.json");
  OpenOrDie({path, 4, {}, 8});
  EXPECT_EQ(ReadTrace(TimelinePath(path, 4)).at(0)["pid"], 4);
}

TEST(Timeline, SaysWhichFileItCannotWrite) {
  const auto missing = Timeline::Open({"/nonexistent/t.json", 0, {}, 8});
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(missing.status().message().find("/nonexistent/t.json"),
            std::string::npos);
  const auto full = Timeline::Open({"/dev/full", 0, {}, 8});
  ASSERT_FALSE(full.ok());
  EXPECT_EQ(full.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(full.status().message().find("/dev/full"), std::string::npos);
}

TEST(Timeline, TakesSpansFromManyThreadsWhileItIsDrained) {
  constexpr int kThreads = 4;
  constexpr std::uint64_t kSpans = 2000;
  const std::string path = TempName("threads.json");
  std::uint64_t dropped = 0;
  {
    auto timeline = OpenOrDie({path, 0, {}, 256});
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&timeline, t] {
        for (std::uint64_t i = 0; i < kSpans; ++i) {
          const auto id = static_cast<std::uint64_t>(t);
          timeline->Record({"kernel", "k", i, id, i * 4 + id, microseconds(i),
                            microseconds(i + 1)});
        }
      });
    }
    for (int i = 0; i < 10; ++i) EXPECT_TRUE(timeline->Drain().ok());
    for (std::thread& thread : threads) thread.join();
    dropped = timeline->dropped();
  }
  const std::vector<json> spans = Events(ReadTrace(path), "X");
  EXPECT_EQ(spans.size() + dropped, kThreads * kSpans);
  std::set<std::pair<std::uint64_t, std::uint64_t>> seen;
  for (const json& span : spans) {
    const json& args = span["args"];
    EXPECT_TRUE(seen.emplace(args["id"], args["step"]).second) << span;
    EXPECT_EQ(args["bytes"], args["step"].get<std::uint64_t>() * 4 +
                                 args["id"].get<std::uint64_t>())
        << "a torn span";
  }
}

TEST(NullRecorder, TakesSpans) {
  NullRecorder recorder;
  Recorder& base = recorder;
  base.Record({"wait", "", 0, 0, 0, {}, {}});
}

}  // namespace
}  // namespace gradientflow
