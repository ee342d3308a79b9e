"""Module and Parameter: registration, walking, ties, state_dict, moving, copying, and what must not pass silently."""

import collections
import copy
import pickle

import numpy as np
import pytest

import minigrad as mg
import nn
from minigrad.backend import DeviceError
from nn.module import Module, Parameter
from tests.cupy_standin import installed
from tests.support import torch_or_skip


class Scale(Module):
    """A parameter, two buffers, an optional parameter."""

    def __init__(self, size=2):
        super().__init__()
        self.weight = Parameter(np.arange(1, size + 1, dtype=np.float32))
        self.bias = None
        self.register_buffer("shift", mg.full((size,), 10.0))
        self.register_buffer("mask", mg.Tensor([True] * size), persistent=False)
        self.register_buffer("count", mg.Tensor(0))

    def forward(self, x):
        return x * self.weight + self.shift


class Tree(Module):
    """Two levels, a shared module, and tied weights."""

    def __init__(self):
        super().__init__()
        self.first = Scale()
        self.head = nn.Linear(2, 2, bias=False)
        self.again = self.first
        self.tied = nn.Linear(2, 2)
        self.tied.weight = self.head.weight

    def forward(self, x):
        return self.tied(self.head(self.again(self.first(x))))


def names(pairs):
    return [name for name, _ in pairs]


def test_a_parameter_is_a_leaf_that_requires_grad():
    data = np.ones(3, np.float32)
    parameter = Parameter(data)
    data[:] = 5
    assert isinstance(parameter, mg.Tensor) and parameter.is_leaf and parameter.requires_grad
    assert parameter.tolist() == [1, 1, 1]
    assert type(parameter * 2) is mg.Tensor and type(parameter.detach()) is mg.Tensor
    assert not Parameter([1.0], requires_grad=False).requires_grad
    assert Parameter(mg.Tensor([1.0])).dtype == np.float32
    with pytest.raises(RuntimeError, match="only floating-point tensors can require gradients"):
        Parameter([1, 2])


def test_walking_names_things_in_order_and_shared_ones_once():
    tree = Tree()
    assert names(tree.named_parameters()) == ["first.weight", "head.weight", "tied.bias"]
    assert names(tree.named_buffers()) == ["first.shift", "first.mask", "first.count"]
    assert names(tree.named_modules()) == ["", "first", "head", "tied"]
    assert names(tree.named_children()) == ["first", "head", "tied"]
    assert list(tree.children()) == list(tree.modules())[1:] == [tree.first, tree.head, tree.tied]
    expected = [tree.first.weight, tree.head.weight, tree.tied.bias]
    assert all(a is b for a, b in zip(tree.parameters(), expected, strict=True))
    assert len(list(tree.buffers())) == 3


