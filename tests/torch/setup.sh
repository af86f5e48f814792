# shellcheck shell=bash
# Sourced by benchmarks/torch/run, at the repository's root.
#
#   gf_torch_packages   what a fresh machine lacks for tests/torch/run
#   gf_torch_setup      an environment with torch and this checkout's
#                       gradientflow.torch, the one that tests use: sets
#                       GF_TORCH_PYTHON and exports PYTHONPATH
#   gf_torch_library    builds libgradientflow.so with Bazel, for tests/torch/run:
#                       exports LIBGRADIENTFLOW
source tests/setup.sh

gf_torch_packages() {
  # Debian has separate packages for venv and for the headers of its Python.
  if [[ $(command -v python3) == /usr/bin/python3 ]]; then
    gf_setup python3-venv python3-dev
  else
    gf_setup
  fi
}

gf_torch_library() {
  gf_build_cache
  bazel build -c opt "${GF_BAZEL_FLAGS[@]}" \
    //integrations/c:libgradientflow.so || return 1
  export LIBGRADIENTFLOW=$PWD/bazel-bin/integrations/c/libgradientflow.so
}

gf_torch_setup() {
  gf_torch_packages && gf_torch_library || return 1
  local made
  made=$(tests/torch/run --install-only) || {
    echo "$made" >&2
    return 1
  }
  # shellcheck disable=SC2034
  GF_TORCH_PYTHON=$(sed -n 's/^python: //p' <<<"$made")
  PYTHONPATH=$(sed -n 's/^packages: //p' <<<"$made")
  export PYTHONPATH
}
