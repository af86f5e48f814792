#!/usr/bin/env bash
# Runs clang-tidy over the sources of product and benchmarks (or those named, also
# of tests), one process per core. A
# clean file is not checked again until the file, a header that it includes or
# the checks change: a hash of its preprocessed text is remembered.
set -u -o pipefail
cd "$(dirname "$0")/../.." || exit 1

TIDY=${CLANG_TIDY:-clang-tidy-14}
CLANG=${CLANG:-clang++}
CACHE=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/gradientflow/tidy
CUDA=${CUDA_HOME:-/usr/local/cuda}/include
FLAGS=(-x c++ -std=c++20 -I. -isystem /usr/src/googletest/googletest/include
  -isystem "$CUDA")

one() {
  local file=$1 key out
  # Skip files that can only be built with CUDA.
  [[ -e $CUDA/cuda_runtime_api.h ]] || ! grep -q -E '#include "?<?(cuda|nccl)' \
    "$file" || return 0
  key=$({
    "$CLANG" "${FLAGS[@]}" -E "$file" 2>/dev/null
    cat .clang-tidy "$file" "$0"
    "$TIDY" --version
  } | sha256sum | cut -d' ' -f1)
  [[ -e $CACHE/$key ]] && return 0
  if out=$("$TIDY" --quiet "$file" -- "${FLAGS[@]}" 2>&1); then
    : >"$CACHE/$key"
  else
    # Drop clang-tidy's count of suppressed warnings.
    grep -v -E '^[0-9]+ warnings? ' <<<"$out"
    return 1
  fi
}

if [[ ${1-} == --one ]]; then
  one "$2"
  exit
fi

mkdir -p "$CACHE"
find "$CACHE" -type f -mtime +30 -delete
files=("$@")
((${#files[@]})) ||
  # Tests are half of all files, and compilers see their traps as well. Files that
  # need torch's headers take minutes each.
  mapfile -t files < <(git ls-files -co --exclude-standard '*.cc' \
    ':!integrations/torch' ':!tests')
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" "$0" --one
