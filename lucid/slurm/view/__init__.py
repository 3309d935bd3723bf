"""From records and notes to the snapshot that a policy plans from. Changes nothing."""
