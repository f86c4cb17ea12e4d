"""Quality of texts: known ROUGE figures, exact match, and queries told apart by running them.

Run: python -m pytest tests/bench/test_bench_quality.py
"""

from __future__ import annotations

import pytest

from streamfuse.bench.quality.scores import exact_match, execution_match, quality, rouge
from streamfuse.bench.quality.sql import same_result
from streamfuse.train.formats import Sample

ONE = "CREATE TABLE table_1 (player VARCHAR, team VARCHAR, points VARCHAR, year INTEGER)"
TWO = "CREATE TABLE club (id INTEGER PRIMARY KEY, town VARCHAR); CREATE TABLE player (name VARCHAR, club_id INTEGER)"
GOLD = 'SELECT player FROM table_1 WHERE team = "Ajax" AND year > 1998'


def test_rouge_of_known_texts() -> None:
    pytest.importorskip("rouge_score", reason="rouge-score is not installed: pip install 'streamfuse[bench]'")
    same = rouge(["The cat sat. It slept."], [["The cat sat. It slept."]])
    assert same == dict.fromkeys(("rouge1", "rouge2", "rougeL", "rougeLsum"), 100)
    found = rouge(["a b c d"], [["a b x y"]])
    assert found["rouge1"] == pytest.approx(50)
    assert found["rouge2"] == pytest.approx(100 / 3)
    assert found["rougeL"] == pytest.approx(50)
    swapped = rouge(["One two. Three four."], [["Three four. One two."]])  # sentences in another order
    assert swapped["rougeL"] == pytest.approx(50)
    assert swapped["rougeLsum"] == pytest.approx(100)


def test_the_best_of_several_references_counts_and_samples_are_averaged() -> None:
    pytest.importorskip("rouge_score", reason="rouge-score is not installed: pip install 'streamfuse[bench]'")
    assert rouge(["a b", "c d"], [["x y", "a b"], ["e f"]])["rouge1"] == pytest.approx(50)
    assert rouge(["eating"], [["eats"]])["rouge1"] == 100  # stemmed


def test_exact_match_forgives_white_space_and_the_semicolon_only() -> None:
    texts = ["SELECT  a FROM t ;", "select a from t", "x"]
    assert exact_match(texts, [["SELECT a FROM t"], ["SELECT a FROM t"], ["y", "x"]]) == pytest.approx(200 / 3)
    with pytest.raises(ValueError, match="no text"):
        exact_match([], [])


@pytest.mark.parametrize(
    "query",
    [
        GOLD + ";",
        "SELECT player FROM table_1 WHERE year > 1998 AND team = 'Ajax'",
        "select t.player from table_1 as t where t.team = 'Ajax' and not t.year <= 1998",
    ],
)
def test_queries_that_say_the_same_match(query: str) -> None:
    assert same_result(query, GOLD, ONE) is True


@pytest.mark.parametrize(
    "query",
    [
        'SELECT player FROM table_1 WHERE team = "Ajax"',
        'SELECT player FROM table_1 WHERE team = "Ajax" AND year >= 1998',
        'SELECT player FROM table_1 WHERE team = "ajax" AND year > 1998',
        'SELECT points FROM table_1 WHERE team = "Ajax" AND year > 1998',
        'SELECT COUNT(player) FROM table_1 WHERE team = "Ajax" AND year > 1998',
        'SELECT DISTINCT player FROM table_1 WHERE team = "Ajax" OR year > 1998',
        "SELECT nothing FROM nowhere",
        "no query at all",
        "DROP TABLE table_1",
        "ATTACH DATABASE '/tmp/streamfuse-test.db' AS other",
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x FROM c) SELECT COUNT(*) FROM c",
        "",
    ],
)
def test_queries_that_differ_do_not_match(query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamfuse.bench.quality.sql.MAX_STEPS", 100_000)
    assert same_result(query, GOLD, ONE) is False


def test_an_aggregate_of_part_of_the_rows_is_not_that_of_all() -> None:
    gold = 'SELECT MAX(points) FROM table_1 WHERE team = "Ajax"'
    for query in ("SELECT MAX(points) FROM table_1", gold.replace("MAX", "MIN"), gold.replace("Ajax", "PSV")):
        assert same_result(query, gold, ONE) is False


@pytest.mark.parametrize("constant", ["99999999999999999999", "9" * 5000, "9223372036854775807", "'Infinity'", "'nan'"])
def test_constants_beyond_64_bit_integers_are_compared(constant: str) -> None:
    assert same_result(f'SELECT player FROM table_1 WHERE team = "Ajax" AND year > {constant}', GOLD, ONE) is False


def test_order_counts_where_the_reference_orders() -> None:
    gold = "SELECT player FROM table_1 WHERE year = 1998 ORDER BY player"
    assert same_result(gold + " DESC", gold, ONE) is False
    assert same_result(gold, gold.split(" ORDER")[0], ONE) is True


def test_joined_tables_find_partners() -> None:
    gold = "SELECT p.name FROM player AS p JOIN club AS c ON p.club_id = c.id WHERE c.town = 'Delft'"
    nested = "SELECT name FROM player WHERE club_id IN (SELECT id FROM club WHERE town = 'Delft')"
    assert same_result(nested, gold, TWO) is True
    assert same_result("SELECT name FROM player", gold, TWO) is False


def test_what_running_cannot_tell_counts_by_its_words() -> None:
    nothing = "SELECT player FROM table_1 WHERE year > 3 AND year < 2"
    assert same_result("SELECT player FROM table_1 WHERE year = 5 AND year = 6", nothing, ONE) is None
    assert same_result(GOLD, "SELECT broken FROM", ONE) is None
    assert same_result(GOLD, GOLD, "CREATE VIEW v AS SELECT 1") is None
    found = execution_match([GOLD, nothing, "x"], [GOLD, nothing, nothing], [ONE] * 3)
    assert found == {"execution_match": pytest.approx(200 / 3), "executed": pytest.approx(200 / 3)}


def test_the_data_says_which_figures_fit() -> None:
    pytest.importorskip("rouge_score", reason="rouge-score is not installed: pip install 'streamfuse[bench]'")
    assert quality([Sample(("q",))], ["x"]) == {}
    sql = Sample(("q",), (GOLD,), "sql", ONE)
    assert quality([sql, sql], [GOLD, "x"]) == {"exact_match": 50, "execution_match": 50, "executed": 100}
    assert set(quality([Sample(("q",), ("a", "b")), Sample(("q",))], ["a", "x"]).values()) == {100, 0}
