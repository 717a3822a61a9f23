"""Draft graphs: what is valid, what fits a model, and the file."""

from __future__ import annotations

import dataclasses
import json

import pytest

from specdiff_jax.draft_graph import DraftGraph, DraftNode, GraphKey, check_graph, fixed_graph
from specdiff_jax.draft_graph_file import read_graph, write_graph
from specdiff_jax.errors import InputError

KEY = GraphKey(model="a1b2", block_size=8, sub_block=4, strict=True, token_shift=True, causal=False, threshold=0.9)
SIBLINGS = (DraftNode(((0, 0),)), DraftNode(((1, 2),)))
JOINED = DraftNode(((0, 0), (1, 2)), parents=(0, 1), fold_parent=1)
GRAPH = DraftGraph(KEY, (*SIBLINGS, JOINED))


def test_sizes_are_those_of_the_nodes():
    assert (GRAPH.budget, GRAPH.levels, GRAPH.depth) == (3, (1, 1, 2), 2)
    assert (GRAPH.position_ranks, GRAPH.vocabulary_ranks) == (2, 3)


def test_a_level_counts_steps_and_not_tokens():
    two = DraftNode(((0, 0), (1, 0)))
    four = DraftNode(((0, 0), (1, 0), (2, 0), (3, 1)), parents=(0,), fold_parent=0)
    assert DraftGraph(None, (two, four)).levels == (1, 2)


def test_one_set_may_stand_at_two_levels():
    at_once = DraftNode(JOINED.pairs)
    assert DraftGraph(None, (*SIBLINGS, JOINED, at_once)).levels == (1, 1, 2, 1)


@pytest.mark.parametrize(
    ("nodes", "fault"),
    [
        ((), "at least one node"),
        ((DraftNode(()),), "node 0: has no pairs"),
        ((DraftNode(((0, -1),)),), "node 0: has a rank below 0"),
        ((DraftNode(((-1, 0),)),), "node 0: has a rank below 0"),
        ((DraftNode(((0, 0), (0, 1))),), "node 0: fills a position rank twice"),
        ((DraftNode(((1, 0), (0, 0))),), "node 0: .* ascending order"),
        ((DraftNode(((8, 0),)),), "node 0: position rank 8 is beyond a block of 8"),
        ((DraftNode(((0, 0),), (1,), 1), JOINED), "node 0: parent 1 is no earlier node"),
        ((*SIBLINGS, dataclasses.replace(JOINED, parents=(2,), fold_parent=2)), "node 2: parent 2 is no earlier node"),
        ((*SIBLINGS, dataclasses.replace(JOINED, parents=(-1,), fold_parent=-1)), "node 2: parent -1 is no earlier"),
        ((*SIBLINGS, dataclasses.replace(JOINED, parents=(1, 0))), "node 2: .* ascending order, each once"),
        ((*SIBLINGS, dataclasses.replace(JOINED, parents=(1, 1))), "node 2: .* ascending order, each once"),
        (
            (*SIBLINGS, JOINED, DraftNode(((0, 0), (1, 2), (2, 0)), (0, 2), 0)),
            "node 3: its parents are at different levels",
        ),
        ((SIBLINGS[0], DraftNode(((1, 0), (2, 0)), (0,), 0)), "node 1: must have all pairs of its parent 0"),
        ((SIBLINGS[0], DraftNode(((0, 1), (2, 0)), (0,), 0)), "node 1: must have all pairs of its parent 0"),
        ((SIBLINGS[0], DraftNode(((0, 0),), (0,), 0)), "node 1: must have all pairs of its parent 0, and more"),
        ((*SIBLINGS, dataclasses.replace(JOINED, parents=(0,))), "node 2: its fold parent"),
        ((*SIBLINGS, dataclasses.replace(JOINED, fold_parent=None)), "node 2: its fold parent"),
        ((SIBLINGS[0], dataclasses.replace(SIBLINGS[1], fold_parent=0)), "node 1: its fold parent"),
        ((*SIBLINGS, SIBLINGS[0]), "node 2: is the same as node 0"),
        (
            (*SIBLINGS, JOINED, dataclasses.replace(JOINED, parents=(0,), fold_parent=0)),
            "node 3: is the same as node 2",
        ),
    ],
)
def test_a_malformed_node_is_named(nodes, fault):
    with pytest.raises(InputError, match=fault) as caught:
        DraftGraph(KEY, nodes)
    assert "\n" not in str(caught.value)


def test_the_last_rank_of_a_block_is_within():
    assert DraftGraph(KEY, (DraftNode(((7, 0),)),)).position_ranks == 8


def test_equal_graphs_have_one_hash_and_others_another():
    same = DraftGraph(dataclasses.replace(KEY), (*SIBLINGS, dataclasses.replace(JOINED)))
    assert same == GRAPH
    assert hash(same) == hash(GRAPH)
    assert same.content_hash == GRAPH.content_hash
    others = [
        dataclasses.replace(GRAPH, key=None),
        dataclasses.replace(GRAPH, key=dataclasses.replace(KEY, threshold=0.8)),
        dataclasses.replace(GRAPH, nodes=SIBLINGS),
        dataclasses.replace(GRAPH, nodes=(*SIBLINGS, dataclasses.replace(JOINED, fold_parent=0))),
    ]
    assert len({other.content_hash for other in [GRAPH, *others]}) == 5


