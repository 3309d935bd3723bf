#!/bin/bash
#SBATCH --gres=gpu:1 --requeue --open-mode=append
#SBATCH --comment=lucid:elastic=1-8,epochs=30
exec python3 /etc/slurm/lucid/lucid_run.py --checkpoints "$LUCID_CHECKPOINT_ROOT" python3 train_elastic.py 30
