#!/usr/bin/env bash
# A job of Slurm that trains a plan on all of its machines:
#   sbatch --nodes=4 --ntasks-per-node=2 --cpus-per-task=32 examples/slurm.sh char.plan [OPTIONS OF gptrun]
# It may be submitted again at any time, and goes on from the newest checkpoint.
#
# CPUs        --cpus-per-task is the number of threads of a rank. Without it Slurm may give each rank a single CPU. On
#             machines of two sockets start two ranks each: a rank then keeps to the memory of its socket.
# GPUs        One rank for each: --ntasks-per-node=8 --gpus-per-node=8. Ask for CPUs all the same: they read the data.
# PATH        Slurm runs a copy of this file elsewhere, with the environment of sbatch. So gptrun must be in PATH there, in
#             a folder that all machines see, or be named: GPTRUN=/shared/gptc/bin/gptrun sbatch ...
# Containers  GPTRUN may have several words: GPTRUN="apptainer exec --nv gptc.sif gptrun". Plan, data and out_dir need the
#             same paths in all of them, and the network is the machine's. Ranks of one machine that do not see each
#             other's processes talk by TCP, which is slower than memory.
#SBATCH --job-name=gptc
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append

# srun no longer takes the CPUs of a task from the job.
if [ -n "${SLURM_CPUS_PER_TASK:-}" ]; then
  export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
fi
read -ra command <<<"${GPTRUN:-gptrun}"

# Two minutes before the time limit, and on scancel, the ranks save and end. A rank that fails ends the step; then all
# start again, as gptrun's own launcher does it. What would come again at each try (exit codes 2 to 5, which all ranks
# end with, whichever has met it) ends the job.
for try in 1 2 3 4; do
  export GPTC_RESTARTS=$((try - 1))  # --resume never is about the first start
  srun --kill-on-bad-exit=1 "${command[@]}" "$@"
  code=$?
  [ $code -eq 0 ] || { [ $code -ge 2 ] && [ $code -le 5 ]; } && exit $code
  echo "try $try ended with exit code $code" >&2
done
exit "$code"
