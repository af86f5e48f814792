#!/bin/bash
# gradientflow_info: its output and its exit status.
set -u
info=$1
source tests/checks.sh

# has TEXT: whether the last output contains it.
has() { grep -qF -- "$1" <<< "$output"; }
exits() { [[ $code == "$1" ]]; }

# run NAME=VALUE... -- ARGUMENTS...: runs it with only these variables.
run() {
  local variables=()
  while [[ $1 != -- ]]; do
    variables+=("$1")
    shift
  done
  shift
  output=$(env -i "${variables[@]}" "$info" "$@" 2>&1)
  code=$?
}

run GRADIENTFLOW_SPARSITY=0.5 --
check "a good environment exits with 0" exits 0
check "the version is told" has "GradientFlow 2."
check "CUDA is told" has "CUDA:"
check "loopback is listed" has "(loopback)"
check "the host's id is told" \
  has "host id:        $(cat /proc/sys/kernel/random/boot_id)/net "
check "and what it means" has "ranks with the same id share memory; found:"
row=$(grep '^GRADIENTFLOW_SPARSITY ' <<< "$output" | tr -s ' ')
check "value, default and who set it" \
  test "$row" = "GRADIENTFLOW_SPARSITY 0.5 0 environment"

run GRADIENTFLOW_HOST_ID=pod-7 --
check "a host's id that is set is told" has "host id:        pod-7"
check "and that it is set" has "share memory; set by host_id"

run GRADIENTFLOW_SPARSITY=2 GRADIENTFLOW_OVRELAP=on --
check "a bad environment exits with 1" exits 1
check "after the table" has "GRADIENTFLOW_TRACE_COLLECTIVES"
check "the value is named" has "got '2'"
check "the typing error is named" has "did you mean GRADIENTFLOW_OVERLAP?"

run GRADIENTFLOW_SPARSITY=0.5 GRADIENTFLOW_MOMENTUM=0 --
check "settings that contradict each other exit with 1" exits 1
check "and say how to go on" has "set residual to plain"

run RANK=1 WORLD_SIZE=2 MASTER_ADDR=node1 MASTER_PORT=29500 \
  GRADIENTFLOW_JOB_TOKEN=secret -- --json
check "json exits with 0" exits 0
check "json names the launcher" has '"set_by": "torchrun: RANK"'
check "json has the host's id" has '"host_id": "'
check "json has the address" has '"value": "node1:29500"'

run GRADIENTFLOW_SPARSITY=2 -- --markdown
check "markdown does not read the environment" exits 0
check "markdown is the table" has "GRADIENTFLOW_SPARSITY\` | 0 |"

run -- --help
check "help exits with 0" exits 0
check "help has the settings" has "GRADIENTFLOW_BUCKET_BYTES"
run -- --nonsense
check "an unknown argument is refused" [ "$code" != 0 ]

if ((failures > 0)); then
  echo "$failures failed; last output:"
  echo "$output"
  exit 1
fi
