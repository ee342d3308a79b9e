"""Greedy and beam decoding: on models with given probabilities, on random ones, and on one that has learned."""

import itertools

import numpy as np
import pytest

import minigrad as mg
import nn.functional as F
from models import Transformer, beam_decode, greedy_decode
from nn.optim import Adam
from tests.cupy_standin import installed
from tests.models.decoding import BOS, EOS, PAD, A, B, beam_of_three, random_model, random_sources


class Chain(Transformer):
    """A model of a few symbols in which the next one depends on the last one alone, with given probabilities."""

    def __init__(self, following):
        super().__init__(5, 5, d_model=4, num_heads=1, num_encoder_layers=1, num_decoder_layers=1)
        table = np.full((5, 5), 1e-9, np.float32)
        for symbol, probabilities in following.items():
            for after, probability in probabilities.items():
                table[symbol, after] = probability
        self.table = mg.Tensor(np.log(table))
        self.decoded = []  # (number of targets, training mode) of each call
        self.encoded = 0

    def encode(self, source_ids, need_weights=False):
        self.encoded += 1
        return super().encode(source_ids, need_weights)

    def decode_next(self, ids, cache):
        logits = super().decode_next(ids, cache)
        assert not logits.requires_grad
        self.decoded.append((len(ids), self.training))
        return self.table[ids]


def log_probability(model, source, answers):
    """log P (n,) of each answer (n, N) to one source; what follows an end symbol does not count."""
    model.eval()
    written = np.concatenate([np.full((len(answers), 1), BOS), answers[:, :-1]], axis=1)
    with mg.no_grad():
        log_p = model(np.repeat(source, len(answers), axis=0), written).log_softmax(-1).numpy().astype(np.float64)
    chosen = np.take_along_axis(log_p, answers[:, :, None], axis=2)[:, :, 0]  # (n, N)
    ended = np.cumsum(answers == EOS, axis=1) - (answers == EOS) > 0
    return np.where(ended, 0, chosen).sum(axis=1)


# ---- greedy ----------------------------------------------------------------------------------------------------------


def test_greedy_takes_the_likeliest_symbol_and_fills_up_with_padding_after_the_end():
    model = Chain({BOS: {A: 0.6, B: 0.4}, A: {B: 0.7, EOS: 0.3}, B: {EOS: 0.9, A: 0.1}})
    np.testing.assert_array_equal(greedy_decode(model, [[A], [B]], BOS, EOS, 8), [[A, B, EOS]] * 2)


@pytest.mark.parametrize("seed", range(5))
def test_greedy_is_the_argmax_step_by_step_on_one_row_at_a_time(seed):
    model, sources = random_model(seed).eval(), random_sources(seed)
    answers = greedy_decode(model, sources, BOS, EOS, 10)
    assert answers.dtype == np.int64
    for source, answer in zip(sources, answers, strict=True):
        written = [BOS]
        while written[-1] != EOS and len(written) <= 10:
            logits = model(source[None], [written]).numpy()[0, -1]
            logits[PAD] = -np.inf
            written.append(int(logits.argmax()))
        expected = written[1:] + [PAD] * (len(answer) - len(written) + 1)
        assert answer.tolist() == expected


def test_greedy_stops_when_all_rows_have_ended_and_drops_those_that_have():
    model = Chain({BOS: {A: 1.0}, A: {B: 1.0}, B: {EOS: 1.0}})
    greedy_decode(model, [[A]] * 3, BOS, EOS, 50)
    assert model.decoded == [(3, False)] * 3
    assert model.encoded == 1
    sources = random_sources(2)
    model = random_model(2)
    ends = (greedy_decode(model, sources, BOS, EOS, 10) == EOS).argmax(axis=1)
    assert len(set(ends.tolist())) > 1  # otherwise this shows nothing of rows that end at different places


def test_an_answer_that_does_not_end_is_cut_at_the_longest():
    model = Chain({BOS: {A: 1.0}, A: {A: 1.0}})
    np.testing.assert_array_equal(greedy_decode(model, [[A]], BOS, EOS, 4), [[A] * 4])
    np.testing.assert_array_equal(beam_decode(model, [[A]], BOS, EOS, 4), [[A] * 4])


@pytest.mark.parametrize("decode", [greedy_decode, beam_decode])
def test_padding_is_never_chosen(decode):
    model = Chain({BOS: {PAD: 0.9, A: 0.1}, A: {PAD: 0.9, EOS: 0.1}})
    np.testing.assert_array_equal(decode(model, [[A]], BOS, EOS, 4), [[A, EOS]])


