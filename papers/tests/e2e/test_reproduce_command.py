"""`privet reproduce` as a user types it: quick runs of each paper, what they must show, and mistakes."""

import json

import pytest

from typed import answer, refused, run


def test_list_shows_papers_and_tables():
    result = run("reproduce --list")
    assert result.exit_code == 0
    for words in ("bu2019:table1", "du2021:table3", "proactive2021:closed-form", "7 train", "not run"):
        assert words in result.stdout
    papers = answer("reproduce --list")["papers"]
    assert papers[0]["tables"]["table1"]["rows"][0] == {"name": "sigma-1.3", "kind": "trains"}


@pytest.mark.slow
def test_bu_quick_private_training_learns_less_than_plain_training(tmp_path):
    line = f"reproduce bu2019:table2 --quick --out {tmp_path}"
    rows = {row["key"].rpartition(":")[2]: row for row in answer(line)["rows"]}
    private, plain = rows["private"], rows["non-private"]
    assert 30 < private["ours"]["accuracy"]["mean"] < plain["ours"]["accuracy"]["mean"]
    assert private["steps"] == 100
    assert plain["certified"] is None
    assert rows["knn"]["ours"]["accuracy"] is None
    again = run(line)
    assert again.stderr == ""  # nothing is run
    for words in ("reproducible, not private", "only directions compare", "<= ", "not run: a baseline of the paper"):
        assert words in again.stdout


@pytest.mark.slow
def test_bu_quick_reproduces_epsilons_and_noise_buys_privacy(tmp_path):
    line = f"reproduce bu2019:table1 --quick --steps 5 --rows sigma-1.3,sigma-0.5 --out {tmp_path}"
    found = answer(line)
    loud, soft = found["rows"]
    assert "only directions compare" in found["notes"][0]
    for row in (loud, soft):
        for name in ("gdp mu", "gdp epsilon", "moments epsilon"):
            assert row["ours"][name]["mean"] == pytest.approx(row["published"][name], abs=0.01)
        assert row["certified"][0] <= row["certified"][1]
        assert row["label"] == "approximate"
        assert row["notes"][-1] == "epsilon and mu, but the certified one: of the paper's steps, not of this run"
    assert loud["certified"][1] < soft["certified"][0]


@pytest.mark.slow
def test_du_quick_keeps_each_budget(tmp_path):
    rows = "mnist-0.4-constant,mnist-1.2-dynamic,mnist-0.4-noise-decay-*"
    result = run(f"reproduce du2021:table1 --quick --steps 5 --rows {rows} --out {tmp_path} --json")
    assert result.stderr.count("step 5/5  ") == 4  # in a log, a line for each evaluation
    found = json.loads(result.stdout)["rows"]
    zcdp, tcdp, constant, dynamic = found
    for row, budget in ((constant, 0.4), (dynamic, 1.2)):
        assert 0.99 * budget <= row["certified"][0] <= row["certified"][1] <= budget
        assert row["steps"] == 5
    assert 0.39 < zcdp["certified"][1] <= 0.4
    assert tcdp["label"] == "claimed"
    assert tcdp["claimed"] == pytest.approx(0.4)
    assert tcdp["certified"][1] < 0.4  # its formula asks for more noise than is needed


@pytest.mark.slow
def test_auto_quick_proves_nothing_of_what_is_published_and_less_noise_learns_more_where_it_is_sound(tmp_path):
    rows = "s-1.4929,s-1.4929-sound,s-0.5517-sound"
    published, loud, soft = answer(f"reproduce auto2023:table14 --quick --rows {rows} --out {tmp_path}")["rows"]
    assert published["certified"] is None
    assert published["ours"]["epsilon by Table 8"]["label"] == "claimed"
    assert 0.99 < loud["certified"][0] <= loud["certified"][1] <= 1
    assert 9.9 < soft["certified"][0] <= soft["certified"][1] <= 10
    assert loud["ours"]["accuracy"]["mean"] < soft["ours"]["accuracy"]["mean"]


