#!/bin/bash
#SBATCH --job-name=search
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-node=2
#SBATCH --time=1:00:00
#SBATCH --output=logs/%x-%j.out
#SBATCH --open-mode=append
#SBATCH --signal=USR1@120
#SBATCH --requeue

# Written by cerebro VERSION. Each task is a node of one Ray cluster; the first drives the run.
# 120 s before the limit SLURM signals all of them: the run saves its state and ends with 75.
# The job then goes back into the queue, and the same command resumes the run.

cd /home/ann || exit 1

# Known to this job alone: without it nobody joins its Ray cluster, or gives it work.
RAY_AUTH_TOKEN=$(/opt/python -c 'import secrets; print(secrets.token_hex(32))') || exit 1
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN

srun --kill-on-bad-exit=0 --cpus-per-task=8 \
    /opt/python -u -m cerebro launch ray configs/search.yaml
code=$?

if [ "$code" -eq 75 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 100 ]; then
    echo "state saved: back into the queue"
    scontrol requeue "$SLURM_JOB_ID"
elif [ "$code" -eq 75 ]; then
    echo "state saved, but the job was put back 100 times already:"
    echo "hand it in again, with output_dir=DIRECTORY of this one if that has the job's number"
fi
exit "$code"
