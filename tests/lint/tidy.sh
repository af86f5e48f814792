#!/usr/bin/env bash
# clang-tidy over our sources (or those named), one process per core. A file
# that was clean is not read again until it, a header it reads or the checks
# change: what the preprocessor makes of it is remembered by its hash.
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
  # What is built with CUDA alone.
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
    # Without the count of warnings that nobody wants to see.
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
  # Without what needs torch's headers, which take minutes a file.
  mapfile -t files < <(git ls-files -co --exclude-standard '*.cc' \
    ':!integrations/torch')
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" "$0" --one
