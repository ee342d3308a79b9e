"""ModuleList and Sequential."""

import pytest

import minigrad as mg
import nn


def layers(count=3):
    return [nn.Linear(1, 1) for _ in range(count)]


def test_a_module_list_is_a_list_whose_items_are_parts():
    items = layers()
    found = nn.ModuleList(items)
    assert len(found) == 3 and list(found) == items and found[0] is items[0] and found[-1] is items[2]
    assert [name for name, _ in found.named_parameters()] == [f"{i}.{n}" for i in range(3) for n in ("weight", "bias")]
    (more,) = layers(1)
    assert found.append(more) is found and found[3] is more
    found[-1] = items[0]
    assert found[3] is items[0] and len(found) == 4
    for place in (4, -5):
        with pytest.raises(IndexError):
            found[place]
        with pytest.raises(IndexError):
            found[place] = more


def test_a_shared_module_keeps_its_places():
    (layer,) = layers(1)
    found = nn.ModuleList([layer, layer])
    assert len(found) == 2 and found[1] is layer and len(list(found.parameters())) == 2


@pytest.mark.parametrize("make", [nn.ModuleList, lambda items: nn.Sequential(*items)])
def test_a_slice_is_a_container_of_the_same_modules(make):
    items = layers()
    part = make(items)[1:]
    assert type(part) is type(make([])) and list(part) == items[1:]
    assert [name for name, _ in part.named_children()] == ["0", "1"]


def test_items_must_be_modules():
    with pytest.raises(TypeError, match="ModuleList: item 1 must be a Module, got function"):
        nn.ModuleList([nn.Linear(1, 1), lambda x: x])
    with pytest.raises(TypeError, match="Sequential: item 0 must be a Module, got list"):
        nn.Sequential([nn.Linear(1, 1)])


def test_layers_built_one_by_one_differ():
    first, second = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
    assert first.weight is not second.weight and (first.weight != second.weight).all()


def test_sequential_is_composition():
    first, second = nn.Linear(2, 3), nn.Linear(3, 1)
    x = mg.randn(4, 2)
    result = nn.Sequential(first, second)(x)
    assert (result == second(first(x))).all() and result.shape == (4, 1)
    assert nn.Sequential()(x) is x


def test_a_module_list_has_no_forward():
    with pytest.raises(NotImplementedError, match=r"ModuleList has no forward\(\)"):
        nn.ModuleList(layers())(mg.ones(1, 1))
