#!/usr/bin/env bash
# tests/ahead.sh FOLDER PART...
#
# Does work of later parts of tests/run while earlier parts run: builds asan and
# tsan, and runs tidy. It uses the time that tests leave, since these mostly wait for
# each other; any other process gets the core at once. The output of a part goes to
# FOLDER/PART.log, and then its exit status to FOLDER/PART.rc.
set -u
cd "$(dirname "$0")/.." || exit 1
source tests/setup.sh
folder=$1
shift

# idle PROCESS: all others come before this one and its children. Where the kernel
# first divides time between sessions, their niceness counts (Bazel's server has a
# session of its own).
idle() {
  echo 19 >"/proc/$1/autogroup"
  chrt --all-tasks --idle --pid 0 "$1"
} 2>/dev/null

build() {
  gf_bazel "$1"
  "${GF_BAZEL[@]}" shutdown
  idle "$("${GF_BAZEL[@]}" info server_pid)"
  "${GF_BAZEL[@]}" build --config="$1" --keep_going "${GF_NO_LINKS[@]}" \
    "${GF_BAZEL_FLAGS[@]}" -- //tests/...
}

idle $$
gf_build_cache
for part in "$@"; do
  case $part in
    tidy) tests/lint/tidy.sh ;;
    *) build "$part" ;;
  esac >"$folder/$part.log" 2>&1
  echo $? >"$folder/$part.rc"
done
