"""Which GPU-hours were wasted, by whom and how: from what samplers measured. Nothing here changes a job."""
