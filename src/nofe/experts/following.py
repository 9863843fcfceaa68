"""The code of a branch, followed by torch.fx: into its blocks, but not into the layers that there is a rule for."""

from torch import fx, nn

from nofe.architectures.images_first import without_counting_images
from nofe.architectures.line import OneInput
from nofe.architectures.modes import DrawsNumbersError, Follower, followed_in_both_modes
from nofe.experts.kinds import NotFusable

Leaves = tuple[type[nn.Module], ...]
BATCHED = (nn.LayerNorm, nn.MultiheadAttention)
DROPS_IMAGES = ("DropPath", "StochasticDepth")  # timm's and torchvision's, and those written after them
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, fx.GraphModule)


class _Tracer(Follower):
    def __init__(self, leaves: Leaves, whole: set[nn.Module]) -> None:
        super().__init__()
        self._leaves, self._whole = leaves, whole

    def is_leaf_module(self, module: nn.Module, path: str) -> bool:
        if isinstance(module, self._leaves) or module in self._whole:
            return True
        return not list(module.children()) and super().is_leaf_module(module, path)


def followed(branch: nn.Module, leaves: Leaves) -> tuple[fx.Graph, set[nn.Module]]:
    """The graph of a branch, and the modules in it that vmap runs whole: by rule, or as fx cannot follow them."""
    classifier = _classifier_of(branch)
    whole = {module for module in branch.modules() if _runs_whole(module, classifier)}
    while True:
        try:
            graph = _traced(branch, leaves, whole)
        except Exception as error:  # fx says in many ways that it cannot follow the code
            path, module = _in_the_way(branch, leaves, whole)
            if isinstance(error, DrawsNumbersError) or not can_run_whole(module, classifier):
                raise NotFusable(f"{path or 'the branch'} ({type(module).__name__}: {error})") from error
            whole.add(module)
        else:
            without_counting_images(graph)
            return graph, whole


def _traced(module: nn.Module, leaves: Leaves, whole: set[nn.Module]) -> fx.Graph:
    own = set(vars(module))

    def follow(again: nn.Module) -> fx.Graph:
        graph = _Tracer(leaves, whole).trace(again)
        for added in vars(again).keys() - own:  # tensors that the code makes, which fx leaves in the module
            delattr(again, added)
        return graph

    return followed_in_both_modes(module, follow)


def _in_the_way(branch: nn.Module, leaves: Leaves, whole: set[nn.Module]) -> tuple[str, nn.Module]:
    """The innermost module that fx cannot follow."""
    for path, module in reversed(list(branch.named_modules())):
        if list(module.children()) and module not in whole and not isinstance(module, leaves):
            try:
                _traced(OneInput(module), leaves, whole)
            except Exception:
                return path, module
    return "", branch


def can_run_whole(module: nn.Module, classifier: nn.Module | None) -> bool:
    """Whether vmap could run a module: without buffers, which it cannot write, and without the ragged classifier."""
    is_container = isinstance(module, CONTAINERS)
    has_classifier = any(each is classifier for each in module.modules())
    return not is_container and not has_classifier and next(module.buffers(), None) is None


def _runs_whole(module: nn.Module, classifier: nn.Module | None) -> bool:
    """Whether a module is run by vmap as it is, instead of being followed inside."""
    if type(module).__name__ in DROPS_IMAGES:
        return True
    if not can_run_whole(module, classifier) or next(module.parameters(), None) is None:
        return False
    if isinstance(module, BATCHED):
        return True
    if type(module).__module__.startswith("torch.nn"):
        return False
    if next(module.parameters(recurse=False), None) is not None and not isinstance(module, nn.Conv2d | nn.Linear):
        return True  # a scale, or a block with one
    inner = list(module.modules())
    return any(isinstance(each, BATCHED) for each in inner) or "Attention" in type(module).__name__


def _classifier_of(branch: nn.Module) -> nn.Module | None:
    layers = [module for module in branch.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    return layers[-1] if layers else None
