//! Reports and answers in every version, and whom the link is joined for.
