#!/bin/bash
# gradientflow_probe: two processes without a launcher, and what it refuses.
set -u
probe=$1
source tests/checks.sh

has() { grep -qF -- "$2" "$1"; }

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
port=$((20000 + $$ % 20000))
for i in 1 2; do
  timeout 60 env -i GRADIENTFLOW_JOB_TOKEN=secret "$probe" --seconds 0.01 \
    --load-threads 1 --pair "127.0.0.1:$port" --out "$out/probe$i.json" \
    > "$out/text$i" 2>&1 &
  processes[i]=$!
done
for i in 1 2; do
  wait "${processes[i]}"
  check "process $i ends well" test $? = 0
done
# Only rank 0 says anything, and it was the first to come.
cat "$out"/text? > "$out/text"
check "the latency is told" has "$out/text" "latency of a message"
files=("$out"/*.json)
check "one file is written" test "${#files[@]}" = 1 -a -e "${files[0]}"
cat "$out"/probe?.json > "$out/probe.json"
check "it is a probe" has "$out/probe.json" '"kind": "probe"'
check "it says who measured" has "$out/probe.json" 'gradientflow_probe on'
check "both were on this host" has "$out/probe.json" '"same_host"'

env -i "$probe" > "$out/alone" 2>&1
check "a rank alone is refused" test $? = 1
check "and told what to do" has "$out/alone" "--pair"
env -i "$probe" --pair "no host" > "$out/nowhere" 2>&1
check "a wrong address is refused" test $? = 1
check "and named" has "$out/nowhere" "got 'no host'"

if ((failures > 0)); then
  echo "$failures failed; output:"
  cat "$out/text" "$out/alone" "$out/nowhere"
  exit 1
fi
