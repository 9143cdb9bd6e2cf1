#!/usr/bin/env bash
# A Slurm of one node on this machine, to try `gumtrace sweep --cluster slurm` without a cluster. As root, on Debian:
#
#     apt-get install slurm-wlm munge
#     experiments/one_node_slurm.sh start FOLDER      # prints what to put into the environment
#     export SLURM_CONF=FOLDER/slurm.conf
#     experiments/one_node_slurm.sh stop FOLDER
#
# FOLDER, an absolute path, holds its settings, state and logs, and the process ids of what is started.
set -euo pipefail

fail() { echo "one_node_slurm.sh: $*" >&2; exit 2; }

stop() {
  export SLURM_CONF=$folder/slurm.conf
  if [ -f "$folder/slurmctld.pid" ]; then # jobs would outlive it
    timeout 10 squeue --noheader --format=%A | timeout 10 xargs --no-run-if-empty scancel || true
    for _ in $(seq 50); do [ -n "$(timeout 10 squeue --noheader || true)" ] || break; sleep 0.2; done
  fi
  for name in slurmctld slurmd munged; do
    local file=$folder/$name.pid
    [ -f "$file" ] || continue
    local pid
    pid=$(cat "$file")
    kill "$pid" 2> /dev/null || true
    for _ in $(seq 100); do kill -0 "$pid" 2> /dev/null || break; sleep 0.1; done
    rm -f "$file"
  done
}

configure() {
  local ports=($(python3 -c "
import socket
free = [socket.socket() for _ in range(2)]
for each in free: each.bind(('127.0.0.1', 0))
print(*(each.getsockname()[1] for each in free))"))
  cat > "$folder/slurm.conf" << END
ClusterName=one
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=${ports[0]}
SlurmdPort=${ports[1]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
KillWait=5
MinJobAge=60
NodeName=$(hostname -s) NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
}

start() {
  for name in slurmctld slurmd munged sbatch; do
    command -v "$name" > /dev/null || fail "there is no $name here (Debian: apt-get install slurm-wlm munge)"
  done
  [ "$(id -u)" = 0 ] || fail "it has to run as root, as its jobs may be anybody's"
  mkdir -p "$folder"/state "$folder"/spool
  chmod 755 "$folder"
  [ -f "$folder/slurmctld.pid" ] && fail "$folder has one already: stop it first"
  trap 'code=$?; [ $code = 0 ] || stop' EXIT
  head -c 1024 /dev/urandom > "$folder/munge.key"
  chmod 600 "$folder/munge.key"
  munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" --pid-file="$folder/munged.pid" \
    --log-file="$folder/munged.log" --seed-file="$folder/munge.seed"
  configure
  export SLURM_CONF=$folder/slurm.conf
  slurmctld -c
  slurmd
  for _ in $(seq 150); do
    [ "$(sinfo --noheader --format=%t 2> /dev/null)" = idle ] && break
    sleep 0.2
  done
  [ "$(sinfo --noheader --format=%t)" = idle ] || fail "the node does not come up: see the logs in $folder"
  echo "export SLURM_CONF=$SLURM_CONF"
}

[ $# = 2 ] || fail "usage: $0 start|stop FOLDER"
folder=$2
case $1 in
  start) start ;;
  stop) stop ;;
  *) fail "usage: $0 start|stop FOLDER" ;;
esac
