//! The rule that no format is forgotten: what `layout!` makes is listed in the test of all layouts.

use std::collections::BTreeMap;

use crate::source::before_tests;
use crate::{Finding, Tree};

const FORMATS: &str = "dataplane/wire/src/";
const TEST: &str = "dataplane/wire/tests/layouts.rs";

/// Every public layout of the wire crate stands in the list of its test.
///
/// Names are compared without their modules, but counted: two formats of one name need two entries.
pub fn all_are_tested(tree: &Tree) -> Vec<Finding> {
    let mut listed = BTreeMap::<&str, usize>::new();
    for line in tree.file(TEST).iter().flat_map(|test| &test.rust) {
        if let Some(name) = listed_name(&line.code) {
            *listed.entry(name).or_default() += 1;
        }
    }
    let mut findings = Vec::new();
    for file in tree.rust().filter(|file| file.path.starts_with(FORMATS)) {
        for (i, line) in before_tests(&file.rust).iter().enumerate() {
            let Some(name) = layout_name(&line.code) else { continue };
            match listed.get_mut(name) {
                Some(count) if *count > 0 => *count -= 1,
                _ => {
                    let message = format!("layout `{name}` is not listed in {TEST}");
                    findings.push(Finding::new(&file.path, i + 1, message));
                }
            }
        }
    }
    findings
}

/// The name in a line such as `pub struct Lrh: 8 bytes {`.
fn layout_name(code: &str) -> Option<&str> {
    let (name, rest) = code.trim().strip_prefix("pub struct ")?.split_once(':')?;
    // In the definition of `layout!` the name is a variable.
    (rest.trim_end().ends_with("bytes {") && !name.starts_with('$')).then_some(name)
}

/// The last name of a path that fills a line, such as `packet::Lrh,`.
fn listed_name(code: &str) -> Option<&str> {
    let path = code.trim().strip_suffix(',')?;
    let is_path = path.chars().all(|c| c.is_alphanumeric() || c == '_' || c == ':');
    is_path.then(|| path.rsplit("::").next()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: &str = "//! A.\nlayout! {\n    pub struct Lrh: 8 bytes {\n    }\n}\n";

    fn found(formats: &[&str], test: &str) -> Vec<String> {
        let paths: Vec<_> = (0..formats.len()).map(|i| format!("{FORMATS}{i}.rs")).collect();
        let mut files: Vec<_> = paths.iter().map(String::as_str).zip(formats.to_vec()).collect();
        files.push((TEST, test));
        all_are_tested(&Tree::of(&files)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_forgotten_layout_is_found() {
        let expected = format!("{FORMATS}0.rs:3: layout `Lrh` is not listed in {TEST}");
        assert_eq!(
            found(&[FORMAT], "layouts! {\n    packet::Grh,\n    // packet::Lrh,\n}"),
            [expected]
        );
        assert_eq!(found(&[FORMAT], "layouts! {\n    packet::Lrh,\n}"), [""; 0]);
    }

    #[test]
    fn two_of_one_name_need_two_entries() {
        assert_eq!(found(&[FORMAT, FORMAT], "    a::Lrh,\n").len(), 1);
        assert_eq!(found(&[FORMAT, FORMAT], "    a::Lrh,\n    b::Lrh,\n"), [""; 0]);
    }

    #[test]
    fn layouts_of_tests_and_examples_need_no_entry() {
        let inside = format!("#[cfg(test)]\nmod tests {{\n{FORMAT}}}");
        assert_eq!(found(&[&inside, "/// pub struct Example: 4 bytes {"], ""), [""; 0]);
    }
}
