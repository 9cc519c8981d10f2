//! A line of Rust, split into code and comment, without the text of literals.
//!
//! The rules ask small questions ("is there a `dbg!` here?") and must not be fooled by a string or
//! a comment that speaks of one. A parser would answer more than is asked, and would drop the
//! comments in which requirements are claimed; so this is the lexical grammar of literals and
//! comments, and nothing else.

/// A source line, split into code and comment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// The code, with string and character literals emptied.
    pub code: String,
    /// The comment, slashes included.
    pub comment: String,
}

impl Line {
    /// Whether it holds nothing at all.
    pub fn is_blank(&self) -> bool {
        self.code.trim().is_empty() && self.comment.trim().is_empty()
    }
}

/// Where the reader is.
#[derive(Clone, Copy)]
enum State {
    Code,
    LineComment,
    BlockComment {
        depth: usize,
    },
    /// A string; a raw one has no escapes and ends with so many `#`.
    Text {
        raw: Option<usize>,
    },
}

/// Splits a file into lines, with code and comments apart.
pub fn lines(text: &str) -> Vec<Line> {
    let mut reader = Reader { state: State::Code, lines: vec![Line::default()] };
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let used = if first == '\n' {
            reader.end_line();
            1
        } else {
            reader.step(rest, first)
        };
        rest = &rest[used..];
    }
    if reader.lines.last().is_some_and(Line::is_blank) {
        reader.lines.pop();
    }
    reader.lines
}

struct Reader {
    state: State,
    lines: Vec<Line>,
}

impl Reader {
    fn line(&mut self) -> &mut Line {
        self.lines.last_mut().expect("there is always a line being read")
    }

    fn end_line(&mut self) {
        if matches!(self.state, State::LineComment) {
            self.state = State::Code;
        }
        self.lines.push(Line::default());
    }

    /// Takes what `rest` begins with, which is not the end of a line; says how many bytes it was.
    fn step(&mut self, rest: &str, first: char) -> usize {
        match self.state {
            State::Code => self.code(rest, first),
            State::LineComment => {
                self.line().comment.push(first);
                first.len_utf8()
            }
            State::BlockComment { depth } => self.block_comment(rest, first, depth),
            State::Text { raw } => self.literal(rest, first, raw),
        }
    }

    fn code(&mut self, rest: &str, first: char) -> usize {
        if rest.starts_with("//") {
            self.state = State::LineComment;
            return 0;
        }
        if rest.starts_with("/*") {
            self.state = State::BlockComment { depth: 0 };
            return 0;
        }
        let used = match first {
            '"' => {
                self.state = State::Text { raw: None };
                1
            }
            'r' | 'b' | 'c' if !self.in_word() => match raw_string(rest) {
                Some((hashes, length)) => {
                    self.state = State::Text { raw: Some(hashes) };
                    length
                }
                None => 1,
            },
            '\'' => {
                let length = character(rest);
                self.line().code.push_str(if length == 1 { "'" } else { "''" });
                return length;
            }
            other => other.len_utf8(),
        };
        self.line().code.push_str(&rest[..used]);
        used
    }

    /// Whether the next character continues an identifier.
    fn in_word(&mut self) -> bool {
        self.line().code.ends_with(|c: char| c.is_alphanumeric() || c == '_')
    }

    fn block_comment(&mut self, rest: &str, first: char, depth: usize) -> usize {
        let (depth, used) = if rest.starts_with("/*") {
            (depth + 1, 2)
        } else if rest.starts_with("*/") {
            (depth - 1, 2)
        } else {
            (depth, first.len_utf8())
        };
        self.line().comment.push_str(&rest[..used]);
        self.state = if depth == 0 { State::Code } else { State::BlockComment { depth } };
        used
    }

    fn literal(&mut self, rest: &str, first: char, raw: Option<usize>) -> usize {
        match raw {
            // An escaped end of line still ends the line.
            None if first == '\\' && !rest.starts_with("\\\n") => {
                1 + rest[1..].chars().next().map_or(0, char::len_utf8)
            }
            None if first == '"' => self.end_literal(1),
            Some(hashes) if first == '"' && ends_raw(rest, hashes) => self.end_literal(1 + hashes),
            _ => first.len_utf8(),
        }
    }

    fn end_literal(&mut self, length: usize) -> usize {
        self.line().code.push('"');
        self.state = State::Code;
        length
    }
}

/// If a raw string begins here, how many `#` it has and the length up to its quote.
fn raw_string(rest: &str) -> Option<(usize, usize)> {
    let prefix = ["br", "cr", "r"].into_iter().find(|prefix| rest.starts_with(prefix))?;
    let after = &rest[prefix.len()..];
    let hashes = after.len() - after.trim_start_matches('#').len();
    after[hashes..].starts_with('"').then_some((hashes, prefix.len() + hashes + 1))
}

fn ends_raw(rest: &str, hashes: usize) -> bool {
    rest[1..].len() >= hashes && rest[1..].bytes().take(hashes).all(|byte| byte == b'#')
}

/// The length of the character literal that begins here; 1 if it is the quote of a lifetime.
fn character(rest: &str) -> usize {
    let mut inside = rest[1..].char_indices();
    match inside.next() {
        Some((_, '\\')) => rest.get(3..).and_then(|rest| rest.find('\'')).map_or(1, |end| end + 4),
        Some(_) => match inside.next() {
            Some((end, '\'')) => end + 2,
            _ => 1,
        },
        None => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> Vec<String> {
        lines(text).into_iter().map(|line| line.code).collect()
    }

    #[test]
    fn comments_are_not_code() {
        let all = lines("a // b \"c\"\n/* d /* e\n*/ f */ g\n//! h");
        let split: Vec<_> = all.iter().map(|l| (l.code.as_str(), l.comment.as_str())).collect();
        let expected = [("a ", "// b \"c\""), ("", "/* d /* e"), (" g", "*/ f */"), ("", "//! h")];
        assert_eq!(split, expected);
    }

    #[test]
    fn literals_are_emptied() {
        assert_eq!(code(r#"f("a // \" b", 'c', '\'', '"') // x"#), [r#"f("", '', '', '') "#]);
        assert_eq!(code("r#\"a \" // b\"# + br\"\\\" c"), ["r#\"\" + br\"\" c"]);
        assert_eq!(code("var\"a\""), ["var\"\""]);
    }

    #[test]
    fn a_string_over_lines_keeps_the_count_of_lines() {
        assert_eq!(code("x(\"a\n  // b\n\") y"), ["x(\"", "", "\") y"]);
        assert_eq!(code("\"a \\\n b\" c"), ["\"", "\" c"]);
    }

    #[test]
    fn lifetimes_are_code() {
        assert_eq!(
            code("fn f<'a>(x: &'a str) -> &'static str"),
            ["fn f<'a>(x: &'a str) -> &'static str"]
        );
        assert_eq!(code(r"['\u{7f}', '\\', 'é']"), ["['', '', '']"]);
    }
}
