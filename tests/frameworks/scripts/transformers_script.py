"""Trains a small language model from scratch with the Trainer of Transformers."""

from __future__ import annotations

import os

import torch
from common import OUT, Data, report
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

VOCABULARY = 40


def texts(count: int, seed: int) -> Data:
    make = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCABULARY, (count, 12), generator=make)
    return Data([{"input_ids": row, "labels": row} for row in tokens.sort(1).values])


set_seed(5)
config = GPT2Config(vocab_size=VOCABULARY, n_positions=16, n_embd=16, n_layer=2, n_head=2)
arguments = {
    "output_dir": str(OUT / "trained"),
    "use_cpu": True,
    "bf16": os.environ.get("PRECISION") == "bf16",
    "per_device_train_batch_size": 3,
    "gradient_accumulation_steps": 2,
    "activation_checkpointing": True,
    "learning_rate": 1e-2,
    "eval_strategy": "steps",
    "eval_steps": 4,
    "save_steps": 4,
    "logging_steps": 2,
    "report_to": "none",
    "disable_tqdm": True,
}


def trainer(steps: int) -> Trainer:
    return Trainer(
        GPT2LMHeadModel(config),
        TrainingArguments(**arguments, max_steps=steps),
        train_dataset=texts(50, 0),
        eval_dataset=texts(11, 1),
    )


trainer(4).train()
last = trainer(8)
last.train(resume_from_checkpoint=True)  # Resume from step 4.
evaluated = last.evaluate()
report(last.model, loss=evaluated["eval_loss"], wrapper=type(last.model_wrapped).__name__)
