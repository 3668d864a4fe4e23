"""What mkdocs adds to pages (hooks in mkdocs.yml): a chart of the benches, and tables that a phone
can show.

``<!-- floors -->`` on a page becomes a chart of the newest table in experiments/bench/tables/: a
dot for each call, the time that it takes over that of its floor, by bench. In tables code may break
behind a slash, and each cell of a wide table knows the name of its column, which a narrow screen
shows before the cell.
"""

import csv
import html
import itertools
import math
import re
from pathlib import Path

TABLES = Path(__file__).parent.parent / "experiments/bench/tables"
LEFT, WIDTH, ROW, TOP = 380, 440, 15, 24  # pixels
LEAST, MOST = 0.1, 1e5  # times the floor
WIDE = 5  # columns


def newest():
    """The rows of floors of the table that was measured last."""
    tables = [list(csv.DictReader(path.open())) for path in TABLES.glob("*.csv")]
    table = max(tables, key=lambda rows: max(row["date"] for row in rows))
    return [row for row in table if row["kind"] == "floor" and row["times"]]


def place(times):
    share = math.log(min(max(times, LEAST), MOST) / LEAST) / math.log(MOST / LEAST)
    return round(LEFT + WIDTH * share, 1)


def floors(rows):
    """The chart, an SVG in the text's own colour."""
    parts, at = [], TOP
    for bench, each in itertools.groupby(rows, key=lambda row: row["bench"]):
        parts.append(f'<text x="0" y="{at + 11}" font-weight="bold">{html.escape(bench)}</text>')
        at += ROW
        for row in each:
            x, y = place(float(row["times"])), at + 7
            said = html.escape(f"{row['case']}: {float(row['times']):.3g} times {row['against']}")
            case = row["case"] if len(row["case"]) < 60 else row["case"][:57] + "..."
            parts.append(
                f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{html.escape(case)}</text>'
                f'<path d="M{place(1)} {y}H{x}" stroke="#1565c0" stroke-width="1.5"/>'
                f'<circle cx="{x}" cy="{y}" r="4" fill="#1565c0"><title>{said}</title></circle>'
            )
            at += ROW
    ticks = (10.0**power for power in range(round(math.log10(LEAST)), round(math.log10(MOST)) + 1))
    for tick in ticks:
        x = place(tick)
        parts.insert(
            0,
            f'<path d="M{x} {TOP}V{at}" stroke="currentColor" opacity="{0.7 if tick == 1 else 0.15}"/>',
        )
        parts.append(f'<text x="{x}" y="14" text-anchor="middle">{tick:g}</text>')
    return (
        f'<div class="output"><svg class="floors" viewBox="0 0 {LEFT + WIDTH + 20} {at + 6}" role="img" font-size="11" '
        f'fill="currentColor" aria-label="Times of calls over their floors">{"".join(parts)}</svg></div>'
    )


def on_page_markdown(markdown, page, config, files):
    """mkdocs: the chart where a page asks for it."""
    return (
        markdown.replace("<!-- floors -->", floors(newest()))
        if "<!-- floors -->" in markdown
        else markdown
    )


def labelled(table):
    """A table whose code may break behind slashes; the cells of a wide one name their columns."""
    text = re.sub(
        r"(?<=<code>)[^<]*/[^<]*", lambda code: re.sub("(/|::|_)", r"\1<wbr>", code[0]), table[0]
    )
    names = [re.sub("<.*?>", "", name) for name in re.findall(r"<th[^>]*>(.*?)</th>", text, re.S)]
    if len(names) < WIDE:
        return text
    cells = itertools.cycle(names)
    text = re.sub(r"<td", lambda _: f'<td data-head="{html.escape(next(cells))}"', text)
    return text.replace("<table>", '<table data-wide="">', 1)


def on_page_content(content, page, config, files):
    """mkdocs: every table of Markdown."""
    return re.sub(r"<table>.*?</table>", labelled, content, flags=re.S)
