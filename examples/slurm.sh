#!/usr/bin/env bash
# A job of Slurm that trains a plan on all of its machines:
#   sbatch --nodes=4 --ntasks-per-node=8 examples/slurm.sh char.plan [OPTIONS OF gptrun]
# It may be submitted again at any time, and goes on from the newest checkpoint.
#SBATCH --job-name=gptc
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append

# Two minutes before the time limit, and on scancel, the ranks save and end. A rank that fails ends the step; then all
# start again, as gptrun's own launcher does it. What would come again at each try (exit codes 2 to 5, which all ranks
# end with, whichever has met it) ends the job.
for try in 1 2 3 4; do
  export GPTC_RESTARTS=$((try - 1))  # --resume never is about the first start
  srun --kill-on-bad-exit=1 gptrun "$@"
  code=$?
  [ $code -eq 0 ] || { [ $code -ge 2 ] && [ $code -le 5 ]; } && exit $code
  echo "try $try ended with exit code $code" >&2
done
exit $code
