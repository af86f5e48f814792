"""Sources that are compiled as fewer files."""

def _units(ctx):
    outputs = [
        ctx.actions.declare_file("%s/%d.cc" % (ctx.label.name, number))
        for number in range(len(ctx.files.srcs))
    ]
    context = cc_common.merge_cc_infos(
        cc_infos = [dep[CcInfo] for dep in ctx.attr.deps],
    ).compilation_context
    arguments = ctx.actions.args()
    arguments.add(ctx.file._program)
    arguments.add("--to", outputs[0].dirname)
    arguments.add_all(ctx.files.srcs)
    ctx.actions.run(
        executable = "python3",
        arguments = [arguments],
        # It goes by the names in headers too.
        inputs = depset(
            ctx.files.srcs + ctx.files.hdrs + [ctx.file._program],
            transitive = [context.headers],
        ),
        outputs = outputs,
        mnemonic = "Units",
        progress_message = "Grouping the sources of %s" % ctx.label,
        use_default_shell_env = True,
    )
    return DefaultInfo(files = depset(outputs))

units = rule(
    doc = """The text of `srcs` in fewer files, as units.py groups it.

    A cc_library with `hdrs` and `deps` takes it in place of `srcs`. As Bazel must know
    the files beforehand, there is one for each source; those left over are empty.
    """,
    implementation = _units,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cc"]),
        "hdrs": attr.label_list(allow_files = True),
        "deps": attr.label_list(providers = [CcInfo]),
        "_program": attr.label(
            default = "//gradientflow/build_defs:units.py",
            allow_single_file = True,
        ),
    },
)
