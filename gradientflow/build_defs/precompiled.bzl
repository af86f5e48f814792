"""A header that is compiled once for all that include it first."""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "ACTION_NAMES")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

# What is compiled, formally: a file of the system that defines next to nothing. So
# the header that matters is a system header too, of which clang makes no note
# when the result is used. Its note would be an absolute name, which Bazel refuses.
_EMPTY = "/usr/include/stdc-predef.h"

def _precompiled_header(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    header = ctx.actions.declare_file(ctx.label.name + ".h")
    ctx.actions.symlink(output = header, target_file = ctx.file.header)

    # The name by which both gcc and clang find it beside the header.
    compiled = ctx.actions.declare_file(ctx.label.name + ".h.gch")
    context = cc_common.merge_cc_infos(
        cc_infos = [dep[CcInfo] for dep in ctx.attr.deps],
    ).compilation_context
    flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        source_file = _EMPTY,
        output_file = compiled.path,
        user_compile_flags = flags + [
            "-isystem",
            header.dirname,
            "-include",
            header.basename,
            "-x",
            "c++-header",
        ],
        include_directories = context.includes,
        quote_include_directories = context.quote_includes,
        system_include_directories = context.system_includes,
        preprocessor_defines = context.defines,
        use_pic = True,
    )
    ctx.actions.run(
        executable = cc_common.get_tool_for_action(
            feature_configuration = features,
            action_name = ACTION_NAMES.cpp_compile,
        ),
        arguments = cc_common.get_memory_inefficient_command_line(
            feature_configuration = features,
            action_name = ACTION_NAMES.cpp_compile,
            variables = variables,
        ),
        # clang notes the absolute names of what it reads: this one holds wherever
        # the result is used.
        env = {"PWD": "/proc/self/cwd"},
        inputs = depset(
            [header, ctx.file.header],
            transitive = [context.headers, toolchain.all_files],
        ),
        outputs = [compiled],
        mnemonic = "CppPrecompile",
        progress_message = "Compiling %s" % ctx.file.header.short_path,
    )
    return CcInfo(compilation_context = cc_common.create_compilation_context(
        headers = depset([header, compiled]),
    ))

_precompiled = rule(
    implementation = _precompiled_header,
    attrs = {
        "header": attr.label(allow_single_file = [".h", ".inc"], mandatory = True),
        "copts": attr.string_list(),
        "deps": attr.label_list(providers = [CcInfo]),
        "_cc_toolchain": attr.label(
            default = "@bazel_tools//tools/cpp:current_cc_toolchain",
        ),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def precompiled_header(copts = [], **kwargs):
    """`<name>.h`, a copy of `header`, and what the compiler makes of it.

    C++ files of targets that depend on this begin with
    `-include <package>/<name>.h`. REQUIRES: they are compiled with the same
    `copts`, apart from those about warnings.

    `header`, `copts` and `deps` are what they are for a cc_library of one header.
    """
    _precompiled(
        copts = copts + select({
            "//gradientflow/build_defs:clang": [
                "-Xclang",
                # Bazel's cache brings the result to checkouts whose files were
                # written at another time. Their content is part of its key.
                "-fno-pch-timestamp",
                # Templates that the headers themselves use: clang would
                # instantiate them in each file that starts from the result.
                "-fpch-instantiate-templates",
            ],
            "//conditions:default": [],
        }),
        **kwargs
    )