def test_names_and_state_are_those_of_pytorch():
    torch = torch_or_skip()

    class Theirs(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.list = torch.nn.ModuleList([torch.nn.Linear(2, 3), torch.nn.LayerNorm(3)])
            self.scale = torch.nn.Parameter(torch.ones(2))
            self.register_buffer("kept", torch.zeros(1))
            self.register_buffer("passing", torch.zeros(1), persistent=False)
            self.tied = torch.nn.Linear(2, 3, bias=False)
            self.tied.weight = self.list[0].weight

    class Ours(Module):
        def __init__(self):
            super().__init__()
            self.list = nn.ModuleList([nn.Linear(2, 3), nn.LayerNorm(3)])
            self.scale = Parameter(mg.ones(2))
            self.register_buffer("kept", mg.zeros(1))
            self.register_buffer("passing", mg.zeros(1), persistent=False)
            self.tied = nn.Linear(2, 3, bias=False)
            self.tied.weight = self.list[0].weight

    theirs, ours = Theirs(), Ours()
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for walk in ("named_parameters", "named_modules", "named_children", "named_buffers"):
        assert names(getattr(ours, walk)()) == names(getattr(theirs, walk)()), walk
    assert ours.load_state_dict(theirs.state_dict()) == ([], [])
    for name, value in theirs.state_dict().items():
        np.testing.assert_array_equal(ours.state_dict()[name], value.numpy())
    # parameters as they are, requiring grad, and in another dtype
    assert ours.load_state_dict(dict(theirs.double().named_parameters()), strict=False).missing_keys == [
        "kept",
        "tied.weight",
    ]
    assert ours.tied.weight.dtype == np.float32


def test_attributes_are_pythons():
    scale = Scale()
    assert scale.bias is None and not hasattr(scale, "nothing")
    with pytest.raises(AttributeError, match="'Scale' object has no attribute 'nothing'"):
        scale.nothing  # noqa: B018
    del scale.weight
    assert list(scale.parameters()) == [] and not hasattr(scale, "weight")
    del scale.shift
    assert names(scale.named_buffers()) == ["mask", "count"] and list(scale.state_dict()) == ["count"]
    scale.bias = Parameter(mg.zeros(2))
    assert names(scale.named_parameters()) == ["bias"]


def test_assigning_before_init_says_so():
    class Early(Module):
        def __init__(self, value):
            self.part = value
            super().__init__()

    for value in (Parameter([1.0]), nn.Linear(1, 1)):
        with pytest.raises(AttributeError, match=r"Early\.part: call super\(\)\.__init__\(\) before assigning"):
            Early(value)


def _objects(part):
    array = np.empty((1, 1), object)
    array[0, 0] = part
    return array


HIDING = {
    "list": lambda x: [x],
    "tuple": lambda x: (x,),
    "dict": lambda x: {"a": x},
    "nested": lambda x: [[x]],
    "dict of lists": lambda x: {"a": [x]},
    "set": lambda x: {x},
    "deque": lambda x: collections.deque([x]),
    "frozenset": lambda x: frozenset([x]),
    "user's list": lambda x: collections.UserList([x]),
    "user's dict": lambda x: collections.UserDict(a=x),
    "values": lambda x: {"a": x}.values(),
    "array of objects": _objects,
    "list of arrays": lambda x: [_objects(x)],
}


@pytest.mark.parametrize("hide", HIDING.values(), ids=HIDING)
@pytest.mark.parametrize("make", [lambda: nn.Linear(1, 1), lambda: Parameter([1.0])], ids=["module", "parameter"])
def test_parts_in_a_plain_container_are_refused(hide, make):
    module = Module()
    with pytest.raises(
        TypeError, match=r"Module\.layers: .* would be neither trained nor saved; put modules into nn\.ModuleList"
    ):
        module.layers = hide(make())
    assert not hasattr(module, "layers")


def test_a_list_filled_later_is_refused_when_the_module_is_walked():
    module = Module()
    module.layers = []
    module.layers.append(nn.Linear(1, 1))
    for walk in (module.parameters, module.state_dict, module.train, lambda: nn.Sequential(module).state_dict()):
        with pytest.raises(TypeError, match=r"Module\.layers: modules or parameters in a list"):
            list(walk())
    for layers in ([1, "two", mg.zeros(2)], np.ones(3), np.array([None, 1]), b"abc", collections.deque("abc")):
        module.layers = layers  # what is no part may be in a list
    assert list(module.parameters()) == []


def test_a_parameter_is_not_replaced_by_a_plain_tensor():
    scale = Scale()
    with pytest.raises(
        TypeError, match=r"Scale\.weight is a parameter, so a Tensor cannot take its place: wrap it in nn\.Par"
    ):
        scale.weight = scale.weight * 2
    scale.weight = Parameter([3.0, 4.0])
    assert scale.state_dict()["weight"].tolist() == [3, 4]
    scale.weight = None
    assert list(scale.parameters()) == []


def test_buffers():
    scale = Scale()
    scale.shift = mg.Tensor([7.0, 8.0])  # still a buffer
    assert scale.state_dict()["shift"].tolist() == [7, 8]
    with pytest.raises(TypeError, match=r"Scale\.shift is a buffer, so a ndarray cannot take its place: use a Tensor"):
        scale.shift = np.zeros(2)
    scale.register_buffer("shift", mg.zeros(3), persistent=False)
    assert "shift" not in scale.state_dict()
    scale.register_buffer("later", None)
    assert "later" not in scale.state_dict() and "later" not in names(scale.named_buffers())
    scale.later = mg.zeros(1)
    assert "later" in scale.state_dict()
    with pytest.raises(ValueError, match="register_buffer: Scale has an attribute 'weight' already"):
        scale.register_buffer("weight", mg.zeros(1))
    with pytest.raises(
        TypeError, match="'w' must be a Tensor or None, got Parameter; a Parameter is registered by assigning"
    ):
        scale.register_buffer("w", Parameter([1.0]))
    with pytest.raises(TypeError, match="'w' must be a Tensor or None, got ndarray"):
        scale.register_buffer("w", np.zeros(1))
    scale.shift = Parameter(mg.zeros(1))
    assert "shift" in names(scale.named_parameters()) and "shift" not in names(scale.named_buffers())


def test_a_module_cannot_contain_itself():
    outer, inner = Module(), Module()
    with pytest.raises(ValueError, match=r"Module\.part: a module cannot contain itself"):
        outer.part = outer
    outer.part = inner
    with pytest.raises(ValueError, match=r"Module\.parent: a module cannot contain itself"):
        inner.parent = outer


def test_forward_must_be_defined():
    with pytest.raises(NotImplementedError, match=r"Module has no forward\(\)"):
        Module()(1)


def test_train_and_eval_reach_every_module():
    tree = Tree()
    assert tree.training and tree.eval() is tree
    assert [module.training for module in tree.modules()] == [False] * 4
    assert tree.train() is tree and all(module.training for module in tree.modules())


def test_apply_visits_children_first_and_may_add_attributes():
    tree, seen = Tree(), []

    def visit(module):
        seen.append(module)
        module.mark = 1

    assert tree.apply(visit) is tree
    assert seen == [tree.first, tree.head, tree.tied, tree]
    for module in tree.modules():
        module.other_mark = 2


def test_zero_grad_both_ways_also_after_a_nan():
    tree = Tree()
    tree.head.weight.grad = mg.full((2, 2), float("nan"))
    tree.zero_grad(set_to_none=False)
    assert tree.head.weight.grad.tolist() == [[0, 0], [0, 0]] and tree.first.weight.grad is None
    (tree(mg.ones(1, 2)).sum()).backward()
    assert np.isfinite(tree.head.weight.grad.numpy()).all()
    tree.zero_grad()
    assert all(parameter.grad is None for parameter in tree.parameters())


def test_gradients_of_two_backward_passes_add_up():
    layer = nn.Linear(1, 1, bias=False)
    (layer(mg.Tensor([[3.0]])).sum()).backward()
    (layer(mg.Tensor([[5.0]])).sum()).backward()
    assert layer.weight.grad.tolist() == [[8.0]]


def test_requires_grad_freezes():
    tree = Tree()
    assert tree.requires_grad_(False) is tree
    assert not tree(mg.ones(1, 2)).requires_grad
    assert tree.requires_grad_()(mg.ones(1, 2)).requires_grad


def test_every_parameter_gets_a_gradient_of_its_dtype_and_shape():
    tree = Tree()
    tree(mg.ones(1, 2)).sum().backward()
    for name, parameter in tree.named_parameters():
        assert parameter.grad is not None and parameter.grad.shape == parameter.shape, name
        assert parameter.grad.dtype == parameter.dtype == np.float32, name


# ---- state_dict ------------------------------------------------------------------------------------------------------


def test_state_dict_has_every_name_and_independent_copies():
    tree = Tree()
    state = tree.state_dict()
    assert list(state) == [
        "first.weight", "first.shift", "first.count", "head.weight",
        "again.weight", "again.shift", "again.count", "tied.weight", "tied.bias",
    ]  # fmt: skip
    assert all(type(value) is np.ndarray for value in state.values()) and state["first.count"].shape == ()
    before = state["head.weight"].copy()
    with mg.no_grad():
        tree.head.weight.copy_(mg.zeros(2, 2))
    np.testing.assert_array_equal(state["head.weight"], before)
    state["tied.bias"][:] = 77
    assert not (tree.tied.bias.numpy() == 77).any()


def test_load_state_dict_restores_values_dtype_and_identity():
    source, target = Tree(), Tree()
    parameters = list(target.parameters())
    state = {
        name: value.astype(np.float64) if value.dtype == np.float32 else value
        for name, value in source.state_dict().items()
    }
    assert target.load_state_dict(state) == ([], [])
    for name, value in target.state_dict().items():
        np.testing.assert_array_equal(value, source.state_dict()[name])
        assert value.dtype == source.state_dict()[name].dtype
    assert all(a is b for a, b in zip(parameters, target.parameters(), strict=True))
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in target.parameters())
    state["head.weight"][:] = 0
    assert target.head.weight.numpy().any()


