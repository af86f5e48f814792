#!/usr/bin/env bash
# tests/guest/verbs_rules.sh TEST [ARGUMENT...]
#
# Runs inside tests/guest/run -m crc32_generic -m rdma_rxe -m ib_uverbs -m veth
# -m bridge. TEST (//tests/rdma:verbs_rules_kernel_test) runs on two devices of
# Soft-RoCE, each on its own line, and must not skip anything.
set -u

# shellcheck source=tests/rdma/lines.sh
source "$(dirname "$0")/../rdma/lines.sh"
rdma_lines 2 || exit 1
said=$("$@" 2>&1)
rc=$?
echo "$said"
if grep -q SKIPPED <<<"$said"; then exit 1; fi
exit $rc
