# What tests of programs share: checks that go on after a failure, and a count of
# those that failed, in `failures`. To be sourced.
# shellcheck shell=bash
failures=0

# check WHAT CONDITION...: reports WHAT if the command CONDITION fails.
check() {
  local what=$1
  shift
  if ! "$@"; then
    echo "FAILED: $what"
    failures=$((failures + 1))
  fi
}
