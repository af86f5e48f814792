#!/usr/bin/env bash
# tests/guest/nfs_rendezvous.sh EXAMPLE DIES_AFTER_MEETING [SECONDS]
#
# Runs inside tests/guest/run -m nfsv4 -m nfsd. Ranks of EXAMPLE (integrations/c/example)
# meet in files on an NFS server. Even ranks see it through one mount and odd ranks
# through another, each with the kernel's usual caches, as two hosts would. Ranks start
# one after another; the last one is SECONDS late (default 4, longer than the kernel keeps
# attributes). Then a rank ends between meeting and connecting
# (tests/faults/dies_after_meeting), and the others, on the other mount, name it.
set -u
PATH=$PATH:/usr/sbin
example=$1 dies=$2 late=${3:-4}

step() { echo "nfs, ${SECONDS} s: $*"; }
serve() {
  mount -t tmpfs tmpfs /srv
  mkdir -p /srv/share /var/lib/nfs/{v4recovery,sm,sm.bak,rpc_pipefs} /mnt/0 /mnt/1
  chmod 777 /srv/share
  mount -t nfsd nfsd /proc/fs/nfsd || return 1
  # A server that has just started lets nobody open a file for this long.
  echo 10 >/proc/fs/nfsd/nfsv4leasetime
  echo 10 >/proc/fs/nfsd/nfsv4gracetime
  exportfs -o rw,fsid=0,no_root_squash,insecure,no_subtree_check '*:/srv/share' &&
    timeout 20 rpc.mountd -N 3 --manage-gids && timeout 20 rpc.nfsd -N 3 2 || return 1
  # No client had opened anything before.
  echo Y >/proc/fs/nfsd/v4_end_grace 2>/dev/null
  step "the server runs"
}

# The server knows a client by its host's name, and gives each of them leave to keep what
# it has read until another client changes it.
mount_as() {
  local client=$1 server=127.0.0.$(($1 + 1))
  # shellcheck disable=SC2016
  unshare --uts bash -c 'hostname "host$1" && shift && exec timeout 30 mount "$@"' _ \
    "$client" -i -t nfs4 -o "vers=4.2,addr=$server,clientaddr=$server,nosharecache" \
    "$server:/" "/mnt/$client"
}

unset GRADIENTFLOW_RDMA_DEVICES
export GRADIENTFLOW_FABRIC=tcp GRADIENTFLOW_JOB_TOKEN=t GRADIENTFLOW_JOIN_TIMEOUT_SECONDS=40

meets() { # meets NAME SECONDS: four ranks meet, and rank 3 comes late.
  local name=$1 late=$2 rank failed=0 pids=() began=$SECONDS
  for rank in 0 1 2 3; do
    ((rank != 3)) || sleep "$late"
    GRADIENTFLOW_SIZE=4 GRADIENTFLOW_RANK=$rank \
      GRADIENTFLOW_RENDEZVOUS=file:///mnt/$((rank % 2))/$name \
      "$example" >"/tmp/out.$rank" 2>&1 &
    pids+=($!)
  done
  for rank in 0 1 2 3; do
    wait "${pids[$rank]}" || {
      failed=1
      echo "$name: rank $rank: $(tail -n 1 /tmp/out.$rank)"
    }
  done
  step "$name: $((failed ? 0 : 1)) passed after $((SECONDS - began)) s;" \
    "left behind: $(find "/srv/share/$name" -type f | wc -l) files"
  return $failed
}

names() { # names VICTIM: of three ranks one ends, unseen but for the lock of its file.
  local victim=$1 rank pids=() failed=0 end took
  for rank in 0 1 2; do
    ((rank != victim)) || continue
    (
      GRADIENTFLOW_SIZE=3 GRADIENTFLOW_RANK=$rank \
        GRADIENTFLOW_RENDEZVOUS=file:///mnt/0/death.$victim "$dies" look >"/tmp/out.$rank" 2>&1
      echo "$EPOCHREALTIME" >"/tmp/end.$rank"
    ) &
    pids+=($!)
  done
  GRADIENTFLOW_SIZE=3 GRADIENTFLOW_RANK=$victim \
    GRADIENTFLOW_RENDEZVOUS=file:///mnt/1/death.$victim \
    unshare --pid --fork "$dies" >"/tmp/out.$victim" 2>&1
  end=$EPOCHREALTIME
  wait "${pids[@]}"
  for rank in 0 1 2; do
    ((rank != victim)) || continue
    took=$(awk "BEGIN { print $(cat /tmp/end.$rank) - $end }")
    step "rank $rank: after $took s: $(tail -n 1 /tmp/out.$rank)"
    # Rank 0 may end before the others have read that all have met.
    grep -Eq "^rank $victim \(process 1 on .*ended (while ranks connected|during the)" \
      "/tmp/out.$rank" &&
      awk "BEGIN { exit $took > 2.5 }" || failed=1
  done
  return $failed
}

serve && mount_as 0 && mount_as 1 || exit 1
step "mounted $(grep -c ' nfs4 ' /proc/mounts) times"
rc=0
meets files "$late" || rc=1
# The files of the run before are gone, but hosts may remember them.
meets files 0 || rc=1
names 1 || rc=1
names 0 || rc=1
exit $rc
