#!/usr/bin/env bash
# Fails on C++ that clang-format would change; `--fix` changes it.
set -u -o pipefail
cd "$(dirname "$0")/../.." || exit 1
mode=(--dry-run -Werror)
[[ ${1-} == --fix ]] && mode=(-i)
git ls-files -z -co --exclude-standard '*.cc' '*.h' '*.cu' '*.cuh' '*.c' |
  xargs -0 -n 50 "${CLANG_FORMAT:-clang-format-14}" "${mode[@]}"
