"""Finds CUDA on the machine: $CUDA_HOME if it is set, else /usr/local/cuda.

The repository has config.bzl (HAVE_CUDA, NVCC, CUDA_VERSION) and the library
//:runtime: CUDA's headers, and its runtime as the rest is linked: statically
into programs, as a shared library where tests are made of such (the symbols of
the static one are hidden from them). Where there is no nvcc, HAVE_CUDA is False
and the library is empty, so that all loads and builds.
"""

_RUNTIME = """
cc_import(
    name = "cudart",
    shared_library = glob(["libcudart.so.*"])[0],
    static_library = "libcudart_static.a",
)

cc_library(
    name = "runtime",
    hdrs = glob([
        "include/*.h",
        "include/*.hpp",
        "include/crt/*",
        "include/nccl_device/**",
        "include/nv/**",
    ]),
    includes = ["include"],
    linkopts = ["-ldl", "-lrt", "-pthread"],
    visibility = ["//visibility:public"],
    deps = [":cudart"],
)
"""

_NO_RUNTIME = """
cc_library(
    name = "runtime",
    visibility = ["//visibility:public"],
)
"""

_CONFIG = """
HAVE_CUDA = {have}
NVCC = "{nvcc}"
CUDA_VERSION = "{version}"
"""

def _shared_runtime(ctx, root):
    """The file libcudart.so.<major>, which is what programs ask for."""
    for file in ctx.path(root + "/lib64").readdir():
        major = file.basename.replace("libcudart.so.", "", 1)
        if major != file.basename and major.isdigit():
            return file.basename
    return None

def _toolkit(ctx):
    """The folder of a whole toolkit, or None."""
    root = ctx.os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    needed = [
        "bin/nvcc",
        "include/cuda_runtime.h",
        "lib64/libcudart_static.a",
    ]
    for file in needed:
        if not ctx.path(root + "/" + file).exists:
            return None
    return root if _shared_runtime(ctx, root) else None

def _cuda_repository(ctx):
    root = _toolkit(ctx)
    nvcc = ""
    version = ""
    if root:
        nvcc = root + "/bin/nvcc"
        asked = ctx.execute([nvcc, "--version"])

        # Part of every action's key, so that a new toolkit compiles anew.
        version = asked.stdout.strip().split("\n")[-1]
        if asked.return_code != 0:
            # Printed, because from here on the machine looks like one without
            # CUDA.
            print("%s does not run: %s" % (nvcc, asked.stderr))
            root = None
    if root:
        shared = _shared_runtime(ctx, root)
        ctx.symlink(root + "/include", "include")
        ctx.symlink(root + "/lib64/libcudart_static.a", "libcudart_static.a")
        ctx.symlink(root + "/lib64/" + shared, shared)
    ctx.file("BUILD", _RUNTIME if root else _NO_RUNTIME)
    ctx.file("config.bzl", _CONFIG.format(
        have = bool(root),
        nvcc = nvcc,
        version = version,
    ))

cuda_repository = repository_rule(
    implementation = _cuda_repository,
    configure = True,
    environ = ["CUDA_HOME"],
    local = True,
)
