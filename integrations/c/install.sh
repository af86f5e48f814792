#!/usr/bin/env bash
# Installs GradientFlow for programs that are not built with Bazel, in C or in a
# language that calls C: the shared library, its headers, and the files by which
# pkg-config and CMake find them.
#
#   integrations/c/install.sh PREFIX
#
# PREFIX is an absolute folder: /usr/local, or one of your own. build_library.sh
# builds the library, unless LIBGRADIENTFLOW names one that Bazel has built
# (//integrations/c:libgradientflow.so, with CUDA where nvcc is found). DESTDIR,
# if set, is put in front of PREFIX, for packagers. The library of each major version
# is a file of its own, by which programs find it when they run; the newest
# installed is the one to link to. A program then says
#
#   #include <gradientflow/gradientflow.h>
#   cc program.c $(PKG_CONFIG_PATH=PREFIX/lib/pkgconfig pkg-config --cflags --libs gradientflow)
#
# or, in CMake, calls find_package(gradientflow) and links
# gradientflow::gradientflow.
set -eu -o pipefail

fail() {
  echo "install: $*" >&2
  exit 1
}

(($# == 1)) || {
  sed -n '2,/^set /s/^# \{0,1\}//p' "$0"
  exit 2
}
prefix=${1%/}
[[ $prefix == /* ]] || fail "PREFIX is '$1': expected an absolute folder"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=${DESTDIR-}$prefix

part() { sed -n "s/^#define GF_VERSION_$1 //p" "$here/gradientflow_base.h"; }
major=$(part MAJOR)
version=$major.$(part MINOR).0
[[ $version =~ ^[0-9]+\.[0-9]+\.0$ ]] || fail "the header states no version"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
library=${LIBGRADIENTFLOW-}
if [[ -z $library ]]; then
  library=$scratch/libgradientflow.so
  "$here/build_library.sh" "$library"
fi
[[ -f $library ]] || fail "LIBGRADIENTFLOW: no file $library"
name=libgradientflow.so.$major
grep -qaF "$name" "$library" || fail "$library is not of version $major"

mkdir -p "$root/lib/pkgconfig" "$root/lib/cmake/gradientflow" \
  "$root/include/gradientflow"
install -m 755 "$library" "$root/lib/libgradientflow.so.$version"
ln -sf "libgradientflow.so.$version" "$root/lib/$name"
ln -sf "$name" "$root/lib/libgradientflow.so"
install -m 644 "$here"/gradientflow*.h "$root/include/gradientflow"

cat >"$root/lib/pkgconfig/gradientflow.pc" <<END
prefix=$prefix

Name: GradientFlow
Description: Gradient communication for data-parallel training
Version: $version
Cflags: -I\${prefix}/include
Libs: -L\${prefix}/lib -Wl,-rpath,\${prefix}/lib -lgradientflow
END

# Paths are relative to the file, so that the folder may be moved.
cat >"$root/lib/cmake/gradientflow/gradientflow-config.cmake" <<END
get_filename_component(_gradientflow_root "\${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET gradientflow::gradientflow)
  add_library(gradientflow::gradientflow SHARED IMPORTED)
  set_target_properties(gradientflow::gradientflow PROPERTIES
    IMPORTED_LOCATION "\${_gradientflow_root}/lib/$name"
    IMPORTED_SONAME "$name"
    INTERFACE_INCLUDE_DIRECTORIES "\${_gradientflow_root}/include")
endif()
END
cat >"$root/lib/cmake/gradientflow/gradientflow-config-version.cmake" <<END
set(PACKAGE_VERSION $version)
if(PACKAGE_FIND_VERSION_MAJOR EQUAL $major AND
   NOT PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
END
echo "installed GradientFlow $version in $root"