class TestCheckGraph:
    def test_what_fits_passes(self):
        check_graph(GRAPH, KEY, vocab_size=4)
        check_graph(fixed_graph(7, 3), KEY, vocab_size=2)
        check_graph(fixed_graph(8, 1), KEY, vocab_size=2)

    @pytest.mark.parametrize(
        ("name", "value", "named"),
        [
            ("model", "c3d4", 'model "a1b2", not "c3d4"'),
            ("block_size", 16, "block_size 8, not 16"),
            ("sub_block", 8, "sub_block 4, not 8"),
            ("strict", False, "strict true, not false"),
            ("token_shift", False, "token_shift true, not false"),
            ("causal", True, "causal false, not true"),
            ("threshold", 0.6, "threshold 0.9, not 0.6"),
        ],
    )
    def test_a_graph_made_for_others_is_refused_unless_forced(self, name, value, named):
        other = dataclasses.replace(KEY, **{name: value})
        with pytest.raises(InputError, match=f"made for {named}: calibrate"):
            check_graph(GRAPH, other, vocab_size=100)
        check_graph(GRAPH, other, vocab_size=100, force=True)

    def test_all_differences_are_named(self):
        with pytest.raises(InputError, match=r"model .* sub_block .* threshold"):
            check_graph(GRAPH, dataclasses.replace(KEY, model="x", sub_block=8, threshold=1), vocab_size=100)

    @pytest.mark.parametrize("force", [False, True])
    @pytest.mark.parametrize("graph", [GRAPH, dataclasses.replace(GRAPH, key=None)])
    def test_ranks_beyond_block_or_vocabulary_are_refused_even_if_forced(self, graph, force):
        with pytest.raises(InputError, match="vocabulary rank 2 is beyond the vocabulary of 2 tokens"):
            check_graph(graph, KEY, vocab_size=3, force=force)
        with pytest.raises(InputError, match="position rank 1 is beyond a block of 1 tokens"):
            check_graph(graph, dataclasses.replace(KEY, block_size=1), vocab_size=100, force=force)


class TestFixedGraph:
    # (pairs' position ranks, parents), by hand.
    SHAPES = {  # noqa: RUF012
        1: [("0", ()), ("1", ()), ("2", ()), ("3", ()), ("4", ()), ("5", ()), ("6", ())],
        2: [("0", ()), ("1", ()), ("2", ()), ("3", ()), ("01", (0, 1)), ("12", (1, 2)), ("23", (2, 3))],
        3: [("0", ()), ("1", ()), ("2", ()), ("01", (0, 1)), ("12", (1, 2)), ("012", (3, 4)), ("123", (4,))],
        4: [("0", ()), ("1", ()), ("01", (0, 1)), ("12", (1,)), ("012", (2, 3)), ("123", (3,)), ("0123", (4, 5))],
    }

    @pytest.mark.parametrize("depth", SHAPES)
    def test_seven_nodes(self, depth):
        graph = fixed_graph(7, depth)
        assert graph.key is None
        assert graph.depth == depth
        shape = [("".join(str(position) for position, _ in node.pairs), node.parents) for node in graph.nodes]
        assert shape == self.SHAPES[depth]
        assert graph.vocabulary_ranks == 1
        assert all(node.fold_parent == (node.parents[0] if node.parents else None) for node in graph.nodes)

    @pytest.mark.parametrize(("budget", "depth"), [(0, 0), (3, 0), (3, 4), (0, 1), (-1, -1)])
    def test_a_depth_that_the_budget_cannot_fill_is_refused(self, budget, depth):
        with pytest.raises(InputError, match=f"depth {depth} must be from 1 to the budget, which is {budget}"):
            fixed_graph(budget, depth)

    @pytest.mark.parametrize("budget", range(1, 10))
    def test_every_shape_is_a_valid_graph_of_its_size(self, budget):
        for depth in range(1, budget + 1):
            assert (fixed_graph(budget, depth).budget, fixed_graph(budget, depth).depth) == (budget, depth)


