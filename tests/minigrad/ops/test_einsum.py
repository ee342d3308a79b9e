"""einsum: against finite differences, NumPy and PyTorch; what only PyTorch takes; formats that cannot be read."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minigrad as mg
from minigrad import Tensor, ops
from tests.minigrad.ops.factory import SEEDS, Case, make_tests
from tests.support import assert_close, leaf, torch_or_skip


def einsum(subscripts, *shapes, numpy=None):
    """The call of a format, and for NumPy another, where it reads this one in another way."""
    return Case(
        "einsum",
        lambda lib, *operands: lib.einsum(subscripts, *operands),
        st.just(shapes),
        numpy=lambda n, *operands: n.einsum(numpy or subscripts, *operands),
    )


CASES = [
    # one operand
    einsum("ij->ij", (2, 3)),
    einsum("ij->ji", (2, 3)),
    einsum("ba", (2, 3)),
    einsum("bA", (2, 3)),
    einsum("ij->i", (2, 3)),
    einsum("ij->", (2, 3)),
    einsum("ij->j", (0, 3)),
    einsum("ij->j", (3, 0)),
    einsum("->", ()),
    einsum("", ()),
    einsum("i->", (1,)),
    einsum("ii", (3, 3)),
    einsum("ii->i", (3, 3)),
    einsum("iii->i", (2, 2, 2)),
    einsum("iji->j", (2, 3, 2)),
    einsum("iijj->ji", (2, 2, 3, 3)),
    einsum("ii->i", (0, 0)),
    einsum("...ii->...i", (2, 3, 3)),
    einsum("...ij->...ji", (2, 1, 3, 4)),
    einsum("i...->...", (3, 2)),
    einsum("i...j", (3, 2, 4)),
    # two
    einsum("i,i", (3,), (3,)),
    einsum("i,i->i", (3,), (3,)),
    einsum("i,j->ij", (3,), (2,)),
    einsum("i,j->ji", (3,), (2,)),
    einsum("i,j->", (3,), (2,)),
    einsum("i,j->j", (3,), (2,)),
    einsum("ij,jk", (2, 3), (3, 4)),
    einsum("ij,jk->ki", (2, 3), (3, 4)),
    einsum("ij,jk->k", (2, 3), (3, 4)),
    einsum("ij,j->i", (2, 3), (3,)),
    einsum("i,ij->j", (2,), (2, 3)),
    einsum("ij,ij->ij", (2, 3), (2, 3)),
    einsum("ij,ji->ij", (2, 3), (3, 2)),
    einsum("ij,ij->i", (2, 3), (2, 3)),
    einsum("ij,ij->", (2, 3), (2, 3)),
    einsum("ii,ij->j", (3, 3), (3, 2)),
    einsum("ii,jj->ij", (3, 3), (2, 2)),
    einsum("bij,bjk->bik", (5, 2, 3), (5, 3, 4)),
    einsum("bij,jk->bik", (5, 2, 3), (3, 4)),
    einsum("bhqd,bhkd->bhqk", (2, 2, 3, 4), (2, 2, 5, 4)),
    einsum("bnd,dhk->bhnk", (2, 3, 4), (4, 2, 2)),
    einsum("abcd,dcbe->ae", (2, 3, 4, 5), (5, 4, 3, 2)),
    einsum("ij,jk->ik", (2, 0), (0, 3)),
    einsum("ij,jk->ik", (0, 2), (2, 3)),
    einsum(",i->i", (), (3,)),
    einsum(",", (), ()),
    einsum("i,->", (3,), ()),
    # axes of length 1, and those under the dots, broadcast
    einsum("ij,jk->ik", (2, 1), (3, 4)),
    einsum("ij,ij->ij", (1, 3), (2, 1)),
    einsum("ij,ij->", (1, 3), (2, 1)),
    einsum("i,i->i", (1,), (0,)),
    einsum("i,i,i->i", (1,), (1,), (3,)),
    einsum("...ij,...jk->...ik", (5, 2, 3), (3, 4)),
    einsum("...ij,...jk->...ik", (5, 1, 2, 3), (7, 3, 4)),
    einsum("...ij,...jk", (2, 3), (6, 3, 4)),
    einsum("...,...->...", (2, 1), (3,)),
    einsum("i...,i...->i...", (3, 2), (3, 1, 2)),
    einsum("...i,...->...i", (2, 3), ()),
    # more, spaces
    einsum("ij,jk,kl->il", (2, 3), (3, 4), (4, 2)),
    einsum("i,i,i->", (3,), (3,), (3,)),
    einsum("i,j,k->kji", (2,), (3,), (4,)),
    einsum("ij,kl,ik->jl", (2, 3), (4, 3), (2, 4)),
    einsum("a,ab,bc,cd->d", (2,), (2, 3), (3, 2), (2, 4)),
    einsum("bi,ijk,bj->bk", (2, 3), (3, 4, 5), (2, 4)),
    einsum(" i j , j k -> i k ", (2, 3), (3, 4)),
    # read by PyTorch alone: what is under the dots is summed if the output has none
    einsum("...i->i", (2, 3), numpy="ai->i"),
    einsum("...i,i->i", (2, 3), (3,), numpy="ai,i->i"),
    einsum("i->...i", (3,), numpy="i->i"),
]

test_gradients, test_against_numpy, test_against_pytorch, test_device = make_tests(CASES)


@st.composite
def formats(draw):
    """A format of one to four operands, and their shapes: any letters, repeated or in one operand alone, any order."""
    lengths = {letter: draw(st.integers(1, 3)) for letter in "abcD"}
    terms, shapes = [], []
    for _ in range(draw(st.integers(1, 4))):
        letters = draw(st.lists(st.sampled_from("abcD"), max_size=3))
        single = {letter for letter in letters if draw(st.integers(0, 3)) == 0}  # these broadcast
        terms.append("".join(letters))
        shapes.append(tuple(1 if letter in single else lengths[letter] for letter in letters))
    every = sorted(set("".join(terms)))
    output = draw(st.permutations(every))[: draw(st.integers(0, len(every)))]
    return ",".join(terms) + draw(st.sampled_from(["", "->" + "".join(output)])), tuple(shapes)


@given(formats(), SEEDS)
def test_any_format_is_pytorchs_with_its_gradients(case, seed):
    torch = torch_or_skip()
    subscripts, shapes = case
    rng = np.random.default_rng(seed)
    arrays = [np.asarray(rng.standard_normal(shape)) for shape in shapes]
    ours = [leaf(array) for array in arrays]
    theirs = [torch.tensor(array, requires_grad=True) for array in arrays]
    y, wanted = mg.einsum(subscripts, *ours), torch.einsum(subscripts, *theirs)
    assert_close(y, wanted, 1e-12)
    weights = np.asarray(rng.standard_normal(y.shape))
    y.backward(weights)
    wanted.backward(torch.tensor(weights))
    for x, other in zip(ours, theirs, strict=True):
        assert_close(x.grad, other.grad, 1e-12)


def test_one_tensor_as_several_operands():
    x = leaf([[1.0, 2.0], [3.0, 4.0]])
    assert mg.gradcheck(lambda x: mg.einsum("ij,jk,ki->", x, x, x), [x.numpy()], order=2)
    mg.einsum("ij,ij->", x, x).backward()
    assert x.grad.tolist() == [[2, 4], [6, 8]]


def test_third_derivatives():
    x = leaf([0.5, -2.0])
    y = mg.einsum("i,i,i,i->", x, x, x, x)
    for factor, power in ((4, 3), (12, 2), (24, 1)):
        (y,) = mg.grad(y.sum(), [x], create_graph=True)
        assert_close(y, factor * x.numpy() ** power, 1e-12)


@pytest.mark.cpu_only(reason="NumPy's arrays stand beside tensors, and devices do not mix")
def test_operands_may_be_a_list_arrays_or_of_several_dtypes():
    x, y = np.ones((2, 3), np.float32), np.arange(3)
    assert mg.einsum("ij,j->i", [Tensor(x), Tensor(y)]).tolist() == [3, 3]
    assert mg.einsum("ij,j->i", Tensor(x), y).dtype == np.float32
    assert type(ops.einsum("ij,j->i", x, x[0])) is np.ndarray
    assert mg.einsum("i,i", Tensor(y), Tensor(y)).dtype == np.int64
    assert mg.einsum("ij->i", Tensor(x, dtype=np.float16)).dtype == np.float16


@pytest.mark.cpu_only(reason="NumPy's arrays stand beside tensors, and devices do not mix")
def test_an_array_that_is_changed_afterwards_does_not_change_the_gradient():
    x, y = leaf([1.0, 2.0]), np.array([3.0, 4.0])
    z = mg.einsum("i,i->", x, y)
    y[...] = 0.0
    z.backward()
    assert x.grad.tolist() == [3, 4]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: mg.einsum("ij,jk->ik", x, x), ValueError, "index 'j' has the lengths 3 and 2; they must be equal"),
        (lambda x: mg.einsum("ii->i", x), ValueError, "index 'i' names axes of lengths 2 and 3 of one operand"),
        (lambda x: mg.einsum("ii->i", x[:1]), ValueError, "index 'i' names axes of lengths 1 and 3 of one operand"),
        (lambda x: mg.einsum("...,...", x, x.T), ValueError, r"index -2 of '\.\.\.' has the lengths 2 and 3"),
        (lambda x: mg.einsum("ijk", x), ValueError, "'ijk' has 'ijk' for a tensor of 2 dimensions; name each"),
        (lambda x: mg.einsum("i", x), ValueError, "'i' has 'i' for a tensor of 2 dimensions; name each"),
        (lambda x: mg.einsum("i...jk", x), ValueError, r"'i\.\.\.jk' has 'i\.\.\.jk' for a tensor of 2 dimensions"),
        (lambda x: mg.einsum("ij,ij", x), ValueError, "'ij,ij' is for 2 operands, got 1"),
        (lambda x: mg.einsum("ij", x, x), ValueError, "'ij' is for 1 operands, got 2"),
        (lambda x: mg.einsum("ij"), ValueError, "'ij' is for 1 operands, got 0"),
        (lambda x: mg.einsum("ij->k", x), ValueError, "'ij->k' has 'k' in the output, but in no operand"),
        (lambda x: mg.einsum("ij->ii", x), ValueError, "'ij->ii' has 'i' twice in the output"),
        (lambda x: mg.einsum("i1->i", x), ValueError, "'i1->i' has '1' in 'i1'; it takes letters"),
        (lambda x: mg.einsum("iä->i", x), ValueError, "'iä->i' has 'ä' in 'iä'; it takes letters"),
        (lambda x: mg.einsum("i..->i", x), ValueError, r"'i\.\.->i' has '\.' in 'i\.\.'"),
        (lambda x: mg.einsum("......->", x), ValueError, r"has '\.' in '\.\.\.\.\.\.'; .* once in each operand"),
        (lambda x: mg.einsum("ij->i->j", x), ValueError, "has '-' in 'i->j'"),
        (lambda x: mg.einsum("ij->i,j", x), ValueError, "has ',' in 'i,j'"),
        (lambda x: mg.einsum(x, x), TypeError, "a format such as 'ij,jk->ik' comes first, got Tensor"),
        (lambda x: mg.einsum("ij,", x, 2.0), TypeError, "operand 1 must be a tensor or an array, got float"),
    ],
)
def test_formats_and_shapes_that_do_not_fit(call, error, text):
    with pytest.raises(error, match="einsum: .*" + text):
        call(Tensor(np.zeros((2, 3))))
