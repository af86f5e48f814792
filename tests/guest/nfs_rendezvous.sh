#!/usr/bin/env bash
# tests/guest/nfs_rendezvous.sh EXAMPLE [SECONDS]
#
# Runs inside tests/guest/run -m nfsv4 -m nfsd. Four ranks of EXAMPLE
# (integrations/c/example) meet in files on an NFS server. Even ranks see it through one
# mount and odd ranks through another, each with the kernel's usual caches, as two hosts
# would. Ranks start one after another; rank 3 is SECONDS late (default 7).
set -u
example=$1 late=${2:-7}

mount -t tmpfs tmpfs /srv
mkdir -p /srv/share /var/lib/nfs/{v4recovery,sm,sm.bak,rpc_pipefs} /mnt/0 /mnt/1
chmod 777 /srv/share
mount -t nfsd nfsd /proc/fs/nfsd
# A server that has just started lets nobody open a file for this long.
echo 10 >/proc/fs/nfsd/nfsv4gracetime
exportfs -o rw,fsid=0,no_root_squash,insecure,no_subtree_check '*:/srv/share' &&
  rpc.mountd -N 3 --manage-gids && rpc.nfsd -N 3 2 || exit 1
# The server knows a client by its host's name, and gives each of them leave to keep what
# it has read until another client changes it.
for client in 0 1; do
  server=127.0.0.$((client + 1))
  # shellcheck disable=SC2016
  unshare --uts bash -c 'hostname "host$1" && shift && exec mount "$@"' _ "$client" \
    -i -t nfs4 -o "vers=4.2,addr=$server,clientaddr=$server,nosharecache" \
    "$server:/" "/mnt/$client" || exit 1
done
echo "mounted: $(grep -c ' nfs4 ' /proc/mounts) times"

run() { # run NAME SECONDS: the ranks meet, and rank 3 comes late.
  local name=$1 late=$2 rank failed=0 pids=() began=$SECONDS
  for rank in 0 1 2 3; do
    ((rank != 3)) || sleep "$late"
    GRADIENTFLOW_SIZE=4 GRADIENTFLOW_RANK=$rank GRADIENTFLOW_FABRIC=tcp \
      GRADIENTFLOW_RENDEZVOUS=file:///mnt/$((rank % 2))/$name \
      GRADIENTFLOW_JOB_TOKEN=t "$example" >/tmp/out.$rank 2>&1 &
    pids+=($!)
  done
  for rank in 0 1 2 3; do
    wait "${pids[$rank]}" || {
      failed=1
      echo "$name: rank $rank: $(tail -n 1 /tmp/out.$rank)"
    }
  done
  echo "$name: $((failed ? 0 : 1)) passed after $((SECONDS - began)) s;" \
    "left behind: $(find "/srv/share/$name" -type f | wc -l) files"
  return $failed
}
rc=0
run at_once 0 || rc=1
run late "$late" || rc=1
# The files of the runs before are gone, but hosts may remember them.
run late "$late" || rc=1
run late 0 || rc=1
exit $rc
