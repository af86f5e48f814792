#!/usr/bin/env bash
# tests/rdma/guest.sh BIN
#
# Runs inside tests/guest/run, on the kernel's RDMA over lines of its own: the rules of
# verbs, the synchronisations of gdraa by the clock, the promises of links, whole jobs,
# loss, and ranks that die or lose their card. Meanwhile ranks meet on an NFS server.
# BIN is where Bazel puts programs. The last line is `N passed, N failed, N skipped`.
set -u
bin=$1
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=tests/rdma/lines.sh
source tests/rdma/lines.sh
passed=0 failed=0 skipped=0

check() { # check NAME COMMAND...: counts one test.
  local name=$1 began=$SECONDS
  shift
  if "$@"; then
    passed=$((passed + 1))
    echo "$name: passed in $((SECONDS - began)) s"
  else
    failed=$((failed + 1))
    echo "FAILED: $name, in $((SECONDS - began)) s"
  fi
}

# tests PROGRAM [ARGUMENT...]: counts the cases of a test program.
tests() {
  local program=$1 began=$SECONDS said
  shift
  said=$("$bin/$program" "$@" 2>&1)
  local rc=$?
  local ok wrong out
  ok=$(grep -c '^\[       OK' <<<"$said")
  wrong=$(grep -c '^\[  FAILED  \].*ms)$' <<<"$said")
  out=$(grep -c '^\[  SKIPPED \].*ms)$' <<<"$said")
  ((rc == 0 || wrong > 0)) || wrong=1
  passed=$((passed + ok)) failed=$((failed + wrong)) skipped=$((skipped + out))
  echo "$program: $ok passed, $wrong failed, $out skipped in $((SECONDS - began)) s"
  ((rc == 0)) || grep -v -e '^\[ RUN' -e '^\[       OK' <<<"$said"
}

# --- Jobs of three processes.

RANKS=3 CARDS=1

# Rank R has the first of the cards not yet given, and so on: "=rxe2:1,rxe3:1".
cards_of() {
  local i cards=
  for ((i = $1 * CARDS; i < ($1 + 1) * CARDS; ++i)); do cards+=",rxe$i:1"; done
  echo "=${cards:1}"
}

works() { # A job that makes allreduces for two seconds, and ends well.
  local rank code=0 folder token=$RANDOM pids=()
  folder=$(mktemp -d)
  for ((rank = 0; rank < RANKS; ++rank)); do
    env GRADIENTFLOW_RANK=$rank GRADIENTFLOW_SIZE="$RANKS" \
      GRADIENTFLOW_RENDEZVOUS="file://$folder/meet" GRADIENTFLOW_JOB_TOKEN=$token \
      GRADIENTFLOW_FABRIC=rdma GRADIENTFLOW_RDMA_DEVICES="$(cards_of "$rank")" \
      GRADIENTFLOW_RDMA_PORTS="$CARDS" \
      GRADIENTFLOW_SOCKET_IFNAME=lo GRADIENTFLOW_HEARTBEAT_TIMEOUT_SECONDS=3 \
      GRADIENTFLOW_RDMA_RETRY_SECONDS=1 GRADIENTFLOW_JOIN_TIMEOUT_SECONDS=20 \
      "$bin/tests/rdma/rdma_loop" 2 >"$folder/$rank" 2>&1 &
    pids+=($!)
  done
  for ((rank = 0; rank < RANKS; ++rank)); do
    wait "${pids[rank]}" || code=1
    grep -q ' done ' "$folder/$rank" || code=1
  done
  ((code == 0)) || tail -n 3 "$folder"/[0-9]
  rm -rf "$folder"
  return $code
}

# counter NAME: the sum over all devices.
counter() {
  cat /sys/class/infiniband/rxe*/ports/1/hw_counters/"$1" | awk '{ n += $1 } END { print n }'
}
# Where nothing is lost, receivers are ready and nothing is sent in vain.
UNWANTED=(rcvd_rnr_err retry_exceeded_err retry_rnr_exceeded_err)
unwanted() {
  local name
  for name in "${UNWANTED[@]}"; do echo "$name $(counter "$name")"; done
}
nothing_unwanted() {
  diff <(echo "$before") <(unwanted)
}

