"""What trains parameters: optimizers, learning-rate schedules, gradient clipping, loss scaling. The public names."""

from nn.optim.adam import Adam, AdamW
from nn.optim.clip import clip_grad_norm_
from nn.optim.grad_scaler import GradScaler
from nn.optim.schedules import CosineSchedule, WarmupSchedule
from nn.optim.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "CosineSchedule", "GradScaler", "WarmupSchedule", "clip_grad_norm_"]
