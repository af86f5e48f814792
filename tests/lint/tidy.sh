#!/usr/bin/env bash
# Runs clang-tidy over the sources of product and benchmarks, or over those named
# (also of tests), with one process per core. It reads many sources as one unit
# (units.py), and those named one by one.
#
# A clean unit is not checked again until a source, a header or the checks change: a
# hash of its preprocessed text is remembered.
set -u -o pipefail
cd "$(dirname "$0")/../.." || exit 1

TIDY=${CLANG_TIDY:-clang-tidy-14}
CLANG=${CLANG:-clang++}
CACHE=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/gradientflow/tidy
CUDA=${CUDA_HOME:-/usr/local/cuda}/include
FLAGS=(-x c++ -std=c++20 -I. -isystem /usr/src/googletest/googletest/include
  -isystem "$CUDA")

# unit_text FILE...: what clang-tidy reads in their place.
unit_text() {
  printf '#include "%s"  // NOLINT(bugprone-suspicious-include)\n' "$@"
}

# apart OUTPUT FILE...: leaves in `bad` the files that OUTPUT says do not compile in
# this company, and the others in `rest`.
apart() {
  local output=$1 file
  shift
  bad=() rest=()
  for file in "$@"; do
    if grep -q -E "^([^ ]*/)?$file:.*clang-diagnostic-error" <<<"$output"; then
      bad+=("$file")
    else
      rest+=("$file")
    fi
  done
  # Where the error stands in a header, any of them may be the cause.
  ((${#bad[@]})) || bad=("$@") rest=()
}

# check FILE...
check() {
  local main=$1 key out file rc=0 bad rest
  if (($# > 1)); then
    main=$scratch/unit.cc
    unit_text "$@" >"$main"
  fi
  key=$({
    "$CLANG" "${FLAGS[@]}" -E "$main" 2>/dev/null
    cat .clang-tidy "$@" "$0"
    "$TIDY" --version
  } | sha256sum | cut -d' ' -f1)
  [[ -e $CACHE/$key ]] && return 0
  if out=$("$TIDY" --quiet --config-file=.clang-tidy "$main" -- "${FLAGS[@]}" 2>&1)
  then
    : >"$CACHE/$key"
  elif (($# > 1)) && grep -q clang-diagnostic-error <<<"$out"; then
    apart "$out" "$@"
    ((!${#rest[@]})) || check "${rest[@]}" || rc=1
    for file in "${bad[@]}"; do check "$file" || rc=1; done
    return "$rc"
  else
    # Drop clang-tidy's count of suppressed warnings.
    grep -v -E '^[0-9]+ warnings? ' <<<"$out"
    return 1
  fi
}

if [[ ${1-} == --unit ]]; then
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  # shellcheck disable=SC2086
  check $2
  exit
fi

# Without CUDA, leaves out the files that can only be built with it.
buildable() {
  if [[ -e $CUDA/cuda_runtime_api.h ]]; then
    cat
  else
    echo "tidy: SKIPPED what includes headers of CUDA: there are none in $CUDA" >&2
    local headers
    headers=$(git grep -l -E '#include <(cuda|nccl)' -- '*.h' | paste -s -d '|')
    xargs grep -L -E "#include (<(cuda|nccl)|\"($headers)\")"
  fi
}

mkdir -p "$CACHE"
find "$CACHE" -type f -mtime +30 -delete
if (($#)); then
  printf '%s\n' "$@" | buildable
else
  # Tests are half of all files, and compilers see their traps as well. Files that
  # need torch's headers take minutes each.
  git ls-files -co --exclude-standard '*.cc' ':!integrations/torch' ':!tests' |
    buildable | xargs gradientflow/build_defs/units.py
fi | xargs -d '\n' -n 1 -P "$(nproc)" "$0" --unit
