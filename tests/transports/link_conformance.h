#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <ostream>
#include <span>

#include "gradientflow/base/status.h"
#include "tests/transports/link_owner.h"
#include "transports/endpoint.h"

// The promises of every Link, whatever carries it. A transport joins the suite
// with a file of its own: see link_conformance_tcp_test.cc.
namespace gradientflow::testing {

// A peer that is played by the test: it writes bytes where a link would write
// frames. Destroying it is the peer's death.
class RawPeer {
 public:
  virtual ~RawPeer() = default;
  // Writes all bytes; the link has at most 4096 yet to read.
  virtual void Write(std::span<const std::byte> bytes) = 0;
};

struct LinkKind {
  const char* name;  // Link::kind().
  // Links ranks 0 and 1, `a` and `b`.
  void (*join)(LinkOwner* a, LinkOwner* b);
  // Links rank 0, `owner`, to rank 1, which is the returned peer. Null for a
  // link that is no stream of bytes.
  std::unique_ptr<RawPeer> (*join_raw)(LinkOwner* owner) = nullptr;
};
inline void PrintTo(const LinkKind& kind, std::ostream* out) {
  *out << kind.name;
}

// For endpoints that are joined in this process.
TransportOptions OptionsOfTests();
// Connects the endpoints of two ranks.
void JoinEndpoints(Endpoint* one, Endpoint* other, LinkOwner* a, LinkOwner* b);
// Opens two endpoints in this process and connects them.
void JoinByEndpoints(const TransportKind& kind, LinkOwner* a, LinkOwner* b,
                     int io_threads = 0);

// Expects that `owner` was told once, in the right way, that rank 1 is down.
inline void ExpectDown(const LinkOwner& owner, StatusCode code) {
  ASSERT_EQ(owner.down.size(), 1U);
  EXPECT_EQ(owner.down[0].first, 1);
  const Status& why = owner.down[0].second;
  EXPECT_EQ(why.code(), code) << why.ToString();
  EXPECT_EQ(why.message().rfind("rank 1 (", 0), 0U) << why.ToString();
}

class LinkConformance : public ::testing::TestWithParam<LinkKind> {
 protected:
  void Join() { GetParam().join(&a_, &b_); }
  Link& a() { return a_.to(1); }
  Link& b() { return b_.to(0); }
  bool Drive(const std::function<bool()>& until) {
    return testing::Drive({&a_, &b_}, until);
  }

  LinkOwner a_;  // Rank 0.
  LinkOwner b_;  // Rank 1.
};

// For links whose frames are a stream of bytes.
class StreamConformance : public LinkConformance {};

}  // namespace gradientflow::testing
