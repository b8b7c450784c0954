"""Tests of case lists, sweeps and names on the command line."""

from pathlib import Path

import pytest

from tests import cases as shapes
from tests.effort import little_work
from vkq.bench import cases
from vkq.bench.cases import expand, load_list, select, swept
from vkq.check.cases import SCHEMES, Case
from vkq.errors import ArgumentError, SpecError
from vkq.problem.names import parse


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("linear[M=1,K=2,N=3]", ["linear[M=1,K=2,N=3]"]),
        ("linear[M=1,8,K=2,N=3]", ["linear[M=1,K=2,N=3]", "linear[M=8,K=2,N=3]"]),
        ("linear[M=64:200:64,K=2,N=3]", [f"linear[M={m},K=2,N=3]" for m in (64, 128, 192)]),
        ("linear[M=1,4:6,9,K=2,N=3]", [f"linear[M={m},K=2,N=3]" for m in (1, 4, 5, 6, 9)]),
        ("linear[M=1,2,K=3,4,N=5]", [f"linear[M={m},K={k},N=5]" for m in (1, 2) for k in (3, 4)]),
        (
            "conv2d[N=1,IC=3,H=8,W=9,OC=4,KH=3,KW=3,stride=1,2x1,padding=1]",
            [f"conv2d[N=1,IC=3,H=8,W=9,OC=4,KH=3,KW=3{s},padding=1]" for s in ("", ",stride=2x1")],
        ),
    ],
)
def test_sweeps(text: str, names: list[str]) -> None:
    assert [p.name for p in expand(text)] == names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("linear", "is not a problem; write linear"),
        ("linear[8,M=1,K=2,N=3]", "'8' comes before any size"),
        ("linear[M=8:1,K=2,N=3]", "the range 8:1 is empty"),
        ("linear[M=1:9:0,K=2,N=3]", "the range 1:9:0 is empty"),
        ("linear[M=1:100000,K=2,N=3]", "more than 10000 sizes"),
        ("linear[M=1:200,K=1:200,N=3]", "gives 40000 cases"),
        ("linear[M=1,K=2]", "missing: N"),
        ("conv2d[N=1,IC=3,H=1,W=1,OC=4,KH=3,KW=3]", "it must be at least 1"),
    ],
)
def test_what_is_no_problem_is_refused(text: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        expand(text)


def test_every_list_of_the_folder_loads_and_its_cases_have_work() -> None:
    for name, summary in cases.lists().items():
        found = load_list(cases.benchmarks_folder() / f"{name}.yaml")
        assert found, name
        assert summary, name
        assert all(case.bytes and case.reason for case in found), name
    assert {
        "linear",
        "conv2d",
        "seed",
        "gemv",
        "resnet50",
        "mobilenet_v2",
        "efficientnet_lite0",
        "transformer",
    } <= set(cases.lists())


def test_the_lists_hold_the_shapes_of_the_tests() -> None:
    listed = {case.name for name in ("linear", "conv2d", "conv_transpose2d") for case in select([name])}
    assert {case.name for case in (*shapes.CASES, *shapes.TRANSPOSED) if case.problem.macs} <= listed


@pytest.mark.parametrize(
    ("name", "macs"), [("resnet50", 4.09e9), ("mobilenet_v2", 0.30e9), ("efficientnet_lite0", 0.39e9)]
)
def test_the_layers_of_a_network_add_up(name: str, macs: float) -> None:
    """The multiply-adds of a list's layers, each layer times its number of occurrences, are within 3 % of
    the published number of the network."""
    total = sum(case.times * case.problem.macs for case in select([name]))
    assert total == pytest.approx(macs, rel=0.03)


def test_seed_and_gemv_are_what_they_say() -> None:
    seed = select(["seed"])
    assert [(c.name, c.scale) for c in seed[:2]] == [
        ("conv2d[N=10,IC=128,H=72,W=120,OC=128,KH=3,KW=3,padding=1]", scale)
        for scale in ("channel", "tensor")
    ]
    assert seed[0].operations == 2 * 86400 * 128 * 1152 == seed[2].operations
    assert {(c.problem.gemm_m, c.scheme) for c in select(["gemv"])} == {
        (m, s) for m in (1, 2, 4, 8, 16, 32) for s in ("q8ta_q8csw_q8to", "q8csw")
    }


def test_bytes_follow_the_scheme() -> None:
    problem = parse("linear[M=2,K=8,N=4]")
    assert [Case(problem, scheme).bytes for scheme in SCHEMES] == [
        16 + 32 + 8,
        16 + 32 + 32,
        64 + 32 + 32,
        64 + 32 + 32,
        64 + 32 + 32,
        64 + 16 + 32,
        64 + 32 + 32,
        32 + 16 + 16,
        32 + 32 + 16,
        64 + 128 + 32,
        64 + 64 + 32,
    ]


def test_selection_joins_words_and_applies_options(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        'summary: mine\ncases:\n  - {case: "linear[M=1,2,K=4,N=4]", reason: why, methods: [a, b]}\n'
    )
    found = select([str(file), "linear[M=3,K=4,N=4]", "linear[M=3,K=4,N=4]"])
    assert [(c.problem.gemm_m, c.method) for c in found] == [
        (1, "a"),
        (1, "b"),
        (2, "a"),
        (2, "b"),
        (3, None),
    ]
    changed = select(["seed"], scheme="q8ta_q8csw", scale="tensor")
    assert len(changed) == 3
    assert changed[0].options == ("--scheme", "q8ta_q8csw", "--scale", "tensor")
    with pytest.raises(ArgumentError, match="nor a list; the lists are: conv2d, "):
        select(["nonesuch"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("summary: s\ncases:\n  - {case: 'linear[M=1]', reason: r}", ":3: .*missing"),
        ("summary: s\ncases:\n  - {case: 'linear[M=1,K=1,N=1]'}", ":3: the key 'reason' is missing"),
        (
            "summary: s\ncases:\n  - {case: 'linear[M=1,K=1,N=1]', reason: r, schemes: [q4]}",
            ":3: 'q4' is not one of q8ta",
        ),
        ("summary: s\ninclude: [mine]", ":2: cannot include 'mine'"),
        ("summary: s\ninclude: [gone]", ":2: cannot include 'gone'"),
        ("cases: []", ":1: the key 'summary' is missing"),
    ],
)
def test_a_wrong_list_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(SpecError, match=message):
        load_list(file)


def test_the_swept_size() -> None:
    assert swept([Case(p) for p in expand("linear[M=1,8,K=2,N=3]")]) == "M"
    assert swept([Case(p) for p in expand("linear[M=1,8,K=2,3,N=3]")]) is None
    assert swept([Case(parse("linear[M=1,K=2,N=3]"))]) is None
    assert (
        swept(
            [
                *map(Case, expand("linear[M=1,K=2,N=3]")),
                *map(Case, expand("conv2d[N=1,IC=1,H=1,W=1,OC=1,KH=1,KW=1]")),
            ]
        )
        is None
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("linear[M=" + "9" * 5000 + ",K=1,N=1]", "letters; a sweep has at most 500"),
        ("linear[M=" + "9" * 30 + ",K=1,N=1]", "is not a problem"),
        ("linear[M=1:" + "9" * 30 + ",K=1,N=1]", "is not a problem"),
        ("linear[M=1000000,K=1000000,N=1000000]", "multiply-adds; at most"),
        ("linear[M=1,K=1,N=100000000000]", "bytes and"),
        ("../benchmarks/seed", "nor a list"),
    ],
)
def test_names_that_cannot_be_run_are_refused(text: str, message: str) -> None:
    with little_work(), pytest.raises(ArgumentError, match=message):
        select([text])


