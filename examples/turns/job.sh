#!/bin/bash
#SBATCH --gres=gpu:1
export PYTHONPATH=/etc/slurm/lucid
exec python3 train_turns.py 10000