# ---- beam ------------------------------------------------------------------------------------------------------------


def test_a_beam_finds_what_a_greedy_first_choice_misses():
    """A is likelier at first, but what follows A is not sure: P(A B) = 0.6 · 0.5, P(B EOS) = 0.4 · 0.9."""
    model = Chain({BOS: {A: 0.6, B: 0.4}, A: {B: 0.5, EOS: 0.5}, B: {EOS: 0.9, A: 0.1}})
    np.testing.assert_array_equal(greedy_decode(model, [[A]], BOS, EOS, 4)[:, 0], [A])
    np.testing.assert_array_equal(beam_decode(model, [[A]], BOS, EOS, 4, 2, 0.0), [[B, EOS]])


def test_what_ends_takes_no_beam_from_what_goes_on():
    """Two beams: EOS and A are likeliest at first, so EOS is an answer, and A and B are followed."""
    model = Chain({BOS: {EOS: 0.5, A: 0.3, B: 0.2}, A: {A: 0.4, B: 0.3, EOS: 0.3}, B: {EOS: 1.0}})
    np.testing.assert_array_equal(beam_decode(model, [[A]], BOS, EOS, 2, 2, 6.0), [[B, EOS]])


def test_the_length_penalty_is_that_of_wu_et_al():
    """P(EOS) = 0.5 and P(A EOS) = 0.4: the longer answer wins where ln 0.4 / lp(2) > ln 0.5 / lp(1)."""
    turning_point = np.log(np.log(0.4) / np.log(0.5)) / np.log((5 + 2) / (5 + 1))
    model = Chain({BOS: {EOS: 0.5, A: 0.4, B: 0.1}, A: {EOS: 1.0}, B: {EOS: 1.0}})
    for alpha, expected in ((turning_point - 0.01, [[EOS]]), (turning_point + 0.01, [[A, EOS]])):
        np.testing.assert_array_equal(beam_decode(model, [[A]], BOS, EOS, 4, 4, alpha), expected)


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_beam_wide_enough_finds_the_best_of_all_answers(seed, length_penalty):
    model, sources = random_model(seed), random_sources(seed, rows=3)
    longest = 4
    answers = np.array(list(itertools.product([BOS, EOS, A, B], repeat=longest)))  # (256, 4)
    length = np.where((answers == EOS).any(axis=1), (answers == EOS).argmax(axis=1) + 1, longest)
    penalty = ((5 + length) / 6) ** length_penalty
    found = beam_decode(model, sources, BOS, EOS, longest, 4**longest, length_penalty)
    for source, answer in zip(sources, found, strict=True):
        best = (log_probability(model, source[None], answers) / penalty).argmax()
        assert answer.tolist() == [*answers[best, : length[best]], *[PAD] * (len(answer) - length[best])]


def test_greedy_is_not_always_best_on_these_models():
    """Else the test above would pass with a beam of any width."""
    different = 0
    for seed in range(4):
        model, sources = random_model(seed), random_sources(seed, rows=3)
        wide, greedy = beam_decode(model, sources, BOS, EOS, 4, 256, 0.0), greedy_decode(model, sources, BOS, EOS, 4)
        different += wide.shape != greedy.shape or (wide != greedy).any()
    assert different


@pytest.mark.parametrize("seed", range(8))
def test_one_beam_without_penalty_is_greedy(seed):
    model, sources = random_model(seed), random_sources(seed)
    np.testing.assert_array_equal(
        beam_decode(model, sources, BOS, EOS, 10, beam_size=1, length_penalty=0.0),
        greedy_decode(model, sources, BOS, EOS, 10),
    )


def test_stopping_early_loses_nothing(monkeypatch):
    import models.decode

    runs = []
    for over in (models.decode._Search.over, property(lambda search: not len(search.scores))):
        monkeypatch.setattr(models.decode._Search, "over", over)
        runs.append([beam_decode(random_model(s), random_sources(s), BOS, EOS, 10, 3, 1.0).tolist() for s in range(6)])
    assert runs[0] == runs[1]


# ---- both ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decode", [greedy_decode, beam_of_three])
@pytest.mark.parametrize("seed", range(3))
def test_answers_do_not_depend_on_the_rest_of_the_batch(decode, seed):
    model, sources = random_model(seed), random_sources(seed)
    together = decode(model, sources, BOS, EOS, 10)
    for source, answer in zip(sources, together, strict=True):
        alone = decode(model, source[None, source != PAD], BOS, EOS, 10)[0]
        assert answer[: len(alone)].tolist() == alone.tolist()
        assert not answer[len(alone) :].any()