def test_lists_that_include_each_other_twice_are_read_once(tmp_path: Path) -> None:
    """A list that is included twice is read once. Without this rule, 27 nested lists would be read 2^27
    times."""
    for number in range(27):
        (tmp_path / f"l{number}.yaml").write_text(f"summary: s\ninclude: [{f'l{number + 1}, ' * 2}]\n")
    (tmp_path / "l27.yaml").write_text('summary: s\ncases:\n  - {case: "linear[M=1,K=4,N=4]", reason: r}\n')
    with little_work():
        with pytest.raises(SpecError, match=r"nested more than 16 deep"):
            load_list(tmp_path / "l0.yaml")
        assert len(load_list(tmp_path / "l13.yaml")) == 1
    many = ", ".join(f"m{number}" for number in range(150))
    (tmp_path / "m.yaml").write_text(f"summary: s\ninclude: [{many}]\n")
    for number in range(150):
        (tmp_path / f"m{number}.yaml").write_text("summary: s\n")
    with pytest.raises(SpecError, match="more than 100 lists are included"):
        load_list(tmp_path / "m.yaml")


@pytest.mark.parametrize(
    "case",
    [
        "{case: 'linear[M=1:9999,K=1,N=1]', reason: r}",
        "{case: 'linear[M=1:5000,K=1,N=1]', reason: r, schemes: [q8csw, q8ta_q8csw], methods: [a, b]}",
    ],
)
def test_a_list_states_a_bounded_number_of_cases(tmp_path: Path, case: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("summary: s\ncases:\n" + f"  - {case}\n" * 500)
    stated = r"a\.yaml:[34]: .*1?0000 cases|20000 cases are given"
    with little_work(), pytest.raises(SpecError, match=stated):
        load_list(file)


@pytest.mark.parametrize("name", ["../a", "/etc/a", "sub/a", ".", "a.b"])
def test_a_list_includes_lists_of_its_folder_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "sub").mkdir()
    for path in ("a.yaml", "in/sub/a.yaml", "in/a.b.yaml"):
        (tmp_path / path).write_text("summary: s\n")
    (tmp_path / "in" / "mine.yaml").write_text(f"summary: s\ninclude: ['{name}']\n")
    with pytest.raises(SpecError, match=r":2: cannot include"):
        load_list(tmp_path / "in" / "mine.yaml")
