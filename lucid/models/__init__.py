"""Models learned from finished jobs: readable tables, scored with numpy alone."""
