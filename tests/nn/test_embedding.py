"""Embedding, and sinusoidal and learned positions."""

import copy
import math
import pickle

import numpy as np
import pytest

import minigrad as mg
import nn
import nn.functional as F
from nn.optim import AdamW
from tests.support import assert_close, torch_or_skip

# ---- Embedding -------------------------------------------------------------------------------------------------------


def test_rows_and_their_gradients():
    layer = nn.Embedding(4, 1)
    layer.load_state_dict({"weight": [[10.0], [11.0], [12.0], [13.0]]})
    rows = layer(mg.Tensor([[3, 1], [1, 0]]))
    assert rows.tolist() == [[[13], [11]], [[11], [10]]]
    rows.sum().backward()
    assert layer.weight.grad.tolist() == [[1], [2], [0], [1]]


def test_starts_standard_normal():
    mg.manual_seed(0)
    values = nn.Embedding(100, 100).weight.numpy()
    assert values.dtype == np.float32 and abs(values.mean()) < 0.03 and abs(values.std() - 1) < 0.03


def test_the_padding_row_is_zero_gets_no_gradient_and_stays_zero():
    layer = nn.Embedding(4, 2, padding_idx=0)
    assert layer.weight.tolist()[0] == [0, 0] and layer.weight.numpy()[1:].all()
    layer(mg.Tensor([0, 1, 1, 3])).sum().backward()
    assert layer.weight.grad.tolist() == [[0, 0], [2, 2], [0, 0], [1, 1]]
    layer.reset_parameters()
    optimizer = AdamW(layer.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (layer(mg.Tensor([0, 1, 1, 3])) ** 2).sum().backward()
        optimizer.step()
    assert layer.weight.tolist()[0] == [0, 0]


@pytest.mark.parametrize(
    "duplicate",
    [lambda x: x, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))],
    ids=["itself", "deepcopy", "pickle"],
)
@pytest.mark.parametrize("draw", [nn.init.normal_, nn.init.xavier_uniform_, nn.init.ones_])
def test_starting_values_of_ones_own_keep_the_padding_row_zero(draw, duplicate):
    layer = duplicate(nn.Embedding(4, 2, padding_idx=-0))
    output = nn.Linear(2, 4)
    output.weight = layer.weight  # tied
    draw(output.weight)
    assert layer.weight.numpy()[0].tolist() == [0, 0] and layer.weight.numpy()[1:].all()


DUPLICATES = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": lambda x: pickle.loads(pickle.dumps(x))}


@pytest.mark.parametrize("duplicate", DUPLICATES.values(), ids=DUPLICATES)
def test_a_copy_of_the_weight_alone_keeps_the_padding_row_zero(duplicate):
    weight = nn.Embedding(4, 2, padding_idx=2).weight
    weight.requires_grad = False
    copied = duplicate(weight)
    assert type(copied) is nn.Parameter and copied is not weight and not copied.requires_grad
    nn.init.ones_(copied)
    assert copied.tolist() == [[1, 1], [1, 1], [0, 0], [1, 1]]


def test_a_tied_weight_gets_the_other_layers_gradient_for_its_padding_row():
    layer, output = nn.Embedding(3, 2, padding_idx=0), nn.Linear(2, 3, bias=False)
    output.weight = layer.weight
    layer.load_state_dict({"weight": [[0.0, 0.0], [1.0, 2.0], [3.0, 4.0]]})
    output(layer(mg.Tensor([1])))[:, 0].sum().backward()
    assert layer.weight.grad.tolist() == [[1, 2], [0, 0], [0, 0]]


@pytest.mark.parametrize("bad", [-1, 5])
def test_an_id_out_of_range_is_an_index_error(bad):
    with pytest.raises(IndexError, match=rf"{bad}\D*5"):
        nn.Embedding(5, 2)(mg.Tensor([0, bad]))


