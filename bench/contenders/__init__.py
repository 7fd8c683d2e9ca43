"""What is measured. Every contender runs in a process of its own (see bench.processes)."""
