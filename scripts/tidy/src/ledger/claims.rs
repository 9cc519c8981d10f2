//! The lines that claim a requirement, and the tests below them.

use crate::Finding;
use crate::rust::Line;
use crate::tree::SourceFile;

/// A test's claim that a requirement is met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestClaim {
    /// The requirement.
    pub id: String,
    /// The line that claims it, from 1.
    pub line: usize,
    /// The test: `path:line name`.
    pub test: String,
}

/// All claims in a file, and what is wrong with the others.
pub fn claims(file: &SourceFile) -> (Vec<TestClaim>, Vec<Finding>) {
    let (mut claims, mut faults) = (Vec::new(), Vec::new());
    for (i, line) in file.rust.iter().enumerate() {
        let Some(ids) = line.comment.strip_prefix("// req:") else { continue };
        match test_below(&file.rust, i) {
            Ok((below, name)) => claims.extend(ids.split(',').map(|id| TestClaim {
                id: id.trim().into(),
                line: i + 1,
                test: format!("{}:{} {name}", file.path, below + 1),
            })),
            Err(fault) => faults.push(Finding::new(&file.path, i + 1, fault)),
        }
    }
    (claims, faults)
}

/// The line and name of the test that stands directly below line `claim`: with comments and
/// attributes between, but no blank line and no other code.
fn test_below(lines: &[Line], claim: usize) -> Result<(usize, &str), &'static str> {
    const ASTRAY: &str = "a claim that does not stand directly above a test";
    let mut attributes = String::new();
    for (i, line) in lines.iter().enumerate().skip(claim) {
        let code = line.code.trim();
        let inside_attribute = attributes.matches('[').count() > attributes.matches(']').count();
        if inside_attribute || code.starts_with("#[") {
            attributes.push_str(code);
        } else if let Some(name) = function_name(code) {
            return match () {
                () if attributes.contains("#[ignore") => Err("claimed by a test that is ignored"),
                () if attributes.contains("#[test]") => Ok((i, name)),
                () => Err(ASTRAY),
            };
        } else if !code.is_empty() || line.is_blank() {
            break;
        }
    }
    Err(ASTRAY)
}

fn function_name(code: &str) -> Option<&str> {
    let rest = code.strip_prefix("pub ").unwrap_or(code).strip_prefix("fn ")?;
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tree;

    fn read(code: &str) -> (Vec<String>, Vec<String>) {
        let tree = Tree::of(&[("a.rs", code)]);
        let (claims, faults) = claims(&tree.files[0]);
        let claims = claims.into_iter().map(|claim| format!("{} {}", claim.id, claim.test));
        (claims.collect(), faults.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn what_may_stand_between_claim_and_test() {
        let code = "
            proptest! {
                // req: a, b
                /// Docs.
                // req: c
                #[test]
                #[cfg_attr(
                    miri,
                    cfg(any())
                )]
                fn holds(x: u32) {}
            }";
        let (claims, faults) = read(code);
        assert_eq!(claims, ["a a.rs:11 holds", "b a.rs:11 holds", "c a.rs:11 holds"]);
        assert_eq!(faults, [""; 0]);
    }

    #[test]
    fn a_claim_without_a_test_is_a_fault() {
        for below in ["", "fn helper() {}", "\n#[test]\nfn late() {}", "use a;\n#[test]\nfn b() {}"]
        {
            let (claims, faults) = read(&format!("// req: a\n{below}"));
            assert_eq!(claims, [""; 0]);
            assert_eq!(faults, ["a.rs:1: a claim that does not stand directly above a test"]);
        }
    }

    #[test]
    fn a_claim_of_an_ignored_test_is_a_fault() {
        for code in ["#[test]\n#[ignore]\nfn b() {}", "#[ignore = \"slow\"]\n#[test]\nfn b() {}"] {
            let (_, faults) = read(&format!("// req: a\n{code}"));
            assert_eq!(faults, ["a.rs:1: claimed by a test that is ignored"]);
        }
    }

    #[test]
    fn only_plain_comments_claim() {
        assert_eq!(read("/// // req: a\n//! // req: b\nf(\"// req: c\")\n"), (vec![], vec![]));
    }
}
