//! The words of a filter, each with its offset.

/// A word, a parenthesis or an operator, and its byte offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub(super) text: &'a str,
    pub(super) at: usize,
}

/// Splits a text. Operators of C stand for the words.
pub(super) fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut all = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.trim_start().chars().next() {
        rest = rest.trim_start();
        let at = text.len() - rest.len();
        let operator = ["&&", "||"].into_iter().find(|operator| rest.starts_with(operator));
        let len = match (operator, first) {
            (Some(operator), _) => operator.len(),
            (None, '(' | ')' | '!') => 1,
            _ => {
                let is_end = |one: char| one.is_whitespace() || "()!&|".contains(one);
                // A lone & or | is a word of its own, which is refused.
                rest.find(is_end).unwrap_or(rest.len()).max(first.len_utf8())
            }
        };
        all.push(Token { text: &rest[..len], at });
        rest = &rest[len..];
    }
    all
}
