#!/usr/bin/env bash
# tests/guest/rdma_devices.sh INFO
#
# Runs inside tests/guest/run -m crc32_generic -m rdma_rxe -m ib_uverbs -m veth. INFO (gradientflow_info) lists two
# devices of Soft-RoCE, the kernel's RDMA over an ordinary network interface.
set -u
info=$1
rc=0
expect() { # expect TEXT: INFO has said it.
  grep -qF -- "$1" <<<"$said" && return
  rc=1
  echo "expected \"$1\""
}

said=$("$info")
expect "no device"
ip link add one type veth peer name two || exit 1
for end in 1 2; do
  name=$( ((end == 1)) && echo one || echo two)
  ip address add "10.7.0.$end/24" dev "$name" && ip link set "$name" up || exit 1
  rdma link add "rxe$end" type rxe netdev "$name" || exit 1
done
said=$("$info")
expect "rxe1:1 active, Ethernet"
expect "RoCE v2 10.7.0.1"
expect "rxe2:1 active, Ethernet"
expect "RoCE v2 10.7.0.2"
expect "memory of GPUs by dma-buf: no"
ip link set two down
said=$("$info")
expect "rxe2:1 down"
said=$(ulimit -l 64 && "$info")
expect "at most 65536 bytes"
said=$("$info" --json)
expect '"address": "10.7.0.1"'
((rc == 0)) || "$info"
exit $rc
