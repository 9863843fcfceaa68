"""Weights of a network into the run folder, as the file of a finished stage, and from there."""

import safetensors.torch
import torch
from torch import nn

from nofe.runs import Run


def write_weights(model: nn.Module, run: Run, file: str) -> None:
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    run.write(file, safetensors.torch.save(tensors))


def load_weights(model: nn.Module, run: Run, file: str) -> None:
    model.load_state_dict(safetensors.torch.load(run.read(file)))


def restored(model: nn.Module, run: Run, file: str, device: torch.device) -> bool:
    """Load a finished stage from its file, if there is one; the model is moved to the device in any case."""
    model.to(device)
    if not run.has(file):
        return False
    load_weights(model, run, file)
    return True
