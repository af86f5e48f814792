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

# Hosts that differ: a file, or lists with a value for each of them.
printf 'hosts,ranks,line_gbps\n2,4,10\n1,2,1\n' >hosts.csv
expect "10,3,dense 32-bit," "$plan" predict "${files[@]}" --hosts hosts.csv --csv
expect "8,2,dense 32-bit," "$plan" predict "${files[@]}" --hosts hosts.csv --ranks 8 --csv
same=$("$plan" predict "${files[@]}" --hosts hosts.csv)
expect "$same" "$plan" predict "${files[@]}" --ranks-per-host 4,4,2 --line-gbps 10,10,1
expect "fastest of all" "$plan" advise "${files[@]}" --hosts hosts.csv --price price.json \
  --samples 1e6 --deadline 1h
refuse "ranks: expected at most the 10 that the hosts have, seen 11" \
  "$plan" predict "${files[@]}" --hosts hosts.csv --ranks 11
refuse "--line-gbps: expected one value, or one for each of the 3 hosts of --ranks-per-host" \
  "$plan" predict "${files[@]}" --ranks-per-host 4,4,2 --line-gbps 10,1
refuse "--ranks-per-host" "$plan" predict "${files[@]}" --ranks-per-host 4,0
refuse "excludes" "$plan" predict "${files[@]}" --hosts hosts.csv \
  --line-gbps 1
refuse "cannot read nothing.csv" "$plan" predict "${files[@]}" --hosts nothing.csv
printf 'ranks,line_gbps\n4,10\n2,fast\n' >bad.csv
refuse "bad.csv:3: line_gbps: expected a number of at least 0, seen fast" \
  "$plan" predict "${files[@]}" --hosts bad.csv
printf 'ranks,line_gbs\n4,10\n' >bad.csv
refuse "bad.csv: line_gbs: no such column" "$plan" predict "${files[@]}" --hosts bad.csv

# Nodes that may be taken away.
spot='{"interruptions_per_node_hour": 0.1, "checkpoint_interval_seconds": 600,
  "checkpoint_seconds": 10, "restart_seconds": 120}'
sed "s/\"spot\": false/\"spot\": ${spot//$'\n'/}/" price.json >spot.json
expect '"lost_hours": 0.0' "$plan" advise "${files[@]}" --price price.json --samples 1e6 \
  --deadline 1h --json
[[ $("$plan" advise "${files[@]}" --price spot.json --samples 1e6 --deadline 1h --json) == \
  *'"lost_hours": 0.0'[0-9]* ]] || fail "interruptions cost nothing"
sed 's/"spot": false/"spot": true/' price.json >spot.json
refuse "spot.json: price: spot: expected false, or an object" "$plan" advise "${files[@]}" \
  --price spot.json --samples 1 --deadline 1h

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
