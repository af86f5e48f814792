#!/usr/bin/env bash
# tests/guest/verbs_rules.sh TEST [ARGUMENT...]
#
# Runs inside tests/guest/run -m crc32_generic -m rdma_rxe -m ib_uverbs -m veth. TEST
# (//tests/rdma:verbs_rules_kernel_test) runs on two devices of Soft-RoCE, each at one
# end of a line, and must not skip anything.
set -u

# Both addresses are this kernel's own, and it would deliver between them by itself. So:
# what is bound to an interface, as Soft-RoCE's packets are, leaves by it, and what comes
# in from a line is looked up as local.
for all in all default; do
  echo 0 >"/proc/sys/net/ipv4/conf/$all/rp_filter"
  echo 1 >"/proc/sys/net/ipv4/conf/$all/accept_local"
  echo 1 >"/proc/sys/net/ipv4/conf/$all/arp_ignore"
  echo 2 >"/proc/sys/net/ipv4/conf/$all/arp_announce"
done
ip rule del pref 0
ip rule add pref 30 lookup local
ip link add v1 mtu 4500 address 02:00:00:00:00:01 type veth \
  peer name v2 mtu 4500 address 02:00:00:00:00:02 || exit 1
for end in 1 2; do
  other=$((3 - end))
  ip link set "v$end" up
  ip address add "10.7.0.$end/24" dev "v$end" || exit 1
  ip rule add pref 10 iif "v$end" lookup local || exit 1
  ip rule add pref 20 oif "v$end" lookup $((1000 + end)) || exit 1
  ip route add 10.7.0.0/24 dev "v$end" table $((1000 + end)) || exit 1
  ip neigh replace "10.7.0.$other" dev "v$end" \
    lladdr "02:00:00:00:00:0$other" nud permanent || exit 1
  rdma link add "rxe$end" type rxe netdev "v$end" || exit 1
done
ulimit -l unlimited
said=$("$@" 2>&1)
rc=$?
echo "$said"
if grep -q SKIPPED <<<"$said"; then exit 1; fi
exit $rc
