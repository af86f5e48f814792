#!/usr/bin/env bash
# tests/rdma/guest.sh BIN
#
# Runs inside tests/guest/run, on the kernel's RDMA over lines of its own: the rules of
# verbs, the synchronisations of gdraa by the clock, the promises of links, whole jobs,
# loss, and ranks that die or lose their card.
# BIN is where Bazel puts programs. The last line is `N passed, N failed, N skipped`.
set -u
bin=$1
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=tests/rdma/lines.sh
source tests/rdma/lines.sh
passed=0 failed=0 skipped=0

check() { # check NAME COMMAND...: counts one test.
  local name=$1
  shift
  if "$@"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED: $name"
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

# --- Jobs of three processes, of which one meets with a fault.

RANKS=3 VICTIM=1

start_job() { # start_job NAME SECONDS
  local rank
  folder=$(mktemp -d)
  pids=()
  for ((rank = 0; rank < RANKS; ++rank)); do
    env GRADIENTFLOW_RANK=$rank GRADIENTFLOW_SIZE=$RANKS \
      GRADIENTFLOW_RENDEZVOUS="file://$folder/meet" GRADIENTFLOW_JOB_TOKEN="$1" \
      GRADIENTFLOW_FABRIC=rdma GRADIENTFLOW_RDMA_DEVICES="=rxe$rank:1" \
      GRADIENTFLOW_SOCKET_IFNAME=lo GRADIENTFLOW_HEARTBEAT_TIMEOUT_SECONDS=3 \
      GRADIENTFLOW_RDMA_RETRY_SECONDS=1 GRADIENTFLOW_JOIN_TIMEOUT_SECONDS=20 \
      "$bin/tests/rdma/rdma_loop" "$2" >"$folder/$rank" 2>&1 &
    pids+=($!)
  done
}

until_open() {
  local _
  for _ in {1..200}; do
    (($(cat "$folder"/[0-9] | grep -c ' open$') == RANKS)) && return
    sleep 0.1
  done
  cat "$folder"/[0-9]
  return 1
}

# survivors_name PATTERN: all but the victim end with a reason that has it, and no
# sum was wrong. Leaves in `slowest` the seconds that the last one took since `struck`.
survivors_name() {
  local rank line code=0
  slowest=0
  for ((rank = 0; rank < RANKS; ++rank)); do
    ((rank != VICTIM)) || continue
    wait "${pids[rank]}"
    line=$(grep ' ended ' "$folder/$rank") || code=1
    grep -qE -- "$1" <<<"$line" || code=1
    slowest=$(awk -v was="$slowest" -v began="$struck" -v now="${line%% *}" \
      'BEGIN { took = now - began; printf "%.2f", (took > was ? took : was) }')
  done
  kill -KILL "${pids[VICTIM]}" 2>/dev/null
  wait "${pids[VICTIM]}" 2>/dev/null
  if grep -h ' wrong ' "$folder"/[0-9]; then code=1; fi
  ((code == 0)) || tail -n 2 "$folder"/[0-9]
  return $code
}

nothing_left() {
  local left
  left=$(rdma resource show qp | grep -c 'type RC')
  ((left == 0)) || {
    echo "$left queue pairs are left"
    return 1
  }
}

fault() { # fault WHAT PATTERN
  local what=$1
  start_job "$what$RANDOM" 60
  check "$what: the ranks open" until_open || return
  sleep "0.$((RANDOM % 10))"
  struck=$(date +%s.%N)
  case $what in
    kill) kill -KILL "${pids[VICTIM]}" ;;
    stop) kill -STOP "${pids[VICTIM]}" ;;
    port) ip link set "port$VICTIM" down ;;
    address) ip address del "10.77.0.$((VICTIM + 1))/24" dev "line$VICTIM" ;;
  esac
  check "$what: the survivors end with the reason" survivors_name "$2"
  echo "$what: told after $slowest s at most"
  case $what in
    port) ip link set "port$VICTIM" up ;;
    address) mend_address "$VICTIM" ;;
  esac
  check "$what: nothing is left" nothing_left
  rm -rf "$folder"
}

works() { # A job that ends well.
  start_job "works$RANDOM" 2
  local rank code=0
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
  rdma statistic | tr ' ' '\n' | grep -A1 "^$1\$" | awk '/^[0-9]/ { n += $1 } END { print n + 0 }'
}
# Verbs' rules are about receivers that are not ready, too.
never_not_ready() {
  local seen
  seen=$(($(counter rcvd_rnr_err) - not_ready_on_purpose))
  ((seen == 0)) || echo "a receiver was not ready $seen times"
  ((seen == 0))
}

# Packets take 20 ms each way now, and 4 KiB take no time beside that. So two
# synchronisations last 40 ms, three 60, and a ring of four ranks 120.
two_synchronisations() {
  local said
  for ((i = 0; i < 4; ++i)); do tc qdisc add dev "line$i" root netem delay 20ms; done
  said=$("$bin/benchmarks/rdma/rdma" rxe --delay)
  for ((i = 0; i < 4; ++i)); do tc qdisc del dev "line$i" root; done
  echo "$said"
  awk '/4 ranks/ { good = $8 + 0 > 40 && $8 + 0 < 60 && $11 + 0 > 110 }
    END { exit !good }' <<<"$said"
}

rdma_lines 4 || exit 1
tests tests/rdma/verbs_rules_kernel_test
not_ready_on_purpose=$(counter rcvd_rnr_err)
check "an allreduce synchronises twice" two_synchronisations
export GRADIENTFLOW_RDMA_DEVICES=rxe
# The first takes seconds here; the second has its own time limit.
tests tests/rdma/link_conformance_rdma_test \
  --gtest_filter='Rdma/*:-*PingPong*:*BoundedAmount*'
tests tests/session/collectives_test --gtest_filter='*rdma*'
tests tests/session/allreduce_test \
  --gtest_filter='*WithEveryWireAndScale/rdma2:*GivesTheSameBits*/rdma3'
tests tests/csc/sparse_test --gtest_filter='*Rdma*'
check "a job of three" works
check "receivers are ready" never_not_ready

for ((i = 0; i < RANKS; ++i)); do tc qdisc add dev "line$i" root netem loss 1%; done
check "a job of three that loses 1 % of its packets" works
echo "packets sent again: $(counter completer_retry_err)"
for ((i = 0; i < RANKS; ++i)); do tc qdisc del dev "line$i" root; done

for what in kill stop port address; do
  case $what in
    stop) pattern='rank 1 .*silent' ;;
    *) pattern='rank 1|rxe1' ;;
  esac
  fault "$what" "$pattern"
done

echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))
