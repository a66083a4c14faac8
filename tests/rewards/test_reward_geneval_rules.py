"""GenEval's rules: against a second implementation, and by their properties, over every line."""

import itertools
import json
import math

import numpy as np
import pytest
from _geneval_lines import SHARED, metadata_lines

from marble.rewards.geneval import Detections, judge, relations
from marble.rewards.geneval.coco import COCO_CLASSES, COLORS
from marble.rewards.geneval.rules import TAGS

PLACES = {"left of": (-1, 0), "right of": (1, 0), "above": (0, -1), "below": (0, 1)}


class Table:
    """Detections built row by row."""

    def __init__(self):
        self.rows = []

    def add(self, label, centre, size=10.0, score=None, color="red"):
        score = 0.95 + 1e-4 * len(self.rows) if score is None else score  # no ties
        x, y = centre
        box = [x - size / 2, y - size / 2, x + size / 2, y + size / 2]
        self.rows.append((box, label, score, color))
        return self

    def detections(self, rng=None):
        order = range(len(self.rows)) if rng is None else rng.permutation(len(self.rows))
        rows = [self.rows[i] for i in order]
        return Detections(
            boxes=np.array([r[0] for r in rows], float).reshape(-1, 4),
            labels=[r[1] for r in rows],
            scores=np.array([r[2] for r in rows], float),
            colors=[r[3] for r in rows],
        )


def verdict(metadata, table, rng=None):
    found = table.detections(rng)
    return judge(metadata, found, lambda indices, label: [found.colors[i] for i in indices])


def perfect(metadata):
    """A scene that has exactly what the line asks for."""
    table = Table()
    for i, wanted in enumerate(metadata["include"]):
        where = np.array([100.0, 100.0 + 60 * i])
        if "position" in wanted:
            relation, target = wanted["position"]
            where = np.array([100.0, 100.0 + 60 * target]) + 50 * np.array(PLACES[relation])
        for j in range(wanted["count"]):
            centre = where + np.array([30 * j, 0])
            table.add(wanted["class"], centre, color=wanted.get("color", "red"))
    return table


def second_opinion(metadata, found):
    """The published rules once more, written from their description and in another way."""
    least = 0.9 if metadata["tag"] == "counting" else 0.3
    kept = [i for i in range(len(found)) if found.scores[i] > least]
    kept.sort(key=lambda i: -found.scores[i])
    of = {}
    for i in kept:
        of.setdefault(found.labels[i], []).append(i)
    correct, groups = True, []
    for wanted in metadata["include"]:
        mine = of.get(wanted["class"], [])[: wanted["count"]]
        good = len(mine) == wanted["count"]
        if good and "color" in wanted:
            good = all(found.colors[i] == wanted["color"] for i in mine)
        if good and "position" in wanted:
            side, other = wanted["position"]
            good = groups[other] is not None and all(
                is_on_side(found.boxes[i], found.boxes[j], side)
                for i in mine
                for j in groups[other]
            )
        groups.append(mine if good else None)
        correct &= good
    for unwanted in metadata.get("exclude", []):
        correct &= len(of.get(unwanted["class"], [])) < unwanted["count"]
    return bool(correct)


def is_on_side(a, b, side):
    axis = 0 if side in ("left of", "right of") else 1
    sign = -1 if side in ("left of", "above") else 1
    centres = [((p[0] + p[2]) / 2, (p[1] + p[3]) / 2) for p in (a, b)]
    gap = [centres[0][k] - centres[1][k] for k in (0, 1)]
    slack = 0.1 * (abs(a[2 + axis] - a[axis]) + abs(b[2 + axis] - b[axis]))
    length = math.hypot(*gap)
    return length > 0 and sign * gap[axis] - slack > 0.5 * length


def noisy(metadata, rng):
    """A scene that may or may not be right: the perfect one, disturbed."""
    table = perfect(metadata)
    for _ in range(rng.integers(0, 4)):
        kind = rng.integers(6)
        if kind == 0 and table.rows:
            table.rows.pop(rng.integers(len(table.rows)))
        elif kind == 1 and table.rows:
            i = rng.integers(len(table.rows))
            box, label, score, _ = table.rows[i]
            table.rows[i] = (box, label, score, COLORS[rng.integers(10)])
        elif kind == 2 and table.rows:
            i = rng.integers(len(table.rows))
            box, label, _, color = table.rows[i]
            table.rows[i] = (box, label, float(rng.random()), color)
        elif kind == 3:
            wanted = metadata["include"][rng.integers(len(metadata["include"]))]
            table.add(wanted["class"], rng.uniform(0, 200, 2), score=float(rng.uniform(0.2, 1)))
        elif kind == 4:
            table.add(COCO_CLASSES[rng.integers(80)], rng.uniform(0, 200, 2))
        elif table.rows:
            i = rng.integers(len(table.rows))
            box, label, score, color = table.rows[i]
            moved = (np.array(box) + np.tile(rng.uniform(-60, 60, 2), 2)).tolist()
            table.rows[i] = (moved, label, score, color)
    return table


def test_the_public_lines_are_all_here():
    if not SHARED.exists():
        pytest.skip("the public prompts do not lie beside this checkout")
    lines = [json.loads(line) for line in SHARED.read_text().splitlines()]
    assert len(lines) == 2212
    classes = {e["class"] for m in lines for k in ("include", "exclude") for e in m.get(k, [])}
    assert classes <= set(COCO_CLASSES) and len(COCO_CLASSES) == 80
    assert {m["tag"] for m in lines} == set(TAGS)


def test_a_perfect_scene_passes_every_line():
    for metadata in metadata_lines():
        got = verdict(metadata, perfect(metadata))
        assert got.strict and got.partial == 1 and got.reasons == (), metadata


