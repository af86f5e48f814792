#!/usr/bin/env bash
# The example trains on two ranks, and both get the same weights.
set -u -o pipefail
example=$1
export GRADIENTFLOW_SIZE=2 GRADIENTFLOW_ARENA_BYTES=64MB
GRADIENTFLOW_RENDEZVOUS=file://$(mktemp -d "${TEST_TMPDIR:-/tmp}/meet.XXXXXX")
export GRADIENTFLOW_RENDEZVOUS

GRADIENTFLOW_RANK=1 "$example" >"$TEST_TMPDIR/one" &
other=$!
GRADIENTFLOW_RANK=0 "$example" >"$TEST_TMPDIR/zero" || exit 1
wait "$other" || exit 1
cat "$TEST_TMPDIR/zero" "$TEST_TMPDIR/one"
diff <(sed -n 's/^rank . final/final/p' "$TEST_TMPDIR/zero") \
  <(sed -n 's/^rank . final/final/p' "$TEST_TMPDIR/one") &&
  grep -q '^rank 0 final loss .*, w\[0\] 1\.0' "$TEST_TMPDIR/zero"