@pytest.mark.parametrize("decode", [greedy_decode, beam_of_three])
def test_the_source_is_encoded_once_in_evaluation_mode_without_recording(decode):
    model = Chain({BOS: {A: 0.6, B: 0.4}, A: {B: 0.6, EOS: 0.4}, B: {EOS: 0.7, A: 0.3}})
    decode(model, [[A, B], [B, PAD]], BOS, EOS, 8)
    assert model.encoded == 1
    assert len(model.decoded) > 1
    assert not any(training for _, training in model.decoded)


@pytest.mark.parametrize("decode", [greedy_decode, beam_of_three])
def test_every_module_is_left_in_its_mode_even_after_an_error(decode):
    model = random_model(0)
    model.encoder.eval()
    modes = [module.training for module in model.modules()]
    assert len(set(modes)) == 2
    decode(model, random_sources(0), BOS, EOS, 4)
    assert [module.training for module in model.modules()] == modes
    with pytest.raises(IndexError, match="99"):
        decode(model, [[99]], BOS, EOS, 4)
    assert [module.training for module in model.modules()] == modes
    assert mg.is_grad_enabled()


@pytest.mark.parametrize("decode", [greedy_decode, beam_of_three])
def test_sources_come_as_tensors_arrays_or_lists_and_may_be_none(decode):
    model, sources = random_model(0), random_sources(0)
    expected = decode(model, sources, BOS, EOS, 6).tolist()
    assert decode(model, mg.Tensor(sources), BOS, EOS, 6).tolist() == expected
    assert decode(model, sources.tolist(), BOS, EOS, 6).tolist() == expected
    assert len(decode(model, sources[:0], BOS, EOS, 6)) == 0


@pytest.mark.parametrize("decode", [greedy_decode, beam_of_three])
def test_a_model_on_a_gpu_answers_with_arrays_on_the_cpu(decode):
    sources = random_sources(0)
    expected = decode(random_model(0), sources, BOS, EOS, 6)
    with installed():
        model = random_model(0).to("cuda")
        for ids in (sources, mg.Tensor(sources, device="cuda")):
            answers = decode(model, ids, BOS, EOS, 6)
            assert type(answers) is np.ndarray
            np.testing.assert_array_equal(answers, expected)


@pytest.mark.parametrize("decode", [greedy_decode, beam_of_three])
def test_bad_input_is_told(decode):
    model = random_model(0)
    name = "greedy_decode" if decode is greedy_decode else "beam_decode"
    assert decode(model, [[A]], BOS, EOS, 16).shape[1] <= 16
    for length in (17, 0):
        with pytest.raises(ValueError, match=rf"{name}: max_length must be from 1 to 16, .*, got {length}"):
            decode(model, [[A]], BOS, EOS, length)
    for eos in (5, -1, PAD):
        with pytest.raises(ValueError, match=rf"{name}: eos_id must be .* 0 to 4 and not the padding's 0, got {eos}"):
            decode(model, [[A]], BOS, eos, 4)
    with pytest.raises(ValueError, match=r"source_ids must have two axes, \(B, N\), got shape \(2,\)"):
        decode(model, [A, B], BOS, EOS, 4)


@pytest.mark.parametrize(("beam_size", "length_penalty"), [(0, 0.6), (4, -1.0)])
def test_a_beam_that_is_none_is_refused(beam_size, length_penalty):
    with pytest.raises(ValueError, match=f"beam_size must be .*, got {beam_size} and {length_penalty}"):
        beam_decode(random_model(0), [[A]], BOS, EOS, 4, beam_size, length_penalty)


# ---- a model that has learned ----------------------------------------------------------------------------------------


def test_a_model_that_learned_four_strings_by_heart_writes_them():
    rows = [[5, 3, 6, 4], [3, 3, 4], [6, 5], [4, 6, 5, 5, 3]]
    source = np.array([row + [EOS] + [PAD] * (5 - len(row)) for row in rows])
    target = np.concatenate([np.full((4, 1), BOS), source[:, :-1]], axis=1)
    mg.manual_seed(0)
    model = Transformer(7, 7, d_model=32, num_heads=4, num_encoder_layers=1, num_decoder_layers=1, d_ff=64, dropout=0.0)
    optimizer = Adam(model.parameters(), lr=3e-3)
    for _ in range(150):
        loss = F.cross_entropy(model(source, target).reshape(-1, 7), mg.Tensor(source.reshape(-1)), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05
    np.testing.assert_array_equal(greedy_decode(model, source, BOS, EOS, 10), source)
    np.testing.assert_array_equal(beam_decode(model, source, BOS, EOS, 10), source)
    assert model.training
