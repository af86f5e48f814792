#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/secret.h"
#include "gradientflow/base/status.h"
#include "transports/arena.h"
#include "transports/link.h"
#include "transports/link_source.h"
#include "transports/poller.h"
#include "transports/remote_places.h"
#include "transports/remote_writes.h"

// What a transport is to the code that joins ranks: a row (TransportKind) that
// opens an Endpoint. The endpoint's address goes to the other ranks, and then
// the endpoint connects to theirs. Everything after that is up to the Links.
namespace gradientflow {

// A setting of a single transport. Users set it like any other setting; it is
// checked, documented and logged like the others.
struct TransportSetting {
  std::string_view name;      // Begins with the transport's: "rdma_ports".
  std::string_view expected;  // What a valid text is, for errors and tables.
  std::string_view meaning;   // In sentences, with the trade-off.
  std::string_view usual;     // The default.
  bool (*is_valid)(std::string_view text);
};

// The values of the settings of the same names. Every transport gets all of
// them. Settings that several transports share, as RDMA uses TCP's sockets, are
// members; those of a single transport are in `own`.
struct TransportOptions {
  // shm: the address space that this rank reserves, and the size of the FIFO
  // for each peer and direction.
  std::size_t arena_bytes = std::size_t{64} << 30;
  std::size_t fifo_bytes = std::size_t{1} << 20;
  // tcp: connections per peer that carry data, in addition to the one for
  // control messages. With 0, that connection carries data, too. The same on
  // all ranks.
  int connections = 1;
  // tcp: the network interfaces at which this rank can be reached, as a comma
  // list of prefixes. A leading ^ excludes them, a leading = compares whole
  // names. Empty selects all interfaces that are up, and loopback only if there
  // is no other.
  std::string socket_ifname = {};
  int ip_version = 0;  // tcp: 4, 6, or 0 for both.
  // tcp: the host name or address by which peers reach this rank, if no
  // interface here has it (behind a translation of addresses). Empty: the
  // addresses of the interfaces.
  std::string advertise_address = {};
  // tcp: the ports to listen at; both 0: any.
  std::uint16_t first_port = 0;
  std::uint16_t last_port = 0;
  // tcp: the send and the receive buffer of each connection; 0 leaves them to
  // the kernel's tuning.
  std::size_t socket_buffer_bytes = 0;
  // tcp: threads that move the bytes of large messages for the one that drives,
  // at most 64; -1: chosen by ChooseIoThreads().
  int io_threads = -1;
  // This rank and the number of ranks of the job.
  int rank = 0;
  int ranks = 2;
  // The memory that peers may write to, and the messages that a peer may
  // place there before this rank takes their notices; see RemotePlaces. The
  // same on all ranks; 0 bytes if no one places messages.
  std::size_t placed_slot_bytes = 0;
  int placed_notices = 0;
  // Settings of TransportKind::settings that differ from the default, by name.
  std::map<std::string, std::string, std::less<>> own = {};
  // Returns the text of one of these, or its default.
  std::string_view Own(const TransportSetting& setting) const;
  // Returns kInvalidArgument, with what was expected, if it is not valid.
  Status CheckOwn(const TransportSetting& setting) const;
};

struct ConnectArgs {
  int rank = 0;
  int size = 1;
  // Endpoint::address() of each rank to link to, by rank. An empty address
  // means no link to that rank. The entry of this rank is ignored.
  std::vector<std::string> addresses = {};
  // Known to the ranks of this job alone, and new each time that they join.
  Bits256 secret = {};
  Clock::Time deadline{};  // When Connect() gives up, by `clock`.
  const Clock* clock = nullptr;
  Poller* poller = nullptr;      // Outlives the links.
  LinkEvents* events = nullptr;  // Outlives the links.
  // If it is not null and two ranks cannot be linked, the transport leaves out
  // their link and stores the reason here, by rank, on both ranks of the pair.
  // If it is null, Connect() fails instead.
  std::vector<Status>* unlinked = nullptr;
  // If Connect() fails, the links made so far are stored here, by rank, so that
  // their peers can be told why. May be null.
  std::vector<std::unique_ptr<Link>>* links_of_failure = nullptr;
  // Whether TakeLinkSource() follows, so that ranks can still connect to this
  // one after Connect().
  bool more_later = false;
  // This rank's share of the host's cores.
  int cores = 1;
  // If it is set, Connect() calls it now and then while it waits for peers that
  // it has not reached. If it returns an error, Connect() ends with that error.
  std::function<Status()> look = {};
};

// How this process can be reached by one transport. NOT thread-safe.
class Endpoint {
 public:
  virtual ~Endpoint() = default;

  // The address to publish to the peers: a line of text, neither empty nor with
  // a line feed.
  virtual std::string address() const = 0;

  // How many file descriptors Connect() opens at most, besides those of links.
  virtual std::size_t OwnDescriptors() const { return 0; }

  // Returns the links to all ranks that have an address, by rank, with null for
  // the other ranks and for this one. May be called once. Blocks until all
  // these links exist. Strangers (another secret, garbage, silence) are dropped
  // and hold up no one. Errors: kDeadlineExceeded names the ranks that did not
  // connect; kInvalidArgument says which settings do not fit together. The
  // links may outlive the endpoint.
  virtual Result<std::vector<std::unique_ptr<Link>>> Connect(
      const ConnectArgs& args) = 0;

  // Returns what makes links to the other ranks of the job later; null if this
  // transport makes none. To be called after Connect() with the same arguments,
  // at most once. `sink` outlives the source, as do the poller, the events and
  // the clock; the endpoint need not.
  virtual Result<std::unique_ptr<LinkSource>> TakeLinkSource(
      const ConnectArgs& args, LinkSource::Sink* sink) {
    static_cast<void>(args);
    static_cast<void>(sink);
    return std::unique_ptr<LinkSource>();
  }

  // Returns what this transport has found out or chosen in Connect(), for the
  // log: a line of text, or nothing.
  virtual std::string Choices() const { return {}; }

  // The memory that this rank shares with the ranks to which it is linked, or
  // null if the links share none. This rank's own memory can be used at once,
  // that of the peers after Connect(). Lives as long as the endpoint.
  virtual SharedArena* arena() { return nullptr; }

  // The memory of this rank to which linked ranks may write, or null if the
  // links cannot do that. Can be used after Connect(). Lives as long as the
  // endpoint.
  virtual RemotePlaces* places() { return nullptr; }

  // Counts what these links write into the memory of peers, or null if they
  // write nothing there. Lives as long as the endpoint.
  virtual WriteCounter* writes() { return nullptr; }
};

// Returns kInvalidArgument unless `args` has a rank below the size and an
// address for each rank.
Status ValidateConnect(const ConnectArgs& args);

// One transport. A constant, defined in the transport's folder and listed in
// transports/registry/registry.cc.
struct TransportKind {
  // The name in settings, cards and reports: unique, in lower case.
  const char* name;
  Result<std::unique_ptr<Endpoint>> (*open)(const TransportOptions& options);
  // For a transport between processes of one host that share memory: returns a
  // text that is equal exactly in processes that can share memory. Null for
  // transports that reach other hosts.
  std::string (*host_id)() = nullptr;
  // The settings that this transport alone has, in static storage; null if
  // there are none.
  std::span<const TransportSetting> (*settings)() = nullptr;
};

}  // namespace gradientflow