class TestFile:
    @pytest.mark.parametrize("graph", [GRAPH, dataclasses.replace(GRAPH, key=None), fixed_graph(7, 4)])
    def test_a_graph_comes_back_and_is_written_alike(self, tmp_path, graph):
        write_graph(graph, tmp_path / "a.json")
        again = read_graph(tmp_path / "a.json")
        assert again == graph
        write_graph(again, tmp_path / "b.json")
        assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.json"]

    def test_a_whole_threshold_is_written_like_the_equal_float(self, tmp_path):
        for name, threshold in (("a", 1), ("b", 1.0)):
            graph = DraftGraph(dataclasses.replace(KEY, threshold=threshold), SIBLINGS)
            write_graph(graph, tmp_path / name)
            assert read_graph(tmp_path / name) == graph
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()

    def test_an_existing_file_is_kept(self, tmp_path):
        path = tmp_path / "graph.json"
        path.write_text("mine")
        with pytest.raises(InputError, match="exists already"):
            write_graph(GRAPH, path)
        assert path.read_text() == "mine"

    @pytest.mark.parametrize(("name", "fault"), [("none/graph.json", "is no folder"), ("g" * 300, "can't be written")])
    def test_a_place_that_cannot_be_written_is_named(self, tmp_path, name, fault):
        with pytest.raises(InputError, match=fault):
            write_graph(GRAPH, tmp_path / name)
        assert list(tmp_path.iterdir()) == []

    def test_a_missing_file_is_named(self, tmp_path):
        with pytest.raises(InputError, match=r"graph\.json: cannot be read"):
            read_graph(tmp_path / "graph.json")

    def test_a_truncated_file_is_refused_wherever_it_ends(self, tmp_path):
        write_graph(GRAPH, tmp_path / "whole.json")
        text = (tmp_path / "whole.json").read_text().rstrip()
        path = tmp_path / "graph.json"
        for length in range(len(text)):
            path.write_text(text[:length])
            with pytest.raises(InputError, match="not valid JSON") as caught:
                read_graph(path)
            assert str(caught.value).startswith(f"{path}: ")
            assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("place", "value", "fault"),
        [
            (("nodes",), [], "at least one node"),
            (("nodes",), None, "nodes is missing"),
            (("nodes",), {}, r"nodes=\{\}: must be a list"),
            (("nodes", 0), "x", r"nodes\[0\]\.pairs is missing"),
            (("nodes", 0, "pairs"), None, r"nodes\[0\]\.pairs is missing"),
            (("nodes", 1, "pairs"), [[0, 0, 0]], r"nodes\[1\]\.pairs=\[\[0, 0, 0\]\]: must be a list of"),
            (("nodes", 1, "pairs"), [3], r"nodes\[1\]\.pairs=\[3\]: must be a list of"),
            (("nodes", 1, "pairs"), [[0, True]], r"nodes\[1\]\.pairs=.*: must be a list of"),
            (("nodes", 1, "pairs"), [[0, -1]], r"nodes\[1\]\.pairs=.*: must be a list of"),
            (("nodes", 1, "pairs"), [[0, 2**31]], r"nodes\[1\]\.pairs=.*: must be a list of"),
            (("nodes", 1, "pairs"), [[8, 0]], "node 1: position rank 8 is beyond a block of 8 tokens"),
            (("nodes", 1, "pairs"), [[0, 0]], "node 1: is the same as node 0"),
            (("nodes", 0, "parents"), [2], "node 0: parent 2 is no earlier node, so the graph has a cycle"),
            (("nodes", 2, "parents"), [0, 7], "node 2: parent 7 is no earlier node"),
            (("nodes", 2, "parents"), ["0"], r"nodes\[2\]\.parents=.*: must be a list of node numbers"),
            (("nodes", 2, "parents"), [0], "node 2: its fold parent must be one of its parents"),
            (("nodes", 2, "fold_parent"), "0", r"nodes\[2\]\.fold_parent=\"0\": must be a whole number"),
            (("nodes", 2, "fold_parent"), 0, "content_hash does not match"),
            (("nodes", 2, "colour"), "red", r"nodes\[2\]\.colour=\"red\": unknown key"),
            (("key",), "a1b2", 'key="a1b2": must be an object'),
            (("key",), None, "content_hash does not match"),
            (("key", "model"), None, "key.model is missing"),
            (("key", "strict"), None, "key.strict is missing"),
            (("key", "strict"), 1, "key.strict=1: must be true or false"),
            (("key", "token_shift"), None, "key.token_shift is missing"),
            (("key", "causal"), None, "key.causal is missing"),
            (("key", "block_size"), 0, "key.block_size=0: must be a whole number"),
            (("key", "sub_block"), None, "key.sub_block is missing"),
            (("key", "threshold"), 1.5, "key.threshold=1.5: must be a number"),
            (("key", "threshold"), 0.8, "content_hash does not match"),
            (("key", "colour"), "red", 'key.colour="red": unknown key'),
            (("colour",), "red", 'colour="red": unknown key'),
            (("content_hash",), "0" * 64, "content_hash does not match"),
            (("content_hash",), None, "content_hash is missing"),
            (("content_hash",), 3, "content_hash=3: must be a string"),
        ],
    )
    def test_a_damaged_file_is_named_with_its_fault(self, tmp_path, place, value, fault):
        path = tmp_path / "graph.json"
        write_graph(GRAPH, path)
        content = json.loads(path.read_text())
        holder = content
        for step in place[:-1]:
            holder = holder[step]
        holder[place[-1]] = value
        path.write_text(json.dumps(content))
        with pytest.raises(InputError, match=fault) as caught:
            read_graph(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert "\n" not in str(caught.value)

    def test_a_file_that_was_only_laid_out_anew_is_taken(self, tmp_path):
        path = tmp_path / "graph.json"
        write_graph(GRAPH, path)
        path.write_text(json.dumps(json.loads(path.read_text()), sort_keys=True))
        assert read_graph(path) == GRAPH
