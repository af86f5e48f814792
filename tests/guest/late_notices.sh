#!/usr/bin/env bash
# tests/guest/late_notices.sh TEST [ARGUMENT...]
#
# Runs inside tests/guest/run -m crc32_generic -m rdma_rxe -m ib_uverbs -m veth
# -m bridge -m sch_netem. TEST (//tests/rdma:late_notices_kernel_test) runs on two
# devices of Soft-RoCE whose lines delay packets for so long that every request is sent
# again. Linux 6.1 does not pass:
#
#   bazel build -c opt //tests/rdma:late_notices_kernel_test
#   tests/guest/run -m crc32_generic -m rdma_rxe -m ib_uverbs -m veth -m bridge \
#     -m sch_netem -t 300 tests/guest/late_notices.sh \
#     "$PWD/bazel-bin/tests/rdma/late_notices_kernel_test"
set -u

# shellcheck source=tests/rdma/lines.sh
source "$(dirname "$0")/../rdma/lines.sh"
rdma_lines 2 && delay_lines 2 3 || exit 1
"$@"
rc=$?
awk '{ n += $1 } END { print "times that requests were sent again:", n }' \
  /sys/class/infiniband/rxe*/ports/1/hw_counters/completer_retry_err
exit $rc
