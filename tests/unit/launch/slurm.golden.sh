#!/bin/bash
#SBATCH --job-name=cifar-resnet
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=4
#SBATCH --constraint=gpu&hbm80g
#SBATCH --qos=regular
#SBATCH --account=m1234
#SBATCH --partition=debug
#SBATCH --reservation=dl4sci
#SBATCH --time=1:00:00
#SBATCH --output=logs/%x-%j.out
#SBATCH --open-mode=append
#SBATCH --signal=USR1@120
#SBATCH --requeue

# Written by cerebro VERSION. Each task is a rank; rank 0 drives the run, the others serve it.
# 120 s before the limit SLURM signals all of them: the run saves its state and ends with 75.
# The job then goes back into the queue, and the same command resumes the run.

cd '/home/ann/my work' || exit 1

srun --kill-on-bad-exit=0 --cpus-per-task=16 \
    /opt/python -u -m cerebro run configs/cifar10_resnet.yaml optimizer.lr=0.1
code=$?

if [ "$code" -eq 75 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 100 ]; then
    echo "state saved: back into the queue"
    scontrol requeue "$SLURM_JOB_ID"
elif [ "$code" -eq 75 ]; then
    echo "state saved, but the job was put back 100 times already:"
    echo "hand it in again, with output_dir=DIRECTORY of this one if that has the job's number"
fi
exit "$code"
