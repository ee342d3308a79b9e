"""What train.py is made of: settings, the trainer and its loop, runs and checkpoints, reports, pictures, and the tasks.

What is trained lives in models; nothing here knows more of it than its class.
"""