def test_an_empty_scene_earns_nothing():
    for metadata in metadata_lines():
        got = verdict(metadata, Table())
        assert not got.strict and got.partial == 0, metadata


def test_both_modes_agree_with_a_second_implementation_over_every_line():
    rng = np.random.default_rng(0)
    passed = failed = 0
    for metadata in metadata_lines():
        for _ in range(4):
            table = noisy(metadata, rng)
            got = verdict(metadata, table, rng)
            assert got.strict == second_opinion(metadata, table.detections()), (
                metadata,
                table.rows,
            )
            assert 0 <= got.partial <= 1
            assert (got.partial == 1) == got.strict
            assert bool(got.reasons) == (not got.strict)
            passed, failed = passed + got.strict, failed + (not got.strict)
    assert min(passed, failed) > 1000  # the scenes test both answers


def test_removing_a_needed_object_never_helps():
    for metadata in metadata_lines():
        table = perfect(metadata)
        last = 1.0
        while table.rows:
            table.rows.pop()
            now = verdict(metadata, table).partial
            assert now <= last, metadata
            last = now
        assert last == 0


def test_one_wrong_thing_fails_strict_and_costs_partial():
    for metadata in metadata_lines():
        for i, wanted in enumerate(metadata["include"]):
            if "color" in wanted:
                table = perfect(metadata)
                other = next(c for c in COLORS if c != wanted["color"])
                row = next(r for r in table.rows if r[1] == wanted["class"])
                table.rows[table.rows.index(row)] = (*row[:3], other)
                got = verdict(metadata, table)
                assert not got.strict and got.partial < 1
            if "position" in wanted:
                x, y = PLACES[wanted["position"][0]]
                table = Table()
                table.add(metadata["include"][0]["class"], (100, 100))
                table.add(wanted["class"], (100 - 50 * x, 100 - 50 * y))
                got = verdict(metadata, table)
                assert not got.strict
                assert got.partial == pytest.approx(2 / 3)  # two objects there, no relation
            assert i < 4


@pytest.mark.parametrize("asked", [1, 2, 3, 4])
def test_counting_partial_rises_to_the_number_asked_for_and_falls_after(asked):
    metadata = {
        "tag": "counting",
        "include": [{"class": "dog", "count": asked}],
        "exclude": [{"class": "dog", "count": asked + 1}],
    }
    values = []
    for n in range(9):
        table = Table()
        for j in range(n):
            table.add("dog", (20 * j, 0))
        values.append(verdict(metadata, table).partial)
    assert values[asked] == 1 and values[0] == 0
    assert all(a < b for a, b in itertools.pairwise(values[: asked + 1]))
    after = values[asked:]
    assert all(a > b or a == b == 0 for a, b in itertools.pairwise(after))


def test_confidence_thresholds():
    one = {"tag": "single_object", "include": [{"class": "dog", "count": 1}]}
    two = {"tag": "counting", "include": [{"class": "dog", "count": 1}]}
    for score, single, counting in ((0.3, False, False), (0.31, True, False), (0.91, True, True)):
        table = Table().add("dog", (0, 0), score=score)
        assert verdict(one, table).strict == single
        assert verdict(two, table).strict == counting


def test_only_the_most_confident_objects_are_judged():
    metadata = {"tag": "colors", "include": [{"class": "cup", "count": 1, "color": "blue"}]}
    table = Table().add("cup", (0, 0), score=0.6, color="blue")
    table.add("cup", (50, 0), score=0.9, color="red")
    assert not verdict(metadata, table).strict
    table.rows[0] = (*table.rows[0][:2], 0.99, "blue")
    assert verdict(metadata, table).strict


def test_at_most_sixteen_objects_of_a_class_are_counted():
    asked = {"tag": "counting", "include": [{"class": "dog", "count": 17}]}
    table = Table()
    for j in range(20):
        table.add("dog", (20 * j, 0))
    got = verdict(asked, table)
    assert not got.strict and got.partial == pytest.approx(16 / 17)
    assert got.reasons == ("expected 17 dog, found 16",)


def test_excluded_objects_count_from_the_number_named():
    asked = {
        "tag": "counting",
        "include": [{"class": "dog", "count": 1}],
        "exclude": [{"class": "cat", "count": 2}],
    }
    one = Table().add("dog", (0, 0)).add("cat", (30, 0))
    assert verdict(asked, one).strict
    assert not verdict(asked, one.add("cat", (60, 0))).strict


def test_overlapping_boxes_of_one_class_are_both_kept():
    """No suppression: GenEval's overlap threshold is 1."""
    asked = {"tag": "two_object", "include": [{"class": "dog", "count": 2}]}
    assert verdict(asked, Table().add("dog", (0, 0)).add("dog", (0, 0), score=0.5)).strict


def test_position_needs_more_than_the_margin():
    box = np.array([0, 0, 10, 10])
    assert relations(box + np.array([2, 0, 2, 0]), box) == set()  # 2 px = 0.1 · (10 + 10)
    assert relations(box + np.array([9, 0, 9, 0]), box) == {"right of"}
    assert relations(box + np.array([0, -9, 0, -9]), box) == {"above"}
    assert relations(box + np.array([40, 40, 40, 40]), box) == {"right of", "below"}
    assert relations(box, box) == set()


def test_a_relation_to_a_missing_or_wrong_target_does_not_hold():
    metadata = {
        "tag": "position",
        "include": [
            {"class": "dog", "count": 1},
            {"class": "cat", "count": 1, "position": ["left of", 0]},
        ],
    }
    alone = verdict(metadata, Table().add("cat", (0, 0)))
    assert alone.partial == pytest.approx(1 / 3) and not alone.strict
