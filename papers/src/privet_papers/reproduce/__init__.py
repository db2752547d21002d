"""From a row of a paper to a result, and from results to tables, figures and the page."""
