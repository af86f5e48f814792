#!/usr/bin/env bash
# Builds libgradientflow.so without Bazel, and without CUDA.
#
#   integrations/c/build_library.sh OUT
#
# OUT is the file to write. The build needs a C++20 compiler (CXX; else g++ or
# clang++), libsodium.a, and the headers of Highway, nlohmann-json, libsodium and
# libibverbs in the compiler's search path or in the folders that CPPFLAGS (-I...)
# and CXXFLAGS (-L...) add. CXXFLAGS are added to the optimised defaults. JOBS is the
# number of files to compile at a time, by default the number of cores.
set -eu -o pipefail

fail() {
  echo "build_library: $*" >&2
  exit 1
}

(($# == 1)) || {
  sed -n '2,/^set /s/^# \{0,1\}//p' "$0"
  exit 2
}
out=$(realpath -m -- "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if [[ -z ${CXX-} ]]; then
  CXX=$(command -v g++ || command -v clang++) ||
    fail "neither g++ nor clang++ is on the PATH; set CXX to a C++20 compiler"
fi
read -r -a preprocess <<<"${CPPFLAGS-}"
read -r -a added <<<"${CXXFLAGS-}"
# CXX may contain a launcher or options, as in "ccache g++".
read -r -a compiler <<<"$CXX"
export LC_ALL=C

objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT

# accepts SOURCE_LINE: succeeds if the compiler accepts the line.
accepts() {
  "${compiler[@]}" -std=c++20 "${preprocess[@]}" "${added[@]}" -fsyntax-only \
    -x c++ - <<<"$1" 2>"$objects/why"
}
accepts 'int main() { return [](auto x) requires(sizeof(x) > 0) { return x; }(0); }' ||
  fail "$CXX does not compile C++20:
$(head -n 5 "$objects/why")"
# header NAME PACKAGE: fails with advice if the compiler does not find NAME.
header() {
  accepts "#include <$1>" || fail "no <$1> for $CXX: install $2, or set" \
    "CPPFLAGS=-I... to where it is"
}
header hwy/highway.h "Highway (libhwy-dev, highway-devel)"
header nlohmann/json.hpp "nlohmann-json (nlohmann-json3-dev, json-devel)"
header sodium.h "libsodium (libsodium-dev, libsodium-static)"
header infiniband/verbs.h "libibverbs (libibverbs-dev, rdma-core-devel)"

# The sources that the BUILD files take with --define=cuda=off: all except
# programs, ranks that are threads, and what needs the CUDA toolkit.
mapfile -t sources < <(
  find gradientflow kernels transports integrations/c -name '*.cc' \
    ! -name '*_main.cc' ! -path gradientflow/communicator/inproc.cc \
    ! -path 'transports/inproc/*' ! -path 'gradientflow/probe/*' \
    ! -path 'gradientflow/device/cuda_*.cc' | sort
)
sources+=(gradientflow/device/cuda_absent.cc gradientflow/device/cuda_facts.cc)

# Kernels give the same bits with every compiler: see kernels/BUILD.
compile() {
  local source=$1 extra=()
  [[ $source != kernels/* ]] || extra=(-ffp-contract=off)
  "${compiler[@]}" -std=c++20 -O2 -DNDEBUG -fPIC -fvisibility-inlines-hidden \
    -ffunction-sections -fdata-sections "${extra[@]}" -I. "${preprocess[@]}" \
    "${added[@]}" -c "$source" -o "$objects/${source//\//_}.o" ||
    fail "$source does not compile"
}

jobs_at_once=${JOBS:-$(nproc)}
running=0
for source in "${sources[@]}"; do
  compile "$source" &
  if ((++running >= jobs_at_once)); then
    wait -n || exit 1
    running=$((running - 1))
  fi
done
while ((running-- > 0)); do wait -n || exit 1; done

# One file to copy: it contains libstdc++ and exports gf_* only. Programs keep to
# libraries of the major version that they were linked with.
major=$(sed -n 's/^#define GF_VERSION_MAJOR //p' integrations/c/gradientflow_base.h)
[[ $major =~ ^[0-9]+$ ]] || fail "the header states no version"
mkdir -p "$(dirname "$out")"
"${compiler[@]}" -shared "${added[@]}" -o "$objects/library" "$objects"/*.o \
  -Wl,-soname,"libgradientflow.so.$major" -Wl,--gc-sections \
  -Wl,--version-script=integrations/c/exports.map \
  -Wl,--as-needed -l:libsodium.a -l:libstdc++.a -static-libgcc -pthread -ldl ||
  fail "the library does not link"
mv "$objects/library" "$out"
