#!/usr/bin/env bash
# Runs shellcheck on every shell script: *.sh, and what starts with #!...sh.
set -u -o pipefail
cd "$(dirname "$0")/../.." || exit 1
git ls-files -co --exclude-standard | while read -r file; do
  [[ -f $file ]] || continue
  if [[ $file == *.sh ]] || head -c 40 "$file" | grep -aq '^#!.*\bbash\b'; then
    printf '%s\0' "$file"
  fi
done | xargs -0 shellcheck -x
