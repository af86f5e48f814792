"""CUDA sources: compiled by nvcc, or handed to a C++ compiler as they are."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")
load("@local_cuda//:config.bzl", "CUDA_VERSION", "NVCC")

# What decides which code the kernels become. -fmad=false: every product and every
# sum is rounded by itself (kernels.h).
_CODE = [
    "-std=c++20",
    "-O3",
    "-fmad=false",
]
_WARNINGS = ["-Werror=all-warnings"]
_OBJECTS = _CODE + [
    "-Xcompiler=-fPIC",
    "-Xcompiler=-Wall",
] + _WARNINGS + [
    # All kernels fit their registers; one that spills to memory is an error.
    "-Xptxas=-warn-spills,-warn-lmem-usage",
]

def _named_architectures(ctx):
    return sorted([
        int(name)
        for name in ctx.var.get("cuda_archs", "80,90,100").split(",")
    ])

def _architectures(ctx):
    """nvcc's flags: code for each architecture, and for later ones, PTX."""
    architectures = _named_architectures(ctx)
    flags = [
        "-gencode=arch=compute_%d,code=sm_%d" % (a, a)
        for a in architectures
    ]
    last = architectures[-1]
    return flags + ["-gencode=arch=compute_%d,code=compute_%d" % (last, last)]

# The PTX that a cuda_library's code was made of: a dictionary from the architecture to
# one from the source to the file.
CudaPtxInfo = provider(fields = ["by_architecture"])

def _run_nvcc(ctx, source, flags, what, context, output, kept = []):
    """Makes `output`: "-c", an object, or "-ptx"; `context` has the headers.

    `kept`: files of one folder that nvcc makes on the way there, under its names.
    """
    toolchain = find_cpp_toolchain(ctx)
    arguments = ctx.actions.args()
    arguments.add_all(flags)
    arguments.add("-ccbin", toolchain.compiler_executable)
    arguments.add_all(context.quote_includes, before_each = "-I")
    arguments.add_all(context.includes, before_each = "-I")
    arguments.add_all(context.system_includes, before_each = "-isystem")
    arguments.add_all([what, source, "-o", output])
    if kept:
        arguments.add_all(["--keep", "--keep-dir", kept[0].dirname])
    ctx.actions.run(
        executable = NVCC,
        arguments = [arguments],
        inputs = depset(
            [source] + getattr(ctx.files, "hdrs", []),
            transitive = [context.headers],
        ),
        outputs = [output] + kept,
        env = {"GRADIENTFLOW_CUDA_VERSION": CUDA_VERSION},
        mnemonic = "Nvcc",
        progress_message = "Compiling %s for CUDA" % source.short_path,
        use_default_shell_env = True,
    )

def _compile(ctx, source, context):
    object_file = ctx.actions.declare_file(
        "_nvcc/%s/%s.o" % (ctx.label.name, source.short_path),
    )
    named = _named_architectures(ctx)
    stem = source.basename[:-len(".cu")]
    ptx = {
        architecture: ctx.actions.declare_file("_nvcc/%s/%s.kept/%s%s.ptx" % (
            ctx.label.name,
            source.short_path,
            stem,
            ".compute_%d" % architecture if len(named) > 1 else "",
        ))
        for architecture in named
    }
    flags = _OBJECTS + _architectures(ctx)
    _run_nvcc(ctx, source, flags, "-c", context, object_file, ptx.values())
    return object_file, ptx

