#!/usr/bin/env bash
# Checks that the shared library exports exactly the functions that its headers
# declare, is named after their major version, and needs nothing at run time that
# a machine without a compiler lacks.
set -u -o pipefail
library=$1
shift

declared=$(grep -ohE '\bgf_[a-z0-9_]+\(' "$@" | tr -d '(' | sort -u)
exported=$(nm -D --defined-only "$library" | awk '{print $NF}' |
  sed 's/@.*//' | sort -u)
[[ -n $declared ]] || { echo "no function in $*?"; exit 1; }

rc=0
# Comments may name functions as in "gf_*_init()"; the pattern ignores them.
if ! diff <(echo "$declared") <(echo "$exported"); then
  echo "< declared in the headers, > exported by the library"
  rc=1
fi

major=$(cat "$@" | sed -n 's/^#define GF_VERSION_MAJOR //p')
if ! readelf -d "$library" | grep -qF "(SONAME)" ||
  ! readelf -d "$library" | grep -qF "[libgradientflow.so.$major]"; then
  echo "expected the SONAME libgradientflow.so.$major"
  rc=1
fi

needed=$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
for name in $needed; do
  case $name in
    libc.so.6 | libm.so.6 | libpthread.so.0 | libdl.so.2 | librt.so.1) ;;
    ld-linux*) ;;
    *)
      echo "needs $name"
      rc=1
      ;;
  esac
done
exit "$rc"
