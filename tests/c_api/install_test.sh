#!/usr/bin/env bash
# pkg-config and CMake find what integrations/c/install.sh installs in a folder,
# and a program built with either runs.
set -eu -o pipefail
export LIBGRADIENTFLOW=$PWD/$1
install=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
prefix=$scratch/prefix

"$install" "$prefix"
cat >"$scratch/program.c" <<'END'
#include <gradientflow/gradientflow.h>
#include <gradientflow/gradientflow_csc.h>
#include <gradientflow/gradientflow_profile.h>
#include <stdio.h>

int main(void) {
  gf_options* options = NULL;
  gf_comm* comm = NULL;
  double one = 1;
  if (gf_version() != GF_VERSION_MAJOR * 1000 + GF_VERSION_MINOR) return 2;
  if (gf_options_default(&options) != GF_OK) return 3;
  if (gf_options_set(options, "rank", "0") != GF_OK) return 4;
  if (gf_options_set(options, "size", "1") != GF_OK) return 5;
  if (gf_comm_open(options, &comm) != GF_OK) return 6;
  gf_options_free(options);
  if (gf_comm_allreduce(comm, &one, 1, GF_FLOAT64, GF_SUM) != GF_OK) return 7;
  gf_comm_close(comm);
  return one == 1 ? 0 : 8;
}
END

# With pkg-config.
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
read -r -a flags < <(pkg-config --cflags --libs gradientflow)
[[ $(pkg-config --modversion gradientflow) == 2.* ]]
gcc -Wall -Werror "$scratch/program.c" -o "$scratch/by_pkg_config" "${flags[@]}"
"$scratch/by_pkg_config"
# It keeps to libraries of this major version.
readelf -d "$scratch/by_pkg_config" | grep -qF "[libgradientflow.so.2]"
rm "$prefix/lib/libgradientflow.so" && "$scratch/by_pkg_config"
"$install" "$prefix"

# With CMake, from a folder that was moved after the installation.
mv "$prefix" "$scratch/moved"
cat >"$scratch/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.13)
project(program C)
find_package(gradientflow 2.0 REQUIRED)
add_executable(by_cmake program.c)
target_link_libraries(by_cmake gradientflow::gradientflow)
END
cmake -S "$scratch" -B "$scratch/build" -DCMAKE_PREFIX_PATH="$scratch/moved" \
  >"$scratch/cmake.log" || { cat "$scratch/cmake.log"; exit 1; }
cmake --build "$scratch/build" >>"$scratch/cmake.log" ||
  { cat "$scratch/cmake.log"; exit 1; }
"$scratch/build/by_cmake"

# A relative folder is refused.
if "$install" somewhere 2>"$scratch/why"; then exit 9; fi
grep -q "expected an absolute folder" "$scratch/why"

# So is what is no library of this version.
echo "something else" >"$scratch/other"
if LIBGRADIENTFLOW=$scratch/other "$install" "$scratch/never" 2>"$scratch/why"; then
  exit 10
fi
grep -q "is not of version 2" "$scratch/why"
