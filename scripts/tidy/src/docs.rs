//! Rules about documentation: a crate lists its modules, and a doc comment says more than the name
//! of its item.
//!
//! "The address." above `address` costs a line and adds nothing. A comment of one line all of
//! whose words stand in the line of code below, articles and question words aside, has to say
//! something else, or the item needs no comment.

use crate::rust::Line;
use crate::source::before_tests;
use crate::{Finding, Tree};

/// How many such comments are left: none may be added.
const LEFT: usize = 116;

/// Words that say nothing by themselves.
const FILLERS: [&str; 32] = [
    "a", "an", "and", "are", "as", "at", "be", "by", "for", "has", "have", "in", "is", "it", "its",
    "of", "on", "one", "or", "that", "the", "this", "those", "to", "was", "what", "when", "which",
    "who", "whose", "why", "with",
];

/// No more comments merely repeat the names below them than `LEFT`.
pub fn say_more_than_names(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.rust().filter(|file| !file.path.contains("/tests")) {
        let lines: Vec<_> = repetitions(before_tests(&file.rust)).collect();
        if !lines.is_empty() {
            found.push((&file.path, lines));
        }
    }
    let count: usize = found.iter().map(|(_, lines)| lines.len()).sum();
    if count <= LEFT {
        return Vec::new();
    }
    let finding = |(path, lines): (&String, Vec<usize>)| {
        let what = "doc comments only repeat their items";
        let message = format!("{what} in lines {lines:?}: {count} in all, {LEFT} may");
        Finding::new(path, lines[0], message)
    };
    found.into_iter().map(finding).collect()
}

/// The `//!` of each crate names every module at its root, so that a reader has a list to go by.
pub fn crates_list_their_modules(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust().filter(|file| file.path.ends_with("src/lib.rs")) {
        let head: Vec<_> = file.text.lines().map_while(|line| line.strip_prefix("//!")).collect();
        let head = head.join("\n");
        let names: Vec<_> = head.split('`').map(|name| name.trim_start_matches("mod@")).collect();
        for (i, line) in before_tests(&file.rust).iter().enumerate() {
            let line = line.code.trim();
            let module = line.trim_start_matches("pub ").strip_prefix("mod ");
            let Some(name) = module.and_then(|name| name.strip_suffix(';')) else { continue };
            if !names.contains(&name) {
                let message = format!("the crate's documentation does not name `{name}`");
                findings.push(Finding::new(&file.path, i + 1, message));
            }
        }
    }
    findings
}

/// The numbers of the lines whose comments repeat the code below them.
fn repetitions(lines: &[Line]) -> impl Iterator<Item = usize> + '_ {
    let is_doc = |line: &Line| line.code.trim().is_empty() && line.comment.starts_with("///");
    lines.iter().enumerate().filter_map(move |(i, line)| {
        let is_alone = is_doc(line) && !lines[..i].last().is_some_and(is_doc);
        let item = lines[i + 1..].iter().find(|line| !line.code.trim().starts_with("#["))?;
        (is_alone && !is_doc(item) && repeats(&line.comment, &item.code)).then_some(i + 1)
    })
}

/// Whether every word of a comment but fillers is a word of the code.
fn repeats(comment: &str, code: &str) -> bool {
    let names = words(code);
    words(comment).iter().all(|word| FILLERS.contains(&word.as_str()) || names.contains(word))
}

/// The words of a text in lower case, without the `s` of a plural; those inside of identifiers too.
fn words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for c in text.chars() {
        if !c.is_alphanumeric() || (c.is_uppercase() && was_lower) {
            words.push(String::new());
        }
        was_lower = c.is_lowercase();
        if c.is_alphanumeric() {
            words.last_mut().into_iter().for_each(|word| word.extend(c.to_lowercase()));
        }
    }
    words.retain(|word| !word.is_empty());
    let singular = |word: String| match word.strip_suffix('s') {
        Some(stem) if stem.len() > 2 => stem.to_owned(),
        _ => word,
    };
    words.into_iter().map(singular).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_that_only_repeats_its_item_is_found() {
        for text in [
            "/// The address.\npub address: SocketAddr,",
            "/// What it is.\n#[must_use]\npub fn kind(&self) -> Kind {",
            "/// The links of a port.\nfn port_links() {}",
        ] {
            assert_eq!(repetitions(&crate::rust::lines(text)).collect::<Vec<_>>(), [1], "{text}");
        }
        for text in [
            "/// The address of the peer.\npub address: SocketAddr,",
            "/// The address.\n///\n/// It never changes.\npub address: SocketAddr,",
            "//! The crate.\nuse crate::a;",
            "// The address.\naddress: SocketAddr,",
        ] {
            assert_eq!(repetitions(&crate::rust::lines(text)).count(), 0, "{text}");
        }
    }

    #[test]
    fn a_module_that_its_crate_does_not_name_is_found() {
        let text = "//! [`mod@a`], then `b`.\npub mod a;\nmod b;\npub mod c;\n\n\
            #[cfg(test)]\nmod tests {}\n";
        let found = crates_list_their_modules(&Tree::of(&[("x/src/lib.rs", text)]));
        let found: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found, ["x/src/lib.rs:4: the crate's documentation does not name `c`"]);
    }
}
