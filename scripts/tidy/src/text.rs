//! Rules about any text: columns, trailing space, words that do not belong here, usage comments.

use crate::tree::SourceFile;
use crate::{Finding, Tree};

/// The widest line of Rust or of a script.
const COLUMNS_MAX: usize = 100;

/// Lines of Rust and scripts fit in 100 columns, unless a URL makes them longer.
pub fn columns(tree: &Tree) -> Vec<Finding> {
    lines_that(
        tree,
        |file| file.is_rust() || file.is_script(),
        |line| {
            let count = line.chars().count();
            (count > COLUMNS_MAX && !line.contains("://"))
                .then(|| format!("{count} columns; at most {COLUMNS_MAX} are read with ease"))
        },
    )
}

/// No line ends in white space.
pub fn trailing_space(tree: &Tree) -> Vec<Finding> {
    lines_that(tree, is_written_by_hand, |line| {
        (line.trim_end() != line).then(|| "white space at the end of the line".into())
    })
}

/// The project speaks of itself only: not of the place or the tools with which it was written, and
/// not of the hosts that packages happen to come from.
pub fn banned_words(tree: &Tree) -> Vec<Finding> {
    let words = banned();
    lines_that(
        tree,
        |file| !file.path.ends_with("Cargo.lock"),
        |line| {
            let line = line.to_lowercase();
            let found = words.iter().find(|word| contains_word(&line, word))?;
            Some(format!("`{found}` is not about this project"))
        },
    )
}

/// Every script says at its top how it is called.
pub fn scripts_say_their_usage(tree: &Tree) -> Vec<Finding> {
    let scripts = tree.files.iter().filter(|file| file.text.starts_with("#!/"));
    let silent = scripts.filter(|script| {
        !script.text.lines().take_while(|line| line.starts_with('#')).any(says_usage)
    });
    silent
        .map(|script| Finding::new(&script.path, 1, "no `# Usage:` in the comment at the top"))
        .collect()
}

fn says_usage(line: &str) -> bool {
    line.trim_start_matches('#').trim_start().starts_with("Usage:")
}

/// The words in lower case, in two pieces each, so that this file does not hold them itself.
fn banned() -> Vec<String> {
    const PIECES: [(&str, &str); 18] = [
        // Places outside the tree.
        ("/wo", "rk/"),
        ("../sha", "red"),
        ("/ho", "me/"),
        ("/tmp/ba", "sh_jobs"),
        // Tools of writing. Words with a meaning in networking (session, agent, task) stay usable.
        ("clau", "de"),
        ("anth", "ropic"),
        ("chat", "gpt"),
        ("copi", "lot"),
        ("assis", "tant"),
        ("as an", " ai"),
        ("language", " model"),
        ("session", " transcript"),
        // Where packages come from is the business of the machine that builds.
        ("crates", ".io"),
        ("py", "pi.org"),
        ("python", "hosted"),
        ("npm", "js"),
        ("artif", "actory"),
        ("deb.debian", ".org"),
    ];
    PIECES.iter().map(|(head, tail)| format!("{head}{tail}")).collect()
}

/// Whether `word` stands in `line`, and not as the tail of a longer word or path.
fn contains_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(|before: char| before.is_alphanumeric() || "_}".contains(before))
    })
}

/// Whether white space in it is the choice of a writer, as it is not in test vectors.
fn is_written_by_hand(file: &SourceFile) -> bool {
    let kinds = [".rs", ".toml", ".md", ".yml"];
    file.is_script() || kinds.iter().any(|kind| file.path.ends_with(kind))
}

fn lines_that(
    tree: &Tree,
    applies: impl Fn(&SourceFile) -> bool,
    check: impl Fn(&str) -> Option<String>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| applies(file)) {
        for (i, line) in file.text.lines().enumerate() {
            if let Some(message) = check(line) {
                findings.push(Finding::new(&file.path, i + 1, message));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(findings: &[Finding]) -> Vec<usize> {
        findings.iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn wide_lines_are_found_and_urls_spared() {
        let (wide, fits) = ("x".repeat(101), "é".repeat(100));
        let text = format!("{fits}\n{wide}\n// https://{wide}\n");
        assert_eq!(lines(&columns(&Tree::of(&[("a.rs", &text)]))), [2]);
        assert_eq!(lines(&columns(&Tree::of(&[("a.md", &text)]))), []);
    }

    #[test]
    fn trailing_space_is_found() {
        let tree = Tree::of(&[("a.rs", "a\nb \n"), ("run.sh", "\t\n"), ("vector.txt", "a \n")]);
        assert_eq!(lines(&trailing_space(&tree)), [2, 1]);
    }

    #[test]
    fn every_banned_word_is_found() {
        for word in banned() {
            let text = format!("see\nthe {} there", word.to_uppercase());
            let tree = Tree::of(&[("README.md", &text)]);
            assert_eq!(lines(&banned_words(&tree)), [2], "{word}");
        }
    }

    #[test]
    fn words_of_the_trade_are_not_banned() {
        let text = "A TCP session, a task, the subnet management agent; out/work/of.rs";
        assert_eq!(banned_words(&Tree::of(&[("a.md", text)])), []);
    }

    #[test]
    fn a_script_without_usage_is_found() {
        let silent = ("scripts/a", "#!/bin/sh\n# Does things.\n\n# Usage: too late\n");
        let good = ("scripts/b", "#!/bin/sh\n# Does things.\n#\n# Usage: scripts/b [--help]\n");
        let found = scripts_say_their_usage(&Tree::of(&[silent, good]));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, "scripts/a");
    }
}
