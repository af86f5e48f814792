#!/usr/bin/env bash
# placed_cost_test.sh PROGRAM MOST: the instructions that a placed message costs at both
# ends together, counted by callgrind: all that a rank of 8 executes for an allreduce,
# divided by 14, since it sends 14 messages and gets 14. What the devices and the kernels
# that add elements do is not counted. What came before the calls cancels out between a
# short run and a long one. MOST is none where the library is built without optimisation.
# Allocations and locks are counted as well: there are none once queues are as long as
# they get.
set -u -o pipefail
program=$1
most=$2
messages=14
short=50 long=150

said=$("$program" 1000) || exit 1
echo "$said"
# The devices take locks: that these are counted shows that counting works.
[[ $said =~ ^allocations\ 0,\ locks\ 0\;\ of\ the\ devices\ [1-9][0-9]*\ and\ [1-9] ]] || exit 1

[[ $most != none ]] || {
  echo "SKIPPED: instructions of a placed message: use -c opt"
  exit 0
}
command -v valgrind >/dev/null || {
  echo "SKIPPED: instructions of a placed message: there is no valgrind"
  exit 0
}

counted() { # counted CALLS: prints the number of instructions.
  local said
  said=$(valgrind --tool=callgrind --callgrind-out-file=/dev/null \
    --toggle-collect='*CountedStart*' --toggle-collect='*CountedPoll*' \
    --toggle-collect='*Outside<*>::Call*' "$program" "$1" 2>&1) || {
    echo "$said" >&2
    return 1
  }
  sed -n 's/.*Collected *: *\([0-9][0-9]*\).*/\1/p' <<<"$said"
}

few=$(counted $short) && many=$(counted $long) || exit 1
each=$(((many - few) / ((long - short) * messages)))
echo "a placed message takes $each instructions, both ends together, expected at most $most"
# A count of nothing would be within every limit.
((each > 100 && each <= most))
