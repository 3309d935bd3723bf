/* What a page is worth to a question: for each word 20 where its title has it, 8 where a heading has it, 2 where its text
   has it. Sphinx itself takes the best word alone. A heading that has the whole question comes first. docs/site/asked.py
   holds what people ask against this. */
var Scorer = {
  objNameMatch: 11, objPartialMatch: 6, objPrio: {}, objPrioDefault: 0, title: 15, partialTitle: 7, term: 5, partialTerm: 2,
  score: ([page, title, , , score, , kind]) => {
    if (kind !== "text") return score + 100;
    const index = Search._index, at = index.docnames.indexOf(page), stemmer = new Stemmer();
    const own = new Set(splitQuery(title).map((word) => stemmer.stemWord(word.toLowerCase())));
    const has = (files) => [].concat(files ?? []).includes(at);
    const asked = Search._parseQuery(new URLSearchParams(window.location.search).get("q"))[1];
    const worth = (word) => (own.has(word) ? 20 : has(index.titleterms[word]) ? 8 : has(index.terms[word]) ? 2 : 0);
    return [...asked].reduce((sum, word) => sum + worth(word), 0);
  },
};
