"""Elastic jobs and jobs that take turns: who opted in, what they report, and how one is resized."""
