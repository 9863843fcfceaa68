"""x.view(x.size(0), -1), the commonest line of hand-written networks, as what it means: flatten all but the images.

The number of images is the same for every expert, and no value of the network: it should not cross a cut, and a rule
that runs K branches at once reads no numbers. So views whose first size is that number are written without it.
"""

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

VIEWS: set[Any] = {"view", "reshape", torch.reshape}
# Give one result for each image, in their order, where they read one for each.
KEEP_IMAGES: set[Any] = {
    F.relu, torch.relu, F.gelu, F.silu, F.relu6, F.leaky_relu, F.elu, F.hardswish, torch.sigmoid, torch.tanh, F.tanh,
    F.sigmoid, "relu", "relu_", "sigmoid", "tanh", F.max_pool2d, torch.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d,
    F.adaptive_max_pool2d, F.dropout, F.dropout2d, "contiguous", operator.add, operator.iadd, torch.add, "add", "add_",
    operator.mul, operator.imul, torch.mul, "mul", operator.sub, operator.truediv,
}  # fmt: skip


def without_counting_images(graph: fx.Graph) -> None:
    """In place."""
    for node in list(graph.nodes):
        if node.target in VIEWS and not node.kwargs and (sizes := _sizes(node)):
            value, source = node.args[0], _counted(sizes[0])
            known = source is value or (_images_first(value) and _images_first(source))
            if source is not None and known and all(isinstance(size, int) for size in sizes[1:]):
                _flatten_behind_images(graph, node, value, sizes[1:])
    for node in reversed(graph.nodes):
        if _asks_for_size(node) and not node.users:
            graph.erase_node(node)


def _sizes(view: fx.Node) -> tuple[Any, ...]:
    given = view.args[1:]
    if len(given) == 1 and isinstance(given[0], tuple | list):
        return tuple(given[0])
    return tuple(given)


def _counted(size: Any) -> fx.Node | None:
    """The value whose first size this is: x.size(0), x.size()[0] or x.shape[0]."""
    if not isinstance(size, fx.Node):
        return None
    if size.target == "size" and size.args[1:] == (0,):
        return size.all_input_nodes[0]
    if size.target is operator.getitem and size.args[1] == 0:
        of = size.all_input_nodes[0]
        if (of.target == "size" and len(of.args) == 1) or (of.target is getattr and of.args[1] == "shape"):
            return of.all_input_nodes[0]
    return None


def _images_first(value: Any) -> bool:
    if not isinstance(value, fx.Node) or value.op == "get_attr":
        return False
    if value.op in ("placeholder", "call_module"):
        return True
    return value.target in KEEP_IMAGES and any(_images_first(each) for each in value.all_input_nodes)


def _flatten_behind_images(graph: fx.Graph, view: fx.Node, value: fx.Node, rest: tuple[Any, ...]) -> None:
    with graph.inserting_before(view):
        new = graph.call_function(torch.flatten, (value, 1))
        if len(rest) > 1:
            new = graph.call_method("unflatten", (new, 1, rest))
    view.replace_all_uses_with(new)
    graph.erase_node(view)


def _asks_for_size(node: fx.Node) -> bool:
    if node.target == "size" or (node.target is getattr and node.args[1] == "shape"):
        return True
    return node.target is operator.getitem and isinstance(node.args[0], fx.Node) and _asks_for_size(node.args[0])
