# shellcheck shell=bash
# Sourced by tests/run and benchmarks/run: installs on a Debian 12 or Ubuntu 24.04
# machine what is needed to build everything. It asks no questions and needs no
# terminal.
#
#   gf_setup [package...]           what building and testing needs, and these
#   gf_setup_optional package...    tries; a failure is a message, not an error
#   gf_build_cache                  sets GF_BAZEL_FLAGS, for builds that share
#                                   what was compiled once
#   gf_bazel CONFIGURATION          sets GF_BAZEL, the command for one that is
#                                   built while another is tested

GF_PACKAGES=(
  g++ binutils git python3 iproute2 cmake pkgconf
  clang libclang-rt-dev clang-format-14 clang-tidy-14 shellcheck
  googletest libbenchmark-dev libhwy-dev libcli11-dev nlohmann-json3-dev
  libsodium-dev libibverbs-dev python3-numpy python3-cffi valgrind
)

_gf_missing() {
  local package
  for package in "$@"; do
    dpkg-query -W -f '${db:Status-Abbrev}\n' "$package" 2>/dev/null |
      grep -q '^ii' || echo "$package"
  done
}

_gf_apt_get() {
  local as_root=()
  ((EUID == 0)) || as_root=(sudo -n)
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=a \
    apt-get -qq -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@" \
    </dev/null >"$_gf_apt_log" 2>&1
}

# Once per run: package lists are empty on a fresh machine, and mostly stale on
# others.
_gf_apt_update() {
  [[ -n ${_gf_apt_updated-} ]] && return
  _gf_apt_updated=1
  # If one source is down, that need not matter: the installation decides.
  _gf_apt_get update || tail -n 5 "$_gf_apt_log" >&2
}

_gf_install() {
  local missing=() _gf_apt_log
  mapfile -t missing < <(_gf_missing "$@")
  ((${#missing[@]})) || return 0
  local line="apt-get install -y --no-install-recommends ${missing[*]}"
  if ! command -v apt-get >/dev/null; then
    echo "setup: no apt-get here. These Debian packages, or their like, are" \
      "missing: ${missing[*]}" >&2
    return 1
  fi
  if ((EUID != 0)) && ! sudo -n true 2>/dev/null; then
    echo "setup: neither root nor passwordless sudo. Please run, as root:" >&2
    echo "  apt-get update && $line" >&2
    return 1
  fi
  _gf_apt_log=$(mktemp)
  echo "setup: installing ${missing[*]}"
  _gf_apt_update
  local rc=0
  _gf_apt_get install -y --no-install-recommends "${missing[@]}" || rc=1
  if ((rc)); then
    tail -n 15 "$_gf_apt_log" >&2
    echo "setup: this failed: $line" >&2
  fi
  rm -f "$_gf_apt_log"
  return "$rc"
}

gf_setup() {
  # Any bazel that is already installed will do (it would conflict with
  # Debian's).
  local packages=("${GF_PACKAGES[@]}" "$@")
  command -v bazel >/dev/null || packages+=(bazel-bootstrap)
  if ! _gf_install "${packages[@]}"; then
    command -v bazel >/dev/null ||
      echo "setup: no bazel. Where the distribution has no bazel-bootstrap," \
        "put Bazel 4.2 on the PATH as 'bazel' and run this again." >&2
    return 1
  fi
}

gf_setup_optional() {
  _gf_install "$@" || echo "setup: going on without: $(_gf_missing "$@" | xargs)"
}

# Objects that other clones of this user have compiled with the same tools and
# libraries. These are part of the cache's name, since Bazel does not check
# them. Objects that were not used for a week are removed.
gf_build_cache() {
  local root=${XDG_CACHE_HOME:-$HOME/.cache}/gradientflow/bazel stamp
  stamp=$({
    uname -m
    bazel --version
    dpkg-query -W -f '${Package} ${Version}\n' 'gcc*' 'g++*' 'clang*' 'libc6*' 'linux-libc*' \
      'libstdc++*' 'libhwy*' 'libcli11*' 'nlohmann*' 'libbenchmark*' 'googletest*' \
      'libsodium*'
    # Many machines have none.
    "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" --version || true
  } 2>/dev/null | sha256sum | cut -c1-16)
  mkdir -p "$root/$stamp" || return 0
  # A build that still runs may be writing there.
  find "$root" -mindepth 1 -maxdepth 1 ! -name "$stamp" -exec rm -rf {} + 2>/dev/null || true
  find "$root/$stamp" -type f -atime +7 -delete
  GF_BAZEL_FLAGS=("--disk_cache=$root/$stamp")
  if [[ -n ${GF_CUDA_ARCHS-} ]]; then
    GF_BAZEL_FLAGS+=("--define=cuda_archs=$GF_CUDA_ARCHS")
  fi
}

# A server and an output folder of its own beside the usual ones, since a server
# does one thing at a time: it would not even say where its folder is meanwhile.
# Builds with it get "${GF_NO_LINKS[@]}": links in the checkout that lead into another
# server's folder look like packages to the first.
# shellcheck disable=SC2034
GF_NO_LINKS=(--symlink_prefix=/)
gf_bazel() {
  export GF_OUTPUT_BASE=${GF_OUTPUT_BASE:-$(bazel info output_base)}
  # shellcheck disable=SC2034
  GF_BAZEL=(bazel "--output_base=$GF_OUTPUT_BASE-$1")
}
