"""Does the site's search find what people ask? ``make docs`` runs ``asked.py out/site``, with Sphinx' packages.

It ranks the built site's index as its pages do (Sphinx' searchtools.js with scorer.js beside this file), and fails
where the page of a question in questions.toml is not among the first three results. ``-v`` shows them all.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from snowballstemmer import stemmer
from sphinx.search.en import ENGLISH_STOPWORDS

HERE = Path(__file__).parent
STEMMED = stemmer("english").stemWord


def words(text: str) -> list[str]:
    """What the index knows of a text: stems, without stop words."""
    return [STEMMED(word) for word in re.findall(r"\w+", text.lower()) if word not in ENGLISH_STOPWORDS]


def found(index: dict[str, Any], question: str) -> list[str]:
    """The pages of the results, best first."""
    titles, asked = index["titles"], list(dict.fromkeys(words(question)))

    def has(table: str, word: str) -> set[int]:
        files = index[table].get(word, [])
        return {files} if isinstance(files, int) else set(files)

    results = []  # the score, negative; the title; the page
    whole = question.lower().strip()
    for heading, places in index["alltitles"].items():
        if whole in heading.lower() and len(whole) >= len(heading) / 2:
            for at, _anchor in places:
                score = 100 + round(15 * len(whole) / len(heading)) + (titles[at] == heading)
                results.append((-score, heading.lower(), index["docnames"][at]))
    for at, title in enumerate(titles):
        worth = [
            20 if word in words(title) and at in has("titleterms", word)
            else 8 if at in has("titleterms", word)
            else 2 if at in has("terms", word)
            else 0
            for word in asked
        ]  # fmt: skip
        if worth and all(worth):
            results.append((-sum(worth), title.lower(), index["docnames"][at]))
    return list(dict.fromkeys(page for _, _, page in sorted(results)))


def main(site: Path) -> int:
    """1 if a question does not find its page, else 0."""
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    missed = 0
    for question, page in tomllib.loads((HERE / "questions.toml").read_text(encoding="utf-8")).items():
        pages = [name.removeprefix("docs/") for name in found(index, question)[:3]]
        if page not in pages:
            missed += 1
            print(f"{question!r}: {page} is not among {', '.join(pages) or 'nothing'}", file=sys.stderr)
        elif "-v" in sys.argv:
            print(f"{question!r}: {page}, {pages.index(page) + 1} of {', '.join(pages)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
