"""What ``doctor`` looks at: one file per part of the machine. Nothing is changed or started."""
