"""The choice of draft nodes from traces, against plain loops and by hand."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import numpy as np
import pytest

from specdiff_jax.calibration import (
    BlockTrace,
    DraftLimits,
    calibrated_nodes,
    count_formulas,
    count_futures,
    select,
    select_saving,
)
from specdiff_jax.draft_graph import DraftGraph, DraftNode
from specdiff_jax.errors import InputError

MASK = 9


def trace(states, confidence, ranked):
    return BlockTrace(np.array(states, np.int32), np.array(confidence, np.float32), np.array(ranked, np.int32))


def sets(counts):
    return {(level, tuple(sorted(pairs))): count for (level, pairs), count in counts.items()}


# Slot 0 is known. In the first distribution slot 3 is surer than slot 2, and its token 3 is the second likeliest.
SMALL = trace(
    [[7, MASK, MASK, MASK], [7, 1, MASK, MASK], [7, 1, MASK, 3], [7, 1, 2, 3]],
    [[0.9, 0.8, 0.5, 0.6], [0.9, 0.9, 0.5, 0.9], [0.1, 0.1, 0.1, 0.1]],
    [[[7, 0], [1, 0], [2, 5], [4, 3]], [[7, 0], [1, 0], [6, 2], [4, 3]], [[7, 0], [1, 0], [6, 5], [4, 0]]],
)


def counted(traces, *settings, **named):
    return count_formulas(count_futures(traces, DraftLimits(*settings, **named)))


class TestCounting:
    def test_by_hand(self):
        counts = counted([SMALL], MASK, sub_block=4, depth=2, position_ranks=4)
        assert sets(counts) == {(1, ((0, 1),)): 2, (2, ((0, 1), (1, 0))): 1}

    def test_depth_ends_it(self):
        counts = counted([SMALL], MASK, sub_block=4, depth=1, position_ranks=4)
        assert sets(counts) == {(1, ((0, 1),)): 2}

    def test_an_earlier_sub_block_ranks_before_a_surer_slot(self):
        counts = counted([SMALL], MASK, sub_block=3, depth=1, position_ranks=4)
        assert sets(counts) == {(1, ((1, 1),)): 1, (1, ((0, 1),)): 1}

    def test_equally_sure_slots_rank_from_left_to_right(self):
        level = trace(SMALL.states, np.full((3, 4), 0.5), SMALL.ranked)
        counts = counted([level], MASK, sub_block=4, depth=1, position_ranks=4)
        assert sets(counts) == {(1, ((1, 1),)): 1, (1, ((0, 1),)): 1}

    def test_a_token_without_a_rank_ends_it(self):
        first_choices = trace(SMALL.states, SMALL.confidence, SMALL.ranked[:, :, :1])
        assert counted([first_choices], MASK, 4, depth=2, position_ranks=4) == {}
        only_one_slot = counted([SMALL], MASK, 4, depth=2, position_ranks=1)
        assert sets(only_one_slot) == {(1, ((0, 1),)): 2}

    def test_several_tokens_of_a_step_are_one_set(self):
        at_once = trace(SMALL.states[[0, 1, 3]], SMALL.confidence[:2], SMALL.ranked[:2])
        counts = counted([at_once], MASK, sub_block=4, depth=3, position_ranks=4)
        assert sets(counts) == {(1, ((0, 1), (1, 0))): 1}

    def test_a_trace_that_ends_early_counts_what_it_holds(self):
        ended = trace(SMALL.states[:3], SMALL.confidence[:2], SMALL.ranked[:2])
        counts = counted([ended], MASK, sub_block=4, depth=4, position_ranks=4)
        assert sets(counts) == {(1, ((0, 1),)): 1}

    @pytest.mark.parametrize("seed", range(8))
    def test_against_plain_loops(self, seed):
        generator = np.random.default_rng(seed)
        traces = [random_trace(generator) for _ in range(12)]
        settings = (MASK, (8, 4, 2)[seed % 3], 1 + seed % 4, (8, 3, 2)[seed % 3])
        counts = counted(traces, *settings)
        assert len(counts) > 2
        assert counts == counted_by_loops(traces, *settings)


def random_trace(generator: np.random.Generator) -> BlockTrace:
    """A block of 8 slots that fills up in random steps by tokens that are likely, with confidences that tie."""
    slots, ranks = 8, 3
    state = np.full(slots, MASK, np.int32)
    state[: generator.integers(0, 3)] = 4
    states, confidence, ranked = [state.copy()], [], []
    while (state == MASK).any() and len(states) < 6:
        confidence.append(generator.integers(1, 5, slots) / 8)
        ranked.append(np.stack([generator.permutation(5)[:ranks] for _ in range(slots)]))
        masked = np.flatnonzero(state == MASK)
        for slot in generator.permutation(masked)[: generator.integers(1, 4)]:
            likely = ranked[-1][slot] if generator.random() < 0.9 else [5]
            state[slot] = likely[0] if generator.random() < 0.7 else likely[-1]
        states.append(state.copy())
    # Most tokens are as likely as in the distributions before them, so that longer drafts come right, too.
    for earlier in ranked:
        for slot in range(slots):
            if state[slot] not in (MASK, *earlier[slot]) and generator.random() < 0.6:
                earlier[slot, generator.integers(ranks)] = state[slot]
    return trace(states, confidence, ranked)


def counted_by_loops(traces, mask, sub_block, depth, position_ranks):
    counts = {}
    for block in traces:
        states = block.states.tolist()
        for t in range(len(states) - 1):
            base = states[t + 1]
            open_slots = [slot for slot, token in enumerate(base) if token == mask]
            place = {}
            for slot in open_slots:
                before = 0
                for other in open_slots:
                    mine = (slot // sub_block, -block.confidence[t, slot], slot)
                    before += (other // sub_block, -block.confidence[t, other], other) < mine
                place[slot] = before
            for k in range(1, depth + 1):
                if t + 1 + k >= len(states):
                    break
                later = states[t + 1 + k]
                pairs, expressed = [], True
                for slot in open_slots:
                    if later[slot] == mask:
                        continue
                    likely = block.ranked[t, slot].tolist()
                    if place[slot] >= position_ranks or later[slot] not in likely:
                        expressed = False
                    else:
                        pairs.append((place[slot], likely.index(later[slot])))
                if not expressed:
                    break
                key = (k, frozenset(pairs))
                counts[key] = counts.get(key, 0) + 1
    return counts


A, B, C, D = (0, 0), (1, 0), (2, 0), (3, 0)


def formulas(counts):
    """A counter from {(level, pair, ...): count}."""
    return Counter({(level, frozenset(pairs)): count for (level, *pairs), count in counts.items()})


def pairs_of(nodes):
    return [node.pairs for node in nodes]


class TestSelection:
    def test_a_child_of_a_frequent_parent_beats_a_more_frequent_sibling(self):
        counts = formulas({(1, A): 10, (1, B): 6, (2, A, C): 5})
        assert pairs_of(select(counts, 2)) == [(A,), (A, C)]

    def test_a_parent_of_a_chosen_node_beats_a_more_frequent_sibling(self):
        counts = formulas({(1, A): 10, (1, B): 4, (1, D): 5, (2, A, B): 3})
        assert pairs_of(select(counts, 3)) == [(A,), (B,), (A, B)]

    def test_grandparents_do_not_count(self):
        # With its grandparent's 10 the last would gain 14, and be taken.
        counts = formulas({(1, A): 10, (1, B): 8, (2, A, C): 2, (3, A, C, D): 2})
        assert pairs_of(select(counts, 3)) == [(A,), (B,), (A, C)]

    def test_what_has_no_chosen_parent_is_out_of_reach(self):
        counts = formulas({(1, A): 1, (2, B, C): 100, (3, A, B, C): 100})
        assert select(counts, 3) == (DraftNode((A,)),)

    def test_a_parent_has_other_pairs_and_the_level_below(self):
        counts = formulas({(1, A): 3, (1, A, B): 2, (2, A, B): 2, (3, A, B, C): 1})
        nodes = select(counts, 4)
        assert nodes == (
            DraftNode((A,)),
            DraftNode((A, B)),
            DraftNode((A, B), (0,), 0),
            DraftNode((A, B, C), (2,), 2),
        )

    def test_the_fold_parent_is_the_most_frequent_and_of_equals_the_first(self):
        counts = formulas({(1, A): 2, (1, B): 5, (1, C): 5, (2, A, B, C): 4})
        assert select(counts, 4)[3] == DraftNode((A, B, C), (0, 1, 2), 1)

    def test_ties_go_to_the_lower_level_and_the_smaller_pairs(self):
        assert pairs_of(select(formulas({(1, D): 3, (1, B): 3, (1, C): 3}), 2)) == [(B,), (C,)]
        # After A, and A with B, both of the others would add 2.
        counts = formulas({(1, A): 5, (2, A, B): 1, (3, A, B, C): 1, (1, D): 2})
        assert pairs_of(select(counts, 3)) == [(A,), (D,), (A, B)]

    def test_there_are_fewer_nodes_than_the_budget_where_no_more_were_seen(self):
        assert len(select(formulas({(1, A): 1, (1, B): 1}), 5)) == 2

    def test_greedy_may_miss_the_best_set(self):
        counts = formulas({(1, A): 5, (1, B): 4, (2, B, C): 3})
        assert pairs_of(select(counts, 2)) == [(A,), (B,)]
        assert worth({(1, frozenset([A])), (1, frozenset([B]))}, counts) == 9
        assert best_worth(counts, 2) == 11

    @pytest.mark.parametrize("seed", range(20))
    def test_against_the_rule_and_every_connected_set(self, seed):
        counts = random_counts(random.Random(seed))
        for budget in range(1, 6):
            nodes = select(counts, budget)
            chosen = chosen_formulas(nodes)
            assert chosen == greedy_by_rule(counts, budget)
            assert is_connected(chosen)
            best = best_worth(counts, len(chosen))
            assert worth(chosen, counts) <= best
            if budget == 1:
                assert worth(chosen, counts) == best

    @pytest.mark.parametrize("seed", range(5))
    def test_the_order_of_counting_does_not_matter(self, seed):
        generator = random.Random(seed)
        counts = random_counts(generator)
        for _ in range(5):
            items = list(counts.items())
            generator.shuffle(items)
            assert select(Counter(dict(items)), 6) == select(counts, 6)

    @pytest.mark.parametrize("seed", range(10))
    def test_the_nodes_make_a_valid_graph(self, seed):
        counts = random_counts(random.Random(seed))
        graph = DraftGraph(None, select(counts, 7))
        assert list(graph.levels) == sorted(graph.levels)
        chosen = [(level, frozenset(node.pairs)) for level, node in zip(graph.levels, graph.nodes, strict=True)]
        for formula, node in zip(chosen, graph.nodes, strict=True):
            assert [chosen[parent] for parent in node.parents] == [
                other for other in chosen if other in parents_of(formula, chosen)
            ]


def random_counts(generator: random.Random) -> Counter:
    """Eleven formulas of three levels, with counts that tie."""
    pairs = [(position, rank) for position in range(4) for rank in range(2)]
    counts: Counter = Counter()
    for level, number in ((1, 5), (2, 4), (3, 2)):
        while sum(found == level for found, _ in counts) < number:
            positions = generator.sample(range(4), min(4, level + generator.randint(0, 1)))
            formula = frozenset(generator.choice([pair for pair in pairs if pair[0] == p]) for p in positions)
            counts[level, formula] = generator.randint(1, 4)
    return counts


def parents_of(formula, others):
    level, pairs = formula
    return {other for other in others if other[0] == level - 1 and other[1] != pairs and other[1].issubset(pairs)}


def worth(chosen, counts):
    return sum(counts[q] + sum(counts[p] for p in parents_of(q, chosen)) for q in chosen)


def is_connected(chosen):
    return all(level == 1 or parents_of((level, pairs), chosen) for level, pairs in chosen)


def best_worth(counts, size):
    return max(worth(chosen, counts) for chosen in itertools.combinations(counts, size) if is_connected(chosen))


def greedy_by_rule(counts, budget):
    """The rule from the sum itself: try every formula, keep the one that makes the sum largest."""
    chosen = set()
    while len(chosen) < budget:
        tries = [f for f in counts if f not in chosen and (f[0] == 1 or parents_of(f, chosen))]
        if not tries:
            break
        tries.sort(key=lambda f: (f[0], sorted(f[1])))
        worths = [worth(chosen | {f}, counts) for f in tries]
        chosen.add(tries[worths.index(max(worths))])
    return chosen


def chosen_formulas(nodes):
    levels = DraftGraph(None, nodes).levels
    return {(level, frozenset(node.pairs)) for level, node in zip(levels, nodes, strict=True)}


def future(*parts):
    """A future from the pairs that each step adds."""
    return tuple((level, frozenset(itertools.chain(*parts[:level]))) for level in range(1, len(parts) + 1))


def saved(futures, chosen):
    """Steps without a forward, walked one by one."""
    total = 0
    for steps, count in futures.items():
        for formula in steps:
            if formula not in chosen:
                break
            total += count
    return total


def random_futures(generator: random.Random) -> Counter:
    """Futures of one to three steps, with counts that tie."""
    futures: Counter = Counter()
    for _ in range(12):
        positions = generator.sample(range(4), 4)
        steps = [[(position, int(generator.random() < 0.3))] for position in positions[: generator.randint(1, 3)]]
        futures[future(*steps)] += generator.randint(1, 4)
    return futures


class TestSavingSelection:
    def choose(self, futures, budget):
        return select_saving(futures, count_formulas(futures), budget)

    def test_a_frequent_sibling_beats_a_rarer_child_of_a_frequent_parent(self):
        futures = Counter({future([A]): 5, future([A], [C]): 5, future([B]): 6})
        assert pairs_of(self.choose(futures, 2)) == [(A,), (B,)]
        assert pairs_of(select(count_formulas(futures), 2)) == [(A,), (A, C)]

    def test_a_set_counts_only_behind_the_state_that_led_to_it(self):
        # A, C comes after A twice and after C nine times; with A alone chosen it saves two.
        futures = Counter({future([A], [C]): 2, future([C], [A]): 9, future([A]): 20, future([D]): 3})
        assert pairs_of(self.choose(futures, 3)) == [(A,), (C,), (A, C)]
        assert pairs_of(self.choose(Counter({**futures, future([C], [A]): 0}), 3)) == [(A,), (D,), (A, C)]

    @pytest.mark.parametrize("seed", range(20))
    def test_against_the_rule(self, seed):
        futures = random_futures(random.Random(seed))
        counts = count_formulas(futures)
        for budget in range(1, 7):
            chosen = set()
            while len(chosen) < budget:
                tries = sorted((f for f in counts if f not in chosen), key=lambda f: (f[0], sorted(f[1])))
                worths = [saved(futures, chosen | {f}) for f in tries]
                if not worths or max(worths) == saved(futures, chosen):
                    break
                chosen.add(tries[worths.index(max(worths))])
            nodes = self.choose(futures, budget)
            assert chosen_formulas(nodes) == chosen
            assert is_connected(chosen)
            assert saved(futures, chosen) >= saved(futures, chosen_formulas(select(counts, 1)))

    @pytest.mark.parametrize("seed", range(5))
    def test_the_order_of_counting_does_not_matter(self, seed):
        generator = random.Random(seed)
        futures = random_futures(generator)
        items = list(futures.items())
        generator.shuffle(items)
        assert self.choose(Counter(dict(items)), 6) == self.choose(futures, 6)

    def test_there_are_fewer_nodes_than_the_budget_where_no_more_were_seen(self):
        assert len(self.choose(Counter({future([A], [B]): 1}), 5)) == 2


class TestCalibratedNodes:
    def calibrate(self, traces, **changes):
        settings = {"budget": 2, "depth": 2, **changes}
        return calibrated_nodes(traces, DraftLimits(MASK, 4, settings["depth"], 4), settings["budget"])

    def test_from_traces_to_nodes(self):
        assert self.calibrate([SMALL]) == (DraftNode(((0, 1),)), DraftNode(((0, 1), (1, 0)), (0,), 0))
        assert self.calibrate([SMALL], budget=1) == (DraftNode(((0, 1),)),)

    def test_saved_forwards_are_the_default_objective(self):
        generator = np.random.default_rng(1)
        traces, limits = [random_trace(generator) for _ in range(40)], DraftLimits(MASK, 8, 3, 8)
        futures = count_futures(traces, limits)
        saving = select_saving(futures, count_formulas(futures), 4)
        accumulating = select(count_formulas(futures), 4)
        assert saving != accumulating
        assert calibrated_nodes(traces, limits, 4) == calibrated_nodes(traces, limits, 4, "saved") == saving
        assert calibrated_nodes(traces, limits, 4, "accumulated") == accumulating

    def test_traces_without_a_masked_step_are_refused(self):
        filled_at_once = trace(SMALL.states[[0, 3]], SMALL.confidence[:1], SMALL.ranked[:1])
        for traces in ([], [filled_at_once]):
            with pytest.raises(InputError, match="calibration prompts give no masked step"):
                self.calibrate(traces)

    @pytest.mark.parametrize("changes", [{"budget": 0}, {"depth": 0}])
    def test_settings_below_one_are_refused(self, changes):
        with pytest.raises(InputError, match="budget and depth must be at least 1"):
            self.calibrate([SMALL], **changes)
