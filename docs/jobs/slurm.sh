#!/bin/bash
#SBATCH --array=0-3 --gres=gpu:1 --cpus-per-task=2 --time=04:00:00
#SBATCH --requeue --open-mode=append --signal=USR1@120
# Four tasks share one folder: each block is done by one of them. Two minutes before the time is over srun hands SIGUSR1 to the
# sweep, which ends with 138 and all finished blocks in the store; the task goes back into the queue and goes on.
srun torchdp sweep coin.py --out results/coin --measure-only
if [ $? -eq 138 ]; then
  scontrol requeue "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"
fi
