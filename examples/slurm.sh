#!/bin/bash
# Trains on several nodes, in pieces no longer than the cluster allows: the job stops in time, puts
# itself into the queue again, and goes on where it was. A job that is preempted or whose node dies
# goes on from its last checkpoint.
#
#   sbatch examples/slurm.sh sd35m-5rewards runs/five        # any further key=value at the end
#
# runs/ must be on a disk that all nodes see.
#SBATCH --job-name=marble
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
set -euo pipefail

recipe=${1:?recipe} run=${2:?run folder}
shift 2

gpus=${SLURM_GPUS_ON_NODE:-8}
export MASTER_ADDR MASTER_PORT
read -r MASTER_ADDR < <(scontrol show hostnames "$SLURM_JOB_NODELIST")  # the first of them
MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))

# An hour before the job's end the run finishes its epoch, saves and stops with status 0.
hours=23
if [ -f "$run/config.yaml" ]; then
    work=(--resume "$run" "train.max_hours=$hours" "$@")
else
    work=("$recipe" "train.max_hours=$hours" "$@" --out "$run")
fi

srun --kill-on-bad-exit=1 bash -c '
    exec accelerate launch \
        --multi_gpu --mixed_precision no --dynamo_backend no \
        --num_machines "$SLURM_NNODES" --num_processes "$(( SLURM_NNODES * '"$gpus"' ))" \
        --machine_rank "$SLURM_NODEID" \
        --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT" \
        -m marble train "$@"
' marble "${work[@]}"

# Status 0: finished, or stopped in time to go on.
if grep -q '"status": "interrupted"' "$run/run.json"; then
    scontrol requeue "$SLURM_JOB_ID"
fi
