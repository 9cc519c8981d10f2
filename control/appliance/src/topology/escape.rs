//! Makes names of nodes, which come from other machines and from files, safe for SVG, for HTML and
//! for a terminal.

/// Escapes text for an element or for a quoted attribute.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' => escaped.push('\n'),
            c => escaped.push(printed(c)),
        }
    }
    escaped
}

/// Makes text safe for one line of a terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(printed).collect()
}

/// Replaces control characters, which XML forbids and terminals obey, and direction marks, which
/// reorder the text after them.
fn printed(c: char) -> char {
    let is_direction = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}')
        || matches!(c, '\u{2066}'..='\u{2069}');
    let is_none = matches!(c, '\u{2028}' | '\u{2029}' | '\u{fffe}' | '\u{ffff}');
    if c.is_control() || is_direction || is_none { '\u{fffd}' } else { c }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_become_an_element_or_an_attribute() {
        let name = "<script>alert(\"1\" & '2')</script>";
        let escaped = "&lt;script&gt;alert(&quot;1&quot; &amp; &#39;2&#39;)&lt;/script&gt;";
        assert_eq!(escape(name), escaped);
        assert_eq!(escape("]]>\u{0}\u{b}\u{fffe}é計"), "]]&gt;\u{fffd}\u{fffd}\u{fffd}é計");
    }

    #[test]
    fn a_name_cannot_control_a_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\nc\u{202e}"), "a\u{fffd}[2Jb\u{fffd}c\u{fffd}");
        assert_eq!(printable("node 1 é"), "node 1 é");
    }
}