def test_ids_must_be_integers():
    with pytest.raises(TypeError, match="integer"):
        nn.Embedding(5, 2)(mg.Tensor([0.0, 1.0]))


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,)])
@pytest.mark.parametrize("padding_idx", [None, 2])
def test_equals_pytorch(shape, padding_idx):
    torch = torch_or_skip()
    theirs, ours = torch.nn.Embedding(6, 3, padding_idx), nn.Embedding(6, 3, padding_idx)
    ours.load_state_dict(theirs.state_dict())
    ids = np.random.default_rng(0).integers(0, 6, shape)
    y, their_y = ours(mg.Tensor(ids)), theirs(torch.tensor(ids))
    np.testing.assert_array_equal(y.numpy(), their_y.detach().numpy())
    (y * y).sum().backward()
    (their_y * their_y).sum().backward()
    assert_close(ours.weight.grad, theirs.weight.grad, 1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("count", "width"), [(1, 3), (300, 3), (5, 2000), (300, 30)])
def test_gradients_of_equal_ids_are_added_up(count, width, dtype):
    """Of few numbers, of long runs of equal ids, of short ones."""
    rng = np.random.default_rng(count)
    ids, g = rng.integers(0, count, (4, 50)), rng.standard_normal((4, 50, width)).astype(dtype)
    expected = np.zeros((count, width))
    np.add.at(expected, ids, g.astype(np.float64))
    weight = mg.zeros(count, width, dtype=dtype, requires_grad=True)
    F.embedding(mg.Tensor(ids), weight).backward(mg.Tensor(g))
    assert weight.grad.dtype == dtype
    assert_close(weight.grad, expected, {"float16": 1e-3, "float32": 1e-6, "float64": 1e-14}[dtype])


@pytest.mark.parametrize("width", [1, 10_000])
@pytest.mark.parametrize("count", [4, 300])
@pytest.mark.parametrize("bad", [np.inf, np.nan])
@pytest.mark.filterwarnings("error")
def test_a_gradient_that_is_not_finite_reaches_its_own_row_alone(count, width, bad):
    weight, g = mg.zeros(count, width, requires_grad=True), np.ones((30, width), np.float32)
    g[-1] = bad
    F.embedding(mg.Tensor([0] * 10 + [2] * 20), weight).backward(mg.Tensor(g))
    np.testing.assert_array_equal(weight.grad.numpy()[:4, -1], [10.0, 0.0, bad, 0.0])


def test_an_empty_vocabulary_has_an_empty_gradient():
    weight = mg.zeros(0, 4, requires_grad=True)
    F.embedding(mg.zeros(2, 0, dtype="int64"), weight).sum().backward()
    assert weight.grad.shape == (0, 4)


def test_embedding_arguments_are_checked():
    with pytest.raises(ValueError, match="padding_idx must be from 0 to 3, got 4"):
        nn.Embedding(4, 2, padding_idx=4)
    with pytest.raises(ValueError, match="padding_idx must be from 0 to 3, got -1"):
        nn.Embedding(4, 2, padding_idx=-1)
    with pytest.raises(ValueError, match="num_embeddings and embedding_dim must be at least 1, got 0 and 2"):
        nn.Embedding(0, 2)
    assert repr(nn.Embedding(4, 2, padding_idx=0)) == "Embedding(4, 2, padding_idx=0)"


