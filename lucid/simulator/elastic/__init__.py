"""The truth about elastic and adaptive training jobs, which only a replay knows."""
