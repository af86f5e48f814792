#!/usr/bin/env bash
# Runs shellcheck on every shell script: *.sh, and what starts with #!...sh. Then
# tries what builds on a machine without CUDA, whose errors end a script.
set -u -o pipefail
cd "$(dirname "$0")/../.." || exit 1
git ls-files -co --exclude-standard | while read -r file; do
  [[ -f $file ]] || continue
  if [[ $file == *.sh ]] || head -c 40 "$file" | grep -aq '^#!.*\bbash\b'; then
    printf '%s\0' "$file"
  fi
done | xargs -0 shellcheck -x || exit 1
CUDA_HOME=/nonexistent XDG_CACHE_HOME=$(mktemp -d) bash -euo pipefail -c '
  source tests/setup.sh
  gf_build_cache
  rm -r "$XDG_CACHE_HOME"' || {
  echo "tests/setup.sh: gf_build_cache fails without nvcc" >&2
  exit 1
}