@pytest.mark.slow
def test_wei_quick_reproduces_readings_and_the_noise_that_is_missing_as_published_buys_accuracy(tmp_path):
    rows = "mnist-dp-baseline,mnist-dp-baseline-sound"
    published, sound = answer(f"reproduce wei2021:table5 --quick --rows {rows} --out {tmp_path}")["rows"]
    assert published["certified"] is None
    assert sound["certified"][0] <= sound["certified"][1] < 0.6009  # that of 10,000 steps
    names = [f"{name} epsilon" for name in ("basic-wei", "advanced-wei", "optimal-wei", "zcdp", "moments")]
    assert [published["ours"][name]["label"] for name in names] == ["claimed"] * 5
    for name in names:
        assert published["ours"][name]["mean"] == pytest.approx(published["published"][name], rel=2e-3)
    assert sound["ours"]["accuracy"]["mean"] < published["ours"]["accuracy"]["mean"]


@pytest.mark.slow
def test_proactive_is_computed_and_its_closed_form_fails_for_large_batches(tmp_path):
    found = answer(f"reproduce proactive2021:closed-form --out {tmp_path}")["rows"]
    proven = {row["key"]: row["ours"]["pld epsilon"]["mean"] for row in found}
    assert proven["proactive2021:closed-form:epsilon-2-n-60000-batch-256-rounds-60000"] < 2
    assert proven["proactive2021:closed-form:epsilon-2-n-60000-batch-600-rounds-60000"] > 2


def test_a_figure_is_drawn_and_the_page_has_the_computed_rows(tmp_path):
    pytest.importorskip("matplotlib")
    out, png, csv = tmp_path / "r", tmp_path / "a.png", tmp_path / "a.csv"
    result = run(f"reproduce bu2019:fig5 --out {out} --plot {png}")
    assert result.exit_code == 0, result.output
    assert png.read_bytes()[:4] == b"\x89PNG"
    run(f"reproduce bu2019:fig5 --out {out} --show --plot {csv}")
    lines = csv.read_text().splitlines()
    assert lines[0] == 'panel,row,label,type I error,"type II error, at least"'
    assert any(",clt,approximate," in line for line in lines)
    assert any(",tight,certified," in line for line in lines)
    result = run(f"reproduce --page {tmp_path / 'page.md'} --out {out}")
    assert result.exit_code == 0, result.output
    assert "`privet reproduce bu2019:fig5 --rows clt`" in (tmp_path / "page.md").read_text()


def test_show_runs_nothing(tmp_path):
    result = run(f"reproduce bu2019:table1 --show --out {tmp_path / 'none'}")
    assert result.exit_code == 0
    assert "95 / –" in result.stdout
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("reproduce", "PAPER is missing"),
        ("reproduce bu2091", "Did you mean 'bu2019'?"),
        ("reproduce bu2019:table9", "table='table9' must be one of"),
        ("reproduce bu2019:table1 --rows nothing-*", "matches no row"),
        ("reproduce bu2019:table1 --rows sigma-1.3,zzz", "--rows='zzz' matches no row"),
        ("reproduce bu2019:", "table='' must be one of"),
        ("reproduce --list --page page.md", "--list prints what there is"),
        ("reproduce bu2019 --plot a.png", "--plot draws one table or figure"),
        ("reproduce bu2019:table1 --plot a.gif", "must end in .png"),
        ("reproduce bu2019:table1 --seeds 0", "--seeds"),
        ("reproduce bu2019:table1 --quick --full", "--quick and --full are both given"),
        ("reproduce bu2019:table1 --page nowhere/page.md", "--page='nowhere/page.md' lies in a directory"),
        ("reproduce --page page.md --out nowhere", "has no full result"),
        ("reproduce bu2019:fig5 --out /dev/null/x", "cannot be made"),
    ],
)
def test_mistakes_are_one_line(line, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(run(line), words)
    assert not list(tmp_path.iterdir())


def test_nothing_to_draw_is_said_behind_the_table(tmp_path):
    result = run(f"reproduce bu2019:fig4 --show --out {tmp_path} --plot {tmp_path / 'a.csv'}")
    assert result.exit_code == 2
    assert "nothing to draw" in result.stderr
    assert result.stdout.startswith("bu2019:fig4")


def test_missing_data_is_told_and_the_exit_code_is_not_zero(tmp_path, monkeypatch):
    for name in ("PRIVET_DATA", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "nothing"))
    result = run(f"reproduce du2021:table3 --full --rows names-non-private --out {tmp_path / 'r'}")  # fetches nothing
    assert result.exit_code == 1
    assert "du2021:table3:names-non-private full, seed 0: not run: " in result.stderr
    assert "80.14 / –" in result.stdout
