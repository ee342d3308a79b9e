"""The parts of `benchmarks/train_step.py`: a training step as each engine has it, and the processes they run in."""
