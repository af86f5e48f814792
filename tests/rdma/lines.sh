# shellcheck shell=bash
# Devices of Soft-RoCE: the kernel's RDMA over ordinary network interfaces.
#
# Sourced inside tests/guest/run:
#   rdma_lines N   makes the devices rxe0 ... rxe<N-1>. Device I is on the interface
#                  line<I>, has the address 10.77.0.<I+1>, and a line of its own to
#                  a bridge.
#   delay_lines N MS   lets packets take MS milliseconds on each of N lines; 0: no more
#   spoil_card port|address I   cuts device I's line, or takes its address away
#   mend_card port|address I    undoes that, and returns when the device works again
#
# Sourced by what starts it:
#   RDMA_MODULES   the arguments of tests/guest/run that all this needs; sch_netem is
#                  for lines that delay or lose packets
#   RDMA_PACKAGES  what this machine must have

# shellcheck disable=SC2034
RDMA_MODULES=(-m crc32_generic -m rdma_rxe -m ib_uverbs -m veth -m bridge -m sch_netem)
# shellcheck disable=SC2034
RDMA_PACKAGES=(qemu-system-x86 busybox-static xz-utils libibverbs1 ibverbs-providers iproute2
  python3-cffi)

rdma_lines() {
  local devices=$1 i k
  # All addresses are this kernel's own, and it would deliver between them by itself.
  # So what is bound to an interface, as rxe's packets are, leaves by it, and what
  # comes in from a line is looked up as local.
  sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 \
    net.ipv4.conf.all.accept_local=1 net.ipv4.conf.default.accept_local=1 \
    net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2 \
    net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1 || return 1
  ip link set lo up
  ip link add bridge type bridge stp_state 0 forward_delay 0 || return 1
  ip link set bridge mtu 4500 up
  for ((i = 0; i < devices; ++i)); do
    ip link add "line$i" mtu 4500 address "02:00:00:00:00:0$((i + 1))" \
      type veth peer name "port$i" mtu 4500 || return 1
    ip link set "port$i" master bridge up
    ip link set "line$i" up
    ip address add "10.77.0.$((i + 1))/24" dev "line$i"
    ip rule add pref 10 iif "line$i" lookup local
    ip rule add pref 20 oif "line$i" lookup $((1000 + i))
    ip route add 10.77.0.0/24 dev "line$i" table $((1000 + i))
    # Nobody asks for what is known.
    for ((k = 0; k < devices; ++k)); do
      ((k == i)) || ip neigh replace "10.77.0.$((k + 1))" dev "line$i" \
        lladdr "02:00:00:00:00:0$((k + 1))" nud permanent
    done
    rdma link add "rxe$i" type rxe netdev "line$i" || return 1
  done
  ulimit -l unlimited
}

delay_lines() {
  local i
  for ((i = 0; i < $1; ++i)); do
    if (($2)); then
      tc qdisc replace dev "line$i" root netem delay "$2ms"
    else
      tc qdisc del dev "line$i" root
    fi || return 1
  done
}

spoil_card() {
  case $1 in
    port) ip link set "port$2" down ;;
    address) ip address del "10.77.0.$(($2 + 1))/24" dev "line$2" ;;
  esac
}

mend_card() {
  local port=/sys/class/infiniband/rxe$2/ports/1 _
  case $1 in
    port) ip link set "port$2" up ;;
    address)
      ip address add "10.77.0.$(($2 + 1))/24" dev "line$2"
      ip route replace 10.77.0.0/24 dev "line$2" table $((1000 + $2))
      ;;
  esac
  for _ in {1..100}; do
    grep -q ACTIVE "$port/state" &&
      grep -qs ":ffff:0a4d:000$(($2 + 1))$" "$port"/gids/* && return
    sleep 0.05
  done
  return 1
}
