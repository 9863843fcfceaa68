"""A run as one page that stands alone: no script, no network, figures inside.

Text from the run, class names above all, can hold anything. It becomes `Html` through `html.text` alone, and the
page's own policy lets nothing run or be fetched.
"""

import base64
import dataclasses
import logging
import shlex
from collections.abc import Mapping, Sequence
from importlib.resources import files
from string import Template

from scipy.sparse import csr_array

from nofe import runs
from nofe.report import words
from nofe.report.against import PAIRS as PAIRS_OF_BASE
from nofe.report.against import (
    base_of,
    class_figures,
    difference_in_words,
    gain,
    most_changed,
    pair_figures,
    shares_of_mistakes,
)
from nofe.report.figures import Picture, draw_pictures
from nofe.report.html import Html, described, isolated, lines, table, text
from nofe.report.record import (
    ConfusedPair,
    Record,
    confused_inside_and_across,
    confused_pairs,
    pairs_of_specialty,
    read_record,
)
from nofe.report.text import TOP, network_name, place_in_words, specialties_that_stayed, that_learned_nothing
from nofe.runs import Run
from nofe.specialties import chance_of_pairs_together, rule_named
from nofe.suggestions import counted

PAIRS = 20  # listed overall

log = logging.getLogger("nofe")


def write_report(run: Run) -> None:
    """Write report.html, and its figures as files of their own, from the other files of a finished run."""
    record = read_record(run)
    pictures = draw_pictures(record)
    for picture in pictures:
        run.write(f"{runs.FIGURES}/{picture.name}.png", picture.png)
    # A name that is no valid text, as file systems allow, must not be in the way of the rest.
    run.write(runs.REPORT, page(record, pictures).encode("utf-8", "replace"))


def report_if_possible(run: Run) -> None:
    """`write_report` for a run that has just been trained: whatever goes wrong here, its results stand."""
    try:
        write_report(run)
    except Exception as error:
        log.warning(
            "%s: trained, but without its report (%s); write it with: nofe report %s", run.path, error, run.path
        )


def page(record: Record, pictures: Sequence[Picture]) -> Html:
    template = Template(files("nofe.report").joinpath("page.html").read_text("utf-8"))
    pairs = confused_pairs(record.confusion, record.specialties)
    return Html(
        template.substitute(
            title=text(f"{record.config['data']['name']}: {record.specialties.count} experts"),
            subtitle=text(f"{record.config['architecture']}, {record.environment['date']}, run {record.path}"),
            outcome=text(" ".join(filter(None, [words.outcome(record), that_learned_nothing(record.networks)]))),
            comparison=comparison(record),
            judged=text(words.judged(record)),
            stayed=stayed(record),
            trained=described(words.what_was_trained(record)),
            recipes=recipes(record),
            figures=lines(figure(picture) for picture in pictures if picture.name != "confusion"),
            confusions=text(confusions(record)),
            specialties=lines(specialty(record, pairs, k) for k in range(record.specialties.count)),
            confusion=lines(figure(picture) for picture in pictures if picture.name == "confusion"),
            pairs=most_confused(record, pairs),
            against=against_the_base(record),
            environment=environment(record),
            commands=commands(record),
        )
    )


def stayed(record: Record) -> Html:
    """A warning, where the specialties are not learned though their rule learns."""
    said = specialties_that_stayed(record.updates) if rule_named(record.config["specialties"]["rule"]).updates else None
    return Html("") if said is None else Html(f"<p>{text(f'{said[0].upper()}{said[1:]}.')}</p>")


def comparison(record: Record) -> Html:
    rows = [
        (
            text(network_name(stage, record.specialties.count)),
            text(f"{figures['accuracy']:.2%}"),
            text(f"{figures['parameters']:,}"),
            text(f"{figures['epochs']}"),
            text(f"{figures['seconds']:,.1f}"),
        )
        for stage, figures in record.networks.items()
    ]
    emphasised = list(record.networks).index("experts")
    top_5 = record.networks["experts"].get("top_5") if record.specialties.classes > TOP else None
    also = "" if top_5 is None else f"Among the experts' five most probable classes: {top_5:.2%}."
    head = ("network", "accuracy", "parameters", "epochs", "training (s)")
    return Html(f"{table(head, rows, numbers=range(1, 5), emphasised=emphasised)}\n<p>{text(also)}</p>")


