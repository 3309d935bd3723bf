#!/bin/bash
#SBATCH --gres=gpu:1 --array=0-5
exec python3 train_sweep.py
