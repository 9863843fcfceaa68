"""The network of experts: one trunk, K branches, one softmax over all classes (Sec. 3.2)."""

import copy
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn

from nofe.architectures import Architecture
from nofe.architectures.architecture import WithTrunk
from nofe.architectures.line import first_line
from nofe.experts import kernels
from nofe.experts.branches import Branches
from nofe.experts.fused import FusedExperts, NotFusable, fuse, unfuse
from nofe.specialties import Specialties, random_balanced
from nofe.training.runtime import Runtime, cudnn_not_searching, drawing_aside

ROUNDING = 0.02  # of the largest logit: TensorFloat-32 through a few layers
log = logging.getLogger("nofe")


class NetworkOfExperts(WithTrunk):
    """Images (N, 3, H, W) to logits (N, C) in class order; nothing outside knows about slots."""

    class_names: tuple[str, ...] = ()  # where the network comes from a run
    read: Callable[[Any], Tensor] | None = None  # photos to bytes; likewise
    preprocess: Callable[[Tensor | NDArray[Any]], Tensor] | None = None  # bytes to what forward reads; likewise

    def __init__(self, trunk: nn.Module, experts: list[nn.Module], specialties: Specialties) -> None:
        super().__init__()
        self.trunk = trunk
        self.experts: Branches | FusedExperts = Branches(experts)
        self.specialties = specialties
        self.in_class_order = InClassOrder(specialties)

    @property
    def slot_of_class(self) -> Tensor:
        return self.in_class_order.slot_of_class

    def forward(self, images: Tensor) -> Tensor:  # (N, 3, H, W)
        features = self.trunk(images)  # (N, D, h, w)
        return self.classify(features)  # (N, C)

    def classify(self, features: Tensor) -> Tensor:  # (N, D, h, w)
        """What the trunk gives to logits in class order."""
        slots: Tensor = self.experts(features)  # (N, C) in expert order
        logits: Tensor = self.in_class_order(slots)  # (N, C) in class order
        return logits

    def fuse(self) -> bool:
        """Run the experts as one from now on: the same function, faster. False, with a word, where that cannot be.

        Their parameters are new ones, so an optimizer is made afterwards.
        """
        if isinstance(self.experts, FusedExperts):
            return True
        try:
            fused = fuse(self.experts)
        except NotFusable as layer:
            log.warning("the experts run one after another, which is slower: cannot fuse %s", layer)
            return False
        # Kept for their structure only; in a list, so that they are no part of this module's state.
        self._reference = [self.experts.to("meta")]
        self.experts = fused
        return True

    def unfuse(self) -> None:
        """Run the experts one after another again, with the weights as they are now."""
        self.experts = self.branches()

    def branches(self) -> Branches:
        """The experts one by one; where they run as one, copies with the weights as they are now."""
        if isinstance(self.experts, Branches):
            return self.experts
        [structure] = self._reference
        branches = copy.deepcopy(structure).to_empty(device=self.slot_of_class.device)
        unfuse(self.experts, branches)
        return branches

    def choose_kernels(
        self,
        images: tuple[int, ...],
        runtime: Runtime,
        *,
        training: bool,
        frozen: bool = False,
        known: dict[str, str] | None = None,
        may_measure: bool = True,
    ) -> dict[str, str]:
        """Run the experts in the way that is fastest for images of this shape; returns every choice that was made.

        Before anything is compiled or captured. `known` are choices to repeat, such as those of a run that goes on.
        """
        if isinstance(self.experts, Branches):
            return {}
        if runtime.kernels == kernels.BRANCHES:
            self.unfuse()
            return {}
        features = self._example_features(images, runtime)
        branches = self.branches().to(memory_format=torch.channels_last)
        if wrong := self._what_is_wrong(branches, features[:2], runtime, training=training):
            log.warning("the experts run one after another, which is slower: fused, %s", wrong)
            self.unfuse()
            return {}
        if runtime.kernels not in ("measure", "known"):
            # What is made of frozen weights, Winograd's kernel, is too coarse in bfloat16.
            kernels.pin_kernels(self.experts, runtime.kernels, frozen=frozen and runtime.precision != "bf16")
            return {}
        may_measure = may_measure and runtime.kernels == "measure"
        how: Any = {"training": training, "frozen": frozen, "known": known, "may_measure": may_measure}
        chosen = kernels.choose_kernels(self.experts, features, runtime, **how)
        fused_is_fastest, choice = kernels.faster_than_branches(self.experts, branches, features, runtime, **how)
        if not fused_is_fastest:
            self.unfuse()
        return chosen | choice

    def _what_is_wrong(self, branches: Branches, features: Tensor, runtime: Runtime, *, training: bool) -> str | None:
        """With the fused experts, by comparison with their branches: some layers do what their rules do not expect."""
        assert isinstance(self.experts, FusedExperts)
        features = features.to(next(self.experts.parameters()).dtype)  # autocast may have made them bfloat16
        was_training = self.experts.training
        try:
            with cudnn_not_searching():
                with torch.no_grad():
                    wrong = _difference(self.experts.eval()(features.clone()), branches.eval()(features))
                if wrong is None and training:
                    wrong = _what_is_wrong_in_training(copy.deepcopy(self.experts), branches, features, runtime)
        except Exception as error:  # anything that a layer may raise
            return f"they fail ({first_line(error)})"
        finally:
            self.experts.train(was_training)
        return wrong

    def _example_features(self, images: tuple[int, ...], runtime: Runtime) -> Tensor:
        """What the trunk gives for noise; no statistics are changed, and nothing is drawn from the run's generators."""
        noise = torch.randn(images, generator=torch.Generator().manual_seed(0)).mul_(60)  # like pixels minus their mean
        noise = noise.to(runtime.device, next(self.parameters()).dtype)
        trunk = self.trunk
        was_training = trunk.training
        trunk.eval()
        with torch.no_grad(), runtime.autocast():
            features: Tensor = trunk(noise.contiguous(memory_format=torch.channels_last))
        trunk.train(was_training)
        return features

    def to_disk(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Give tensors that belong to parameters, such as momentum, the names and shapes of the weights on disk."""
        if isinstance(self.experts, Branches):
            return tensors
        of_experts, others = _apart(tensors)
        return others | {f"experts.{name}": tensor for name, tensor in self.experts.by_expert(of_experts).items()}

    def from_disk(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        if isinstance(self.experts, Branches):
            return tensors
        of_experts, others = _apart(tensors)
        return others | {f"experts.{name}": tensor for name, tensor in self.experts.stacked(of_experts).items()}


class InClassOrder(nn.Module):
    """From slots to classes. A module, so that it can be compiled: uncompiled it takes five kernels of a step."""

    slot_of_class: Tensor
    class_of_slot: Tensor

    def __init__(self, specialties: Specialties) -> None:
        super().__init__()
        # Not saved with the weights: specialties.json says the same, readable by a person.
        slot_of_class = torch.from_numpy(specialties.slot_of_class.copy())
        self.register_buffer("slot_of_class", slot_of_class, persistent=False)
        self.register_buffer("class_of_slot", slot_of_class.argsort(), persistent=False)

    def forward(self, slots: Tensor) -> Tensor:  # (N, C)
        if not self.training:  # networks are traced and exported in evaluation mode
            return slots.index_select(1, self.slot_of_class)
        return _in_order(slots, self.slot_of_class, self.class_of_slot)


@fx.wrap  # as an autograd function takes no proxies
def _in_order(slots: Tensor, slot_of_class: Tensor, class_of_slot: Tensor) -> Tensor:
    reordered: Tensor = _Reordered.apply(slots, slot_of_class, class_of_slot)
    return reordered


class _Reordered(torch.autograd.Function):
    """Columns in another order. None is taken twice, which torch does not know: it would add gradients up, or sort."""

    generate_vmap_rule = True

    @staticmethod
    def forward(columns: Tensor, order: Tensor, back: Tensor) -> Tensor:
        return columns.index_select(1, order)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient.index_select(1, *ctx.saved_tensors), None, None


def _what_is_wrong_in_training(
    fused: FusedExperts, branches: Branches, features: Tensor, runtime: Runtime
) -> str | None:
    """The same in training, where alone some layers fail. `fused` and `branches` are copies, and may be changed."""
    with drawing_aside(runtime.device) as has_drawn, torch.enable_grad(), runtime.autocast():
        given = features.detach().clone().requires_grad_()
        outputs = fused.train()(given.clone())  # a copy: experts may write over it, but nothing may over a leaf
        outputs.backward(outputs.detach())
        # Statistics of two images enlarge the rounding of other precisions beyond measure.
        if has_drawn() or runtime.precision != "fp32":
            return None
        with torch.no_grad():
            return _difference(outputs, branches.train()(features))


def _difference(found: Tensor, expected: Tensor) -> str | None:
    """In words, where it is more than rounding."""
    apart, largest = float((found - expected).abs().max()), float(expected.abs().max())
    return f"they differ (by {apart:.2g} of {largest:.2g})" if apart > ROUNDING * largest else None


def _apart(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    of_experts = {name.removeprefix("experts."): t for name, t in tensors.items() if name.startswith("experts.")}
    return of_experts, {name: t for name, t in tensors.items() if not name.startswith("experts.")}


def plant_experts(architecture: Architecture, specialties: Specialties) -> NetworkOfExperts:
    """From scratch: trunk and branches start from the initialisers."""
    trunk = architecture.trunk_of_experts()
    branches = [architecture.branch(int(size)) for size in specialties.sizes]
    return NetworkOfExperts(trunk, branches, specialties)


def plant_at_random(architecture: Architecture, classes: int, experts: int) -> NetworkOfExperts:
    """For shapes and times alone, which are the same for any partition into even parts."""
    return plant_experts(architecture, random_balanced(classes, experts, np.random.default_rng(0)))


def grow_experts(architecture: Architecture, specialties: Specialties, generalist: nn.Module) -> NetworkOfExperts:
    """The paper's way: the trunk is the generalist's, its last layers are dropped, the branches are new."""
    network = plant_experts(architecture, specialties)
    network.trunk.load_state_dict(generalist.get_submodule("trunk").state_dict())
    if architecture.branch_is_head and architecture.classifier_layer is not None:
        last = architecture.classifier_layer() + "."
        trained = {n: t for n, t in generalist.get_submodule("head").state_dict().items() if not n.startswith(last)}
        for branch in network.branches():
            branch.load_state_dict(branch.state_dict() | trained)
    return network


def make_fast(network: NetworkOfExperts, images: tuple[int, ...], runtime: Runtime, *, training: bool = True) -> None:
    """Run the experts as their stage does: fused, channels last, by the kernels for images of this shape."""
    network.fuse()
    network.to(runtime.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    network.choose_kernels(images, runtime, training=training)
