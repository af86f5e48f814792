#include "gradientflow/base/status.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace gradientflow {
namespace {

TEST(Status, IsOkUntilAFailureIsAssigned) {
  Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kOk);
  EXPECT_EQ(status.message(), "");
  EXPECT_EQ(status.ToString(), "OK");
  status = Status(StatusCode::kUnavailable, "rank 2 is gone");
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(status.ToString(), "UNAVAILABLE: rank 2 is gone");
  status = Status();
  EXPECT_TRUE(status.ok());
}

TEST(Status, ACopyIsAFailureOfItsOwn) {
  Status one(StatusCode::kAborted, "the disk is full");
  const Status copy = one;
  Status assigned(StatusCode::kInternal, "another");
  assigned = one;
  one = Status();
  EXPECT_EQ(copy.ToString(), "ABORTED: the disk is full");
  EXPECT_EQ(assigned.ToString(), "ABORTED: the disk is full");
}

TEST(Status, SurvivesItsOwnAssignment) {
  Status status(StatusCode::kDataLoss, "cut");
  const Status& same = status;
  status = same;
  EXPECT_EQ(status.ToString(), "DATA_LOSS: cut");
  status = Status(status.code(), status.message() + " off");
  EXPECT_EQ(status.ToString(), "DATA_LOSS: cut off");
}

TEST(Status, WhatWasMovedFromIsOk) {
  Status from(StatusCode::kInternal, std::string(100, 'x'));
  const Status to = std::move(from);
  EXPECT_TRUE(from.ok());  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(to.message().size(), 100U);
}

}  // namespace
}  // namespace gradientflow
