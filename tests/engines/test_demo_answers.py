"""Judging answers: loops, fences and parsers."""

from engines.demo.train.answers import distinct_share, final_number, loops, parses


def test_a_repeated_phrase_is_a_loop_and_counting_is_not() -> None:
    assert loops([1, 2, 3] * 20)
    assert not loops(list(range(60)))


def test_the_distinct_share_counts_four_grams() -> None:
    # 1212121: the 4-grams are 1212, 2121, 1212, 2121
    assert distinct_share([1, 2, 1, 2, 1, 2, 1]) == 0.5
    assert distinct_share([1, 2, 3]) is None


def test_an_answer_too_short_for_a_four_gram_does_not_loop() -> None:
    assert not loops([7, 7, 7])


def test_only_a_whole_fenced_block_parses() -> None:
    assert parses("```python\nx = 1\n```")
    assert not parses("x = 1")
    assert not parses("```python\nx = 1\n")
    assert not parses("```python\nx = \n```")
    assert not parses("```cobol\nx\n```")


def test_each_file_is_judged_by_its_own_parser() -> None:
    assert parses('```json\n{"a": 1}\n```')
    assert not parses('```json\n{"a": 1,}\n```')
    assert parses("```ini\n[a]\nb = 50%\n```")
    assert not parses("```ini\nb = 1\n```")
    assert parses("```markdown\n| a | b |\n| --- | --- |\n| 1 | 2 |\n```")
    assert not parses("```markdown\n| a | b |\n| --- | --- |\n| 1 |\n```")
    assert parses("```text\nTitle\n- item\n```")
    assert not parses("```text\nTitle\n```")


def test_the_final_number_stands_in_the_last_line() -> None:
    assert final_number("Step 1: 2 + 2 = 4\nAnswer: 4") == "4"
    assert final_number("Answer: 4\nand more") is None