def recipes(record: Record) -> Html:
    rows = [tuple(text(cell) for cell in row) for row in words.recipe_rows(record)]
    return table(words.RECIPE_HEAD, rows, numbers=(1, 2))


def figure(picture: Picture) -> Html:
    data = base64.b64encode(picture.png).decode()
    return Html(
        f'<figure><img src="data:image/png;base64,{data}" alt="{text(picture.alternative)}">'
        f"<figcaption>{text(picture.caption)}</figcaption></figure>"
    )


def confusions(record: Record) -> str:
    """How many of the mistakes stay inside the specialties, next to what a partition by lot would keep inside."""
    inside, across = confused_inside_and_across(record.confusion, record.specialties)
    images, wrong = record.test_images, inside + across
    said = (
        f"Of all {images:,} {record.judged_by}, {inside / images:.2%} are taken for another class of their specialty "
        f"and {across / images:.2%} for a class of another one."
    )
    if not wrong:
        return said
    chance = chance_of_pairs_together(record.specialties.sizes)
    return (
        f"{said} So {inside / wrong:.1%} of the mistakes stay inside a specialty; among pairs of classes "
        f"drawn at random it would be {chance:.1%}."
    )


def specialty(record: Record, pairs: list[ConfusedPair], k: int) -> Html:
    figures = record.by_specialty[k]
    names = Html(", ".join(in_list(record, c) for c in record.specialties.members(k).tolist()))
    numbers = described(
        [
            ("classes", f"{figures['classes']}"),
            (record.judged_by, f"{figures['images']:,}"),
            ("accuracy", f"{figures['accuracy']:.2%}"),
            ("confused inside", f"{figures['confused_inside']:.2%}"),
            ("confused across", f"{figures['confused_across']:.2%}"),
        ]
    )
    inside, across = pairs_of_specialty(pairs, record.specialties, k)
    return Html(
        f'<article class="card" id="expert-{k}"><h3>Expert {k}</h3>\n<p>{names}</p>\n{numbers}\n'
        f"<p>Most confused inside: {pair_in_words(record, inside)}.</p>\n"
        f"<p>Most confused across: {pair_in_words(record, across)}.</p></article>"
    )


def pair_in_words(record: Record, pair: ConfusedPair | None) -> Html:
    if pair is None:
        return Html("none")
    first, second = in_list(record, pair.first), in_list(record, pair.second)
    return Html(f"{first} and {second} ({pair.confused} of {pair.images} images)")


def most_confused(record: Record, pairs: list[ConfusedPair]) -> Html:
    if not pairs:
        return Html("<p>No image is taken for another class.</p>")
    of = record.specialties.specialty_of_class
    rows = []
    for rank, pair in enumerate(pairs[:PAIRS], start=1):
        place = place_in_words((of[pair.first], of[pair.second]))
        rows.append(
            (
                text(f"{rank}"),
                class_name(record, pair.first),
                class_name(record, pair.second),
                text(f"{pair.confused} of {pair.images}"),
                text(f"{pair.first_as_second}"),
                text(f"{pair.second_as_first}"),
                text(place),
            )
        )
    head = ("", "class A", "class B", "images confused", "A taken for B", "B taken for A", "experts")
    shown = pairs[:PAIRS]
    said = f"{counted(len(shown), 'pair')}, {sum(pair.inside for pair in shown)} of them inside a specialty."
    return Html(f"<p>{text(said)}</p>\n{table(head, rows, numbers=(0, 3, 4, 5))}")