def _cuda_library(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    deps = [dep[CcInfo] for dep in ctx.attr.deps + [ctx.attr._runtime]]
    of_deps = cc_common.merge_cc_infos(cc_infos = deps)
    compiled = {
        source: _compile(ctx, source, of_deps.compilation_context)
        for source in ctx.files.srcs
    }
    objects = depset([object_file for object_file, _ in compiled.values()])
    linking, _ = cc_common.create_linking_context_from_compilation_outputs(
        actions = ctx.actions,
        name = ctx.label.name,
        cc_toolchain = toolchain,
        compilation_outputs = cc_common.create_compilation_outputs(
            objects = objects,
            pic_objects = objects,
        ),
        disallow_dynamic_library = True,
        feature_configuration = features,
        linking_contexts = [dep.linking_context for dep in deps],
    )
    own = CcInfo(
        compilation_context = cc_common.create_compilation_context(
            headers = depset(ctx.files.hdrs),
        ),
        linking_context = linking,
    )
    return [
        DefaultInfo(files = objects),
        cc_common.merge_cc_infos(direct_cc_infos = [own], cc_infos = deps),
        CudaPtxInfo(by_architecture = {
            architecture: {
                source: ptx[architecture]
                for source, (_, ptx) in compiled.items()
            }
            for architecture in _named_architectures(ctx)
        }),
    ]

cuda_library = rule(
    doc = """A library of .cu files, as cc_library is one of .cc files.

    nvcc compiles each for the architectures that --define=cuda_archs names
    (compute capabilities with commas between), and its host code with the
    toolchain's compiler. The result is a static archive. Only where
    @local_cuda's HAVE_CUDA is True.
    """,
    implementation = _cuda_library,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu"]),
        "hdrs": attr.label_list(allow_files = [".h", ".cuh"]),
        "deps": attr.label_list(providers = [CcInfo]),
        "_runtime": attr.label(default = "@local_cuda//:runtime"),
        "_cc_toolchain": attr.label(
            default = "@bazel_tools//tools/cpp:current_cc_toolchain",
        ),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def _cuda_ptx(ctx):
    deps = [dep[CcInfo] for dep in ctx.attr.deps + [ctx.attr._runtime]]
    context = cc_common.merge_cc_infos(cc_infos = deps).compilation_context
    known = sorted(ctx.attr.architectures)
    made = ctx.attr.library[CudaPtxInfo].by_architecture
    outputs = []
    for architecture in known:
        if architecture not in made and architecture not in [known[0], known[-1]]:
            continue
        for source in ctx.files.srcs:
            output = ctx.actions.declare_file("%s/%d/%s.ptx" % (
                ctx.label.name,
                architecture,
                source.basename[:-len(".cu")],
            ))
            outputs.append(output)
            if architecture in made:
                file = made[architecture][source]
                ctx.actions.symlink(output = output, target_file = file)
                continue
            flags = _CODE + _WARNINGS + ["-arch=compute_%d" % architecture]
            _run_nvcc(ctx, source, flags, "-ptx", context, output)
    return DefaultInfo(
        files = depset(outputs),
        runfiles = ctx.runfiles(outputs),
    )

cuda_ptx = rule(
    doc = """The PTX of .cu files: <name>/<architecture>/<file>.ptx.

    It is what the code of `library`, a cuda_library with these sources, was made of,
    for such of the architectures as --define=cuda_archs names. For the oldest and the
    newest it is made by the same flags if need be. Only where @local_cuda's HAVE_CUDA
    is True.
    """,
    implementation = _cuda_ptx,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu"]),
        "deps": attr.label_list(providers = [CcInfo]),
        "architectures": attr.int_list(mandatory = True),
        "library": attr.label(mandatory = True, providers = [CudaPtxInfo]),
        "_runtime": attr.label(default = "@local_cuda//:runtime"),
        "_cc_toolchain": attr.label(
            default = "@bazel_tools//tools/cpp:current_cc_toolchain",
        ),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def _cuda_as_cc(ctx):
    copies = []
    for source in ctx.files.srcs:
        copy = ctx.actions.declare_file(source.short_path + ".cc")
        ctx.actions.symlink(output = copy, target_file = source)
        copies.append(copy)
    return DefaultInfo(files = depset(copies))

cuda_as_cc = rule(
    doc = "The same .cu files by names that cc_library takes: <path>.cu.cc.",
    implementation = _cuda_as_cc,
    attrs = {"srcs": attr.label_list(allow_files = [".cu"])},
)