@pytest.mark.parametrize("kind", [np.asarray, mg.Tensor, Parameter, lambda array: array.tolist()])
def test_load_state_dict_takes_arrays_tensors_and_lists(kind):
    layer = nn.Linear(2, 1)
    layer.load_state_dict({"weight": kind(np.array([[1.0, 2.0]])), "bias": kind(np.array([3.0]))})
    assert layer.weight.tolist() == [[1, 2]] and layer.bias.tolist() == [3] and layer.bias.dtype == np.float32


def test_load_state_dict_takes_integers_for_floats():
    layer = nn.Linear(1, 1)
    layer.load_state_dict({"weight": np.array([[2]]), "bias": np.array([True])})
    assert layer.weight.tolist() == [[2.0]] and layer.bias.tolist() == [1.0]


def test_load_state_dict_reports_everything_and_changes_nothing():
    scale = nn.Sequential(Scale(), nn.Linear(2, 3))
    before = scale.state_dict()
    wrong = {
        "0.weight": np.ones(1, np.float32),  # would broadcast
        "0.shift": np.zeros(2, np.float32),  # right
        "0.count": np.array(1.5),  # would be cut
        "1.weight": np.ones((2, 3), np.float32),  # transposed
        "1.scale": np.ones(3),
        "other": 1,
    }
    with pytest.raises(RuntimeError) as caught:
        scale.load_state_dict(wrong)
    assert str(caught.value).splitlines() == [
        "load_state_dict: this state does not fit Sequential:",
        "  missing: 1.bias of shape (3,)",
        "  unexpected: 1.scale",
        "  unexpected: other",
        "  0.weight: shape (1,) given, the module has (2,)",
        "  0.count: float64 given, which the module's int64 cannot hold",
        "  1.weight: shape (2, 3) given, the module has (3, 2)",
    ]
    for name, value in scale.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