# ---- positions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d_model", [1, 2, 5, 7, 8])
def test_sinusoids_are_those_of_the_paper(d_model):
    table = nn.PositionalEncoding(d_model, max_length=50).table
    assert table.shape == (50, d_model) and table.dtype == np.float32
    for place in (0, 1, 7, 49):
        for column in range(d_model):
            function = math.cos if column % 2 else math.sin
            expected = function(place / 10000 ** (2 * (column // 2) / d_model))
            assert abs(table[place, column].item() - expected) < 1e-6, (place, column)


def test_sinusoids_are_added_to_each_row():
    layer = nn.PositionalEncoding(4, max_length=10)
    x = mg.randn(2, 3, 4, requires_grad=True)
    y = layer(x)
    np.testing.assert_array_equal(y.numpy(), x.numpy() + layer.table.numpy()[:3])
    assert y.dtype == np.float32
    y.sum().backward()
    assert x.grad.tolist() == mg.ones(2, 3, 4).tolist()
    assert layer(mg.zeros(1, 0, 4)).shape == (1, 0, 4)


def test_sinusoids_are_not_saved_but_move():
    layer = nn.PositionalEncoding(4)
    assert layer.state_dict() == {} and list(layer.parameters()) == []
    assert layer.to(np.float64).table.dtype == np.float64


@pytest.mark.parametrize("kind", [nn.PositionalEncoding, nn.LearnedPositionalEncoding])
def test_the_last_place_and_those_past_it(kind):
    layer = kind(4, max_length=6)
    assert layer(mg.zeros(1, 6, 4)).shape == (1, 6, 4) and layer(mg.zeros(6, 4)).shape == (6, 4)
    message = rf"{kind.__name__}: a sequence of length 7 was given, but max_length is 6; make a longer table"
    with pytest.raises(ValueError, match=message):
        layer(mg.zeros(1, 7, 4))
    with pytest.raises(ValueError, match=r"x must have the shape \(\.\.\., N, 4\), got \(1, 2, 1\)"):
        layer(mg.zeros(1, 2, 1))
    with pytest.raises(ValueError, match="d_model and max_length must be at least 1, got 0 and 6"):
        kind(0, max_length=6)
    assert repr(layer) == f"{kind.__name__}(4, max_length=6)"


def test_learned_positions_are_parameters():
    mg.manual_seed(0)
    layer = nn.LearnedPositionalEncoding(64, max_length=100)
    assert abs(layer.table.numpy().std() - 0.02) < 0.001
    assert list(layer.state_dict()) == ["table"]
    layer(mg.zeros(2, 3, 64)).sum().backward()
    assert layer.table.grad.numpy()[:, 0].tolist() == [2, 2, 2] + [0] * 97


@pytest.mark.parametrize(("first", "length"), [(0, 6), (0, 5), (1, 5), (5, 1)])
def test_places_are_those_of_the_table(first, length):
    layer = nn.LearnedPositionalEncoding(4, max_length=6)
    y = layer(mg.zeros(2, length, 4), first)
    assert (y == layer.table[first : first + length]).all()
    y.sum().backward()
    assert layer.table.grad[:, 0].tolist() == [0] * first + [2] * length + [0] * (6 - first - length)


@pytest.mark.parametrize("length", [5, 6])
def test_a_table_may_be_longer_than_what_is_asked_of_it(length):
    layer = nn.LearnedPositionalEncoding(4, max_length=8)
    layer.max_length = 6
    assert (layer(mg.zeros(2, length, 4)) == layer.table[:length]).all()


def test_the_whole_table_is_no_slice():
    layer = nn.LearnedPositionalEncoding(4, max_length=6)
    inputs = [layer(mg.zeros(n, 4)).node.inputs for n in (5, 6)]
    assert [any(x is layer.table for x in given) for given in inputs] == [False, True]


@pytest.mark.parametrize("length", [5, 6])
def test_a_write_to_the_table_is_noticed(length):
    layer = nn.LearnedPositionalEncoding(4, max_length=6)
    x = mg.ones(length, 4, requires_grad=True)
    loss = (x * layer(x)).sum()
    with mg.no_grad():
        layer.table.mul_(2)
    with pytest.raises(RuntimeError, match="was changed in place"):
        loss.backward()


def test_gradients_of_many_float16_duplicates_are_added_up_in_float32():
    """In float16 2048 + 1 is 2048, which PyTorch answers."""
    weight = nn.Parameter(np.ones((2, 3), np.float16))
    nn.functional.embedding(mg.zeros(3000, dtype=np.int64), weight).sum().backward()
    assert weight.grad.tolist() == [[3000] * 3, [0] * 3]