def against_the_base(record: Record) -> Html:
    """The section that says why the experts are better than the base, or worse; none for a run without a base."""
    base = base_of(record.networks)
    if base is None:
        return Html("")
    title = "<section>\n<h2>Against the base</h2>\n"
    if base not in record.base_confusions:
        said = "This run did not keep what its base predicts; the figures are those of:"
        command = f"nofe evaluate {shlex.quote(str(record.path))}"
        return Html(f"{title}<p>{text(said)}</p>\n<pre>{text(command)}</pre>\n</section>")
    confusions = {base: record.base_confusions[base], "experts": record.confusion}
    shares = {stage: shares_of_mistakes(each, record.specialties) for stage, each in confusions.items()}
    said = difference_in_words(shares[base], shares["experts"], record.test_images, record.alone[base])
    parts = [Html(f"<p>{text(said)}</p>"), mistakes(record, shares), changed_classes(record, confusions, base)]
    return Html(f"{title}{lines(parts)}\n{pairs_of_the_base(record, confusions, base)}\n</section>")


def mistakes(record: Record, shares: Mapping[str, Mapping[str, float]]) -> Html:
    rows = [
        (
            text(network_name(stage, record.specialties.count)),
            text(f"{record.networks[stage]['accuracy']:.2%}"),
            text(f"{each['confused_inside']:.2%}"),
            text(f"{each['confused_across']:.2%}"),
        )
        for stage, each in shares.items()
    ]
    head = ("network", "accuracy", "confused inside", "confused across")
    return table(head, rows, numbers=range(1, 4), emphasised=len(rows) - 1)


def changed_classes(record: Record, confusions: Mapping[str, csr_array], base: str) -> Html:
    figures = class_figures(confusions, record.specialties, record.class_names)
    gained, lost = most_changed([dataclasses.asdict(each) for each in figures], base)
    if not (gained or lost):
        return Html("<p>Every class is recognised as often by both.</p>")
    rows = [
        (
            isolated(each["name"]),
            text(f"{each['specialty']}"),
            text(f"{each['images']:,}"),
            text(f"{each['accuracy'][base]:.2%}"),
            text(f"{each['accuracy']['experts']:.2%}"),
            text(f"{100 * gain(each, base):+.2f}"),
        )
        for each in (*gained, *reversed(lost))
    ]
    head = ("class", "expert", record.judged_by, "base", "experts", "points")
    said = "Of all classes, those that gained and lost most:"
    return Html(f"<p>{text(said)}</p>\n{table(head, rows, numbers=range(1, 6))}")


def pairs_of_the_base(record: Record, confusions: Mapping[str, csr_array], base: str) -> Html:
    """Which of the base's confusions the experts resolve."""
    rows = [
        (
            isolated(pair.names[0]),
            isolated(pair.names[1]),
            text(f"{pair.confused[base]} of {pair.images}"),
            text(f"{pair.confused['experts']}"),
            text(place_in_words(pair.specialties)),
        )
        for pair in pair_figures(confusions, record.specialties, record.class_names, PAIRS_OF_BASE)
    ]
    if not rows:
        return Html("<p>The base takes no image for another class.</p>")
    head = ("class A", "class B", "base confuses", "experts confuse", "experts")
    said = "The pairs that the base confuses most, beside what the experts confuse of them:"
    return Html(f"<p>{text(said)}</p>\n{table(head, rows, numbers=(2, 3))}")


def environment(record: Record) -> Html:
    env = record.environment
    versions = ", ".join(f"{name} {number}" for name, number in env["versions"].items() if number is not None)
    return described(
        [
            ("Device", f"{env['device']}; {env['precision']}, {counted(env['threads'], 'thread')}"),
            ("Platform", f"{env['platform']}, Python {env['python']}, CUDA {env['cuda'] or 'none'}"),
            ("Versions", versions),
            ("Date", env["date"]),
            ("Commit", env["commit"] or "unknown"),
        ]
    )


def commands(record: Record) -> Html:
    blocks = [f"<p>{text(purpose)}:</p>\n<pre>{text(line)}</pre>" for purpose, line in words.commands(record)]
    again = text(words.with_another_seed(record))
    blocks.append(
        f"<details><summary>Train again with another seed, all else equal</summary><pre>{again}</pre></details>"
    )
    return lines(map(Html, blocks))


def class_name(record: Record, c: int) -> Html:
    return isolated(record.class_names[c])


def in_list(record: Record, c: int) -> Html:
    """Quoted where it has a comma; a browser shows what a terminal cannot."""
    mark = text('"') if "," in record.class_names[c] else ""
    return Html(f"{mark}{class_name(record, c)}{mark}")
