#!/usr/bin/env bash
# gradientflow_plan: what it prints for files, and how it refuses bad ones.
set -euo pipefail

plan=$1
cd "${TEST_TMPDIR:?}"
plan=$OLDPWD/$plan

fail() {
  echo "FAILED: $*" >&2
  exit 1
}
expect() { # TEXT COMMAND...: it succeeds and prints TEXT.
  local text=$1 out
  shift
  out=$("$@" 2>&1) || fail "$* ended with $?: $out"
  [[ $out == *"$text"* ]] || fail "$* did not print '$text': $out"
}
refuse() { # TEXT COMMAND...: it fails and prints TEXT.
  local text=$1 out
  shift
  out=$("$@" 2>&1) && fail "$* succeeded: $out"
  [[ $out == *"$text"* ]] || fail "$* did not print '$text': $out"
}

head='"version": 1, "measured_by": "test", "measured_at": "2026-11-24T00:00:00Z"'
quartiles() { echo "{\"median\": $1, \"lower_quartile\": $1, \"upper_quartile\": $1}"; }
levels='"latency_seconds": {"p50": 2e-5, "p99": 4e-5},
  "message_seconds": {"p50": 2e-6, "p99": 3e-6},
  "reduce_bytes_per_second": {"p50": 1e10, "p99": 9e9},
  "bandwidth": [{"message_bytes": 1048576, "direction": "both_ways", "streams": 1,
                 "ranks": 1, "bytes_per_second": {"p50": 1e9, "p99": 9e8}}]'
cat >profile.json <<END
{"kind": "profile", $head, "model": "m", "device": "cpu", "dtype": "float32",
 "batch_samples": 32, "ranks": 1, "steps": 10,
 "forward_seconds": $(quartiles 0.05), "backward_seconds": $(quartiles 0.1), "wait_seconds": $(quartiles 0),
 "optimizer_seconds": $(quartiles 0.01), "step_seconds": $(quartiles 0.16), "step_spread_fraction": 0.01,
 "tensors": [{"name": "b", "elements": 1000000, "ready_seconds": $(quartiles 0.05)},
             {"name": "a", "elements": 2000000, "ready_seconds": $(quartiles 0.1)}]}
END
cat >probe.json <<END
{"kind": "probe", $head, "hosts": 2, "ranks_per_host": 1, "cores_per_host": 2,
 "memory_bytes_per_second": {"p50": 2e10, "p99": 1e10},
 "pairs": [{"class": "other_host", "transport": "tcp", "idle": {$levels}}]}
END
cat >price.json <<END
{"kind": "price", $head, "currency": "EUR", "price_per_node_hour": 2,
 "price_per_gb_out": 0, "spot": false}
END
files=(--profile profile.json --probe probe.json)

expect "efficiency_percent" "$plan" predict "${files[@]}" --ranks 2,4
expect '"ranks": 4096.0' "$plan" predict "${files[@]}" --ranks 4096 --json
expect "4,4,csc 0.85 16-bit," "$plan" predict "${files[@]}" --ranks 4 --mode csc \
  --wire float16 --csv
expect "load" "$plan" predict "${files[@]}" --ranks 2
expect "cost_EUR" "$plan" advise "${files[@]}" --price price.json --samples 1e6 --deadline 1h
expect "No plan keeps the limits" "$plan" advise "${files[@]}" --price price.json \
  --samples 1e9 --deadline 1s
refuse "expected a deadline or a budget" "$plan" advise "${files[@]}" --price price.json \
  --samples 1
refuse "--deadline: expected a time" "$plan" advise "${files[@]}" --price price.json \
  --samples 1 --deadline soon
refuse "--bucket-bytes: expected bytes" "$plan" predict "${files[@]}" --bucket-bytes big

cat >runs.csv <<END
ranks,mode,wire,bucket_bytes,step_seconds
2,dense,float32,inf,0.2
END
expect "median_error_percent" "$plan" check "${files[@]}" --csv runs.csv
refuse "there is no column samples_per_second" "$plan" usl --csv runs.csv
printf 'ranks,samples_per_second\n1,10\n2,20\n4,40\n8,70\n16,110\n32,150\n' >usl.csv
expect "beta" "$plan" usl --csv usl.csv --ranks 64
refuse "more than twice the 32" "$plan" usl --csv usl.csv --ranks 65

sed -i 's/"version": 1/"version": 7/' price.json
refuse "price.json: price: version: expected 1, seen 7" "$plan" advise "${files[@]}" \
  --price price.json --samples 1 --deadline 1h
refuse "cannot read nothing.json" "$plan" predict --profile nothing.json --probe probe.json
refuse "" "$plan"
echo "PASSED"