# How much each card gets depends on rates measured on a machine that is emulated, so
# tests/rdma/throughput_test and rails_test, not this, say how messages are divided.
two_cards_each() {
  RANKS=2 CARDS=2 works
}

# If packets take 100 ms each way, two synchronisations take 200 ms more than
# otherwise, three 300, and a ring of four ranks 600. Only the difference says so:
# the rest, 10 to 40 ms, is what this machine needs to emulate four ranks.
two_synchronisations() {
  local said
  said=$(timed_calls && delay_lines 4 100 && timed_calls) || return 1
  delay_lines 4 0
  echo "$said"
  awk '/4 ranks/ { gdraa[++n] = $8; ring[n] = $11 }
    END {
      waits = (gdraa[2] - gdraa[1]) / 100
      round = (ring[2] - ring[1]) / 100
      printf "gdraa waits for %.2f latencies, a ring for %.2f\n", waits, round
      exit !(n == 2 && waits > 1.5 && waits < 2.5 && round > 5)
    }' <<<"$said"
}
timed_calls() {
  BENCHMARK_PROGRAMS=$bin/benchmarks tests/rdma/delay.py rxe
}

# --- Ranks that meet on an NFS server, and mostly wait there.

nfs='' nfs_said=$(mktemp)
meet_on_nfs() {
  bash tests/guest/nfs_rendezvous.sh "$bin/integrations/c/example" \
    "$bin/tests/faults/dies_after_meeting" >"$nfs_said" 2>&1 &
  nfs=$!
}
have_met_on_nfs() {
  wait "$nfs"
  local rc=$?
  cat "$nfs_said"
  return $rc
}

rdma_lines 4 || exit 1
tests tests/rdma/verbs_rules_kernel_test
check "an allreduce synchronises twice" two_synchronisations
! PATH=$PATH:/usr/sbin command -v rpc.nfsd >/dev/null || meet_on_nfs
export GRADIENTFLOW_RDMA_DEVICES=rxe
# The first takes seconds here; the second has its own time limit.
tests tests/rdma/link_conformance_rdma_test \
  --gtest_filter='Rdma/*:-*PingPong*:*BoundedAmount*'
before=$(unwanted) # The tests so far ask for it, or end links.
tests tests/communicator/rdma_posts_test --gtest_filter='*/ranks2:*/ranks4'
tests tests/communicator/collectives_test --gtest_filter='*rdma*'
tests tests/communicator/allreduce_test \
  --gtest_filter='*WithEveryWireAndScale/rdma2:*GivesTheSameBits*/rdma3'
tests tests/csc/sparse_test --gtest_filter='*Rdma*'
check "a job of three" works
check "a job of two with two cards each" two_cards_each
check "no counter of the devices complains" nothing_unwanted

for ((i = 0; i < RANKS; ++i)); do tc qdisc add dev "line$i" root netem loss 1%; done
check "a job of three that loses 1 % of its packets" works
echo "packets sent again: $(counter completer_retry_err)"
for ((i = 0; i < RANKS; ++i)); do tc qdisc del dev "line$i" root; done

if [[ -n $nfs ]]; then
  check "ranks that meet on an NFS server" have_met_on_nfs
else
  echo "SKIPPED: an NFS server: there is no rpc.nfsd (package nfs-kernel-server)"
  skipped=$((skipped + 1))
fi

# Two of each sort; tests/rdma/faults has hundreds.
export BENCHMARK_PROGRAMS=$bin/benchmarks PYTHONPATH=$PWD/benchmarks
check "ranks and cards that fail" \
  /usr/bin/python3 benchmarks/faults/faults.py --fabric rdma --count 8

echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))
