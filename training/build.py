"""What the settings describe, built: model, optimizer, learning-rate schedule."""

import math

import nn
from models import Transformer
from nn.optim import SGD, Adam, AdamW, CosineSchedule, WarmupSchedule
from training.settings import Settings
from training.tasks import Task
from training.tasks.base import PAD

BETAS, EPS = (0.9, 0.98), 1e-9
"""Of Adam and AdamW, as in Vaswani et al. 2017, section 5.3."""

MOMENTUM = 0.9
"""Of SGD."""


def build_model(task: Task, settings: Settings) -> Transformer:
    """The model for `task`, its parameters freshly drawn. Raises DeviceError if there is no such device."""
    model = Transformer(
        len(task.source_vocabulary),
        len(task.target_vocabulary),
        d_model=settings.d_model,
        num_heads=settings.heads,
        num_encoder_layers=settings.encoder_layers,
        num_decoder_layers=settings.decoder_layers,
        d_ff=settings.d_ff,
        dropout=settings.dropout,
        activation=settings.activation,
        norm_first=settings.norm_first,
        max_length=max(task.max_source_length, task.max_target_length) + 1,  # with EOS or BOS
        pad_id=PAD,
        tie_embeddings=settings.tie_embeddings,
        positions=settings.positions,
    )
    return model.to(settings.device)


def build_optimizer(parameters: list[nn.Parameter], settings: Settings) -> SGD | Adam | AdamW:
    """The optimizer of these parameters."""
    if settings.optimizer == "sgd":
        return SGD(parameters, lr=settings.lr, momentum=MOMENTUM, weight_decay=settings.weight_decay)
    kind = {"adam": Adam, "adamw": AdamW}[settings.optimizer]
    return kind(parameters, lr=settings.lr, betas=BETAS, eps=EPS, weight_decay=settings.weight_decay)


def build_schedule(optimizer: SGD | Adam | AdamW, settings: Settings) -> CosineSchedule | WarmupSchedule | None:
    """The schedule of the optimizer's learning rate; None for a constant one."""
    if settings.schedule == "constant":
        return None
    if settings.schedule == "cosine":
        return CosineSchedule(optimizer, settings.steps, warmup_steps=settings.warmup)
    # The paper's rate at its highest, the last step of the warm-up, is factor / sqrt(d_model * warmup): make that --lr.
    factor = settings.lr * math.sqrt(settings.d_model * max(settings.warmup, 1))
    return WarmupSchedule(optimizer, settings.d_model, settings.warmup, factor=factor)