def test_load_state_dict_not_strict_passes_over_names_but_not_shapes():
    layer = nn.Linear(1, 2)
    keys = layer.load_state_dict({"bias": [1.0, 2.0], "extra": 0}, strict=False)
    assert keys.missing_keys == ["weight"] and keys.unexpected_keys == ["extra"]
    assert layer.bias.tolist() == [1, 2]
    with pytest.raises(RuntimeError, match=r"bias: shape \(1,\) given, the module has \(2,\)"):
        layer.load_state_dict({"bias": [1.0]}, strict=False)
    with pytest.raises(RuntimeError, match="bias: <U1 given, which the module's float32 cannot hold"):
        layer.load_state_dict({"bias": ["a", "b"]}, strict=False)


def test_load_state_dict_names_what_cannot_be_read():
    with pytest.raises(RuntimeError, match=r"weight: cannot be read as an array \(.*inhomogeneous"):
        nn.Linear(1, 2).load_state_dict({"weight": [[1.0], [1.0, 2.0]], "bias": [1.0, 2.0]})


def test_load_state_dict_takes_a_mapping_only():
    with pytest.raises(TypeError, match="load_state_dict takes a mapping of names to arrays, got str"):
        nn.Linear(1, 1).load_state_dict("model.npz")


def test_a_graph_notices_that_values_were_loaded():
    layer = nn.Linear(1, 1)
    x = mg.Tensor([[2.0]], requires_grad=True)
    loss = layer(x).sum()
    layer.load_state_dict(layer.state_dict())
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()


# ---- moving ----------------------------------------------------------------------------------------------------------


