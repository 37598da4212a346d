#!/bin/bash
#SBATCH --job-name=cifar-cnn
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --time=1:00:00
#SBATCH --output=logs/%x-%j.out
#SBATCH --open-mode=append
#SBATCH --signal=USR1@120
#SBATCH --requeue

# The small convolutional network on CIFAR-10, on as many nodes as SLURM gives:
#
#     sbatch -N 8 scripts/cifar_cnn.sh [KEY=VALUE ...]
#
# Run it from the directory that has configs/ and logs/. A site's own options go before the script:
# sbatch -N 8 -C gpu -q regular scripts/cifar_cnn.sh. Two minutes before the limit the run saves its
# state and ends with 75; the job goes back into the queue, and the same command resumes the run.

config=configs/cifar10_cnn.yaml

if [ -z "${SLURM_JOB_ID:-}" ]; then
    cat >&2 <<END
This is a job for SLURM:    sbatch -N 8 $0
With other options:         cerebro launch slurm $config parallel=ddp --nodes 8 --time 1:00:00
On this machine alone:      cerebro run $config
On three machines, by hand: cerebro run $config parallel=ddp -n 3 -nr I --master HOST:29500   (I = 0, 1, 2)
END
    exit 2
fi

cd "${SLURM_SUBMIT_DIR:-.}" || exit 1
# Where an environment lies beside the script, it is the one that is meant.
PATH="$PWD/.venv/bin:$PATH"
export PYTHONUNBUFFERED=1

# Since SLURM 22.05 a step does not get the cores of its job (sbatch -c) by itself.
srun --kill-on-bad-exit=0 ${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"} \
    cerebro run "$config" parallel=ddp "$@"
code=$?

if [ "$code" -eq 75 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 100 ]; then
    echo "state saved: back into the queue"
    scontrol requeue "$SLURM_JOB_ID"
elif [ "$code" -eq 75 ]; then
    echo "state saved, but the job was put back 100 times already:"
    echo "hand it in again, with output_dir=DIRECTORY of this one if that has the job's number"
fi
exit "$code"
