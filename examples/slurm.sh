#!/usr/bin/env bash
# A job of Slurm that trains a plan on all of its machines:
#   sbatch --nodes=4 --ntasks-per-node=8 examples/slurm.sh char.plan [OPTIONS OF gptrun]
# It may be submitted again at any time, and goes on from the newest checkpoint.
#SBATCH --job-name=gptc
#SBATCH --time=24:00:00
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append

# A rank that fails ends the step; then all start again, as gptrun's own launcher does it. What all ranks meet at each
# try (exit codes 2 to 5) ends the job, and so does scancel, on which the ranks save. Of an error that one rank alone has
# met, such as a full disk, the others know as its failure (6), and srun returns the highest code: that is tried again.
for try in 1 2 3 4; do
  srun --kill-on-bad-exit=1 gptrun "$@"
  code=$?
  [ $code -eq 0 ] || { [ $code -ge 2 ] && [ $code -le 5 ]; } && exit $code
  echo "try $try ended with exit code $code" >&2
done
exit $code