def test_to_a_dtype_keeps_identity_and_leaves_integers():
    tree = Tree()
    parameters = list(tree.parameters())
    tree(mg.ones(1, 2)).sum().backward()
    tree.first.mask.requires_grad_(False)
    assert tree.to(np.float64) is tree
    assert all(a is b for a, b in zip(parameters, tree.parameters(), strict=True))
    assert tree.tied.weight is tree.head.weight
    for parameter in parameters:
        assert parameter.dtype == parameter.grad.dtype == np.float64 and parameter.requires_grad and parameter.is_leaf
    assert tree.first.shift.dtype == np.float64
    assert tree.first.count.dtype == np.int64 and tree.first.mask.dtype == np.bool_
    tree.zero_grad()
    tree(mg.ones(1, 2, dtype=np.float64)).sum().backward()
    assert tree.head.weight.grad.dtype == np.float64
    assert tree.to("float32").head.weight.dtype == np.float32


def test_to_refuses_integers_and_unknown_devices_and_changes_nothing():
    tree = Tree()
    with pytest.raises(TypeError, match=r"Tree\.to: int64 cannot carry gradients; use a floating dtype"):
        tree.to(np.int64)
    assert tree.head.weight.dtype == np.float32
    if not mg.cuda_available():
        with pytest.raises(DeviceError):
            tree.to("cuda")


def test_a_move_to_where_it_is_changes_nothing():
    layer = nn.Linear(1, 1)
    array, loss = layer.weight.data, layer(mg.Tensor([[2.0]], requires_grad=True)).sum()
    layer.to(layer.weight.device).to(np.float32)
    assert layer.weight.data is array
    loss.backward()


def test_to_a_gpu_and_loading_there():
    with installed():
        tree = Tree()
        tree(mg.ones(1, 2)).sum().backward()
        before, weights = tree.state_dict(), list(tree.parameters())
        tree.to("cuda")
        assert {tensor.device for tensor in (*tree.parameters(), *tree.buffers())} == {"cuda:0"}
        assert all(a is b and a.grad.device == "cuda:0" for a, b in zip(weights, tree.parameters(), strict=True))
        tree.load_state_dict({name: value * 0 for name, value in before.items()})
        assert tree.head.weight.device == "cuda:0" and not tree.head.weight.numpy().any()
        tree.load_state_dict({name: mg.Tensor(value, device="cuda") for name, value in before.items()})
        for name, value in tree.state_dict().items():
            assert type(value) is np.ndarray
            np.testing.assert_array_equal(value, before[name])


def test_a_graph_notices_that_the_module_was_moved():
    layer = nn.Linear(1, 1)
    loss = layer(mg.Tensor([[2.0]], requires_grad=True)).sum()
    layer.to(np.float64)
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()


# ---- copies and text -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))], ids=["deepcopy", "pickle"]
)
def test_copies_are_independent_and_keep_ties(duplicate):
    tree = Tree()
    twin = duplicate(tree)
    x = mg.ones(1, 2)
    np.testing.assert_array_equal(twin(x).numpy(), tree(x).numpy())
    assert twin.tied.weight is twin.head.weight and twin.again is twin.first
    assert type(twin.head.weight) is Parameter and twin.head.weight.requires_grad
    assert not {id(p) for p in twin.parameters()} & {id(p) for p in tree.parameters()}
    assert names(twin.named_buffers()) == names(tree.named_buffers())
    with mg.no_grad():
        twin.head.weight.copy_(mg.zeros(2, 2))
    assert tree.head.weight.numpy().any()
    with pytest.raises(TypeError, match="is a parameter"):
        twin.head.weight = mg.zeros(2, 2)


def test_repr_is_a_tree():
    model = nn.Sequential(nn.Linear(2, 3), nn.ModuleList([nn.Dropout(0.1)]), nn.FeedForward(2, 3))
    assert repr(model) == (
        "Sequential(\n"
        "  (0): Linear(in_features=2, out_features=3, bias=True)\n"
        "  (1): ModuleList(\n"
        "    (0): Dropout(p=0.1)\n"
        "  )\n"
        "  (2): FeedForward(\n"
        "    activation='relu'\n"
        "    (linear1): Linear(in_features=2, out_features=3, bias=True)\n"
        "    (dropout): Dropout(p=0.0)\n"
        "    (linear2): Linear(in_features=3, out_features=2, bias=True)\n"
        "  )\n"
        ")"
    )
    assert repr(Module()) == "Module()" and repr(nn.ModuleList()) == "ModuleList()"
