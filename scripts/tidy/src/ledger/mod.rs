//! The ledger: what the product must do, and which test says that it does.
//!
//! `control/requirements.toml` lists the requirements. A test claims one with the line
//! `// req: ID[, ID...]` above it; an id is claimed only by a test that would fail without the
//! behavior. So the answer to "do we do this?" is a test's name, or "not yet".

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::{Finding, Tree};

pub mod claims;
pub mod report;

const REQUIREMENTS: &str = "control/requirements.toml";

/// How much the source of a requirement insists on it (RFC 2119).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// No product without it.
    Must,
    /// Not without a good reason.
    Should,
    /// Allowed by the source, wanted by us.
    May,
}

impl Level {
    /// All of them, the strictest first.
    pub const ALL: [Self; 3] = [Self::Must, Self::Should, Self::May];

    /// Its name in the list.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Must => "must",
            Self::Should => "should",
            Self::May => "may",
        }
    }
}

/// One thing that the product must do.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requirement {
    /// Its stable name.
    pub id: String,
    /// Where it comes from: a document and its clauses.
    pub source: String,
    /// The source's own level.
    pub level: Level,
    /// The rule.
    pub text: String,
    /// The tests that claim it.
    #[serde(skip)]
    pub tests: Vec<String>,
}

impl Requirement {
    /// The document that it comes from, without the clauses.
    pub fn document(&self) -> &str {
        self.source.split_whitespace().next().unwrap_or_default()
    }
}

/// All requirements, in the order of the list, with the tests that claim them.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Requirements in the order of their file.
    pub requirements: Vec<Requirement>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    req: Vec<Requirement>,
}

impl Ledger {
    /// Reads the list and the claims of `tree`, and says what is wrong with them.
    pub fn read(tree: &Tree) -> (Self, Vec<Finding>) {
        let mut findings = Vec::new();
        let mut requirements = match requirements(tree) {
            Ok(requirements) => requirements,
            Err(finding) => return (Self::default(), vec![finding]),
        };
        let mut places = BTreeMap::new();
        for (place, requirement) in requirements.iter().enumerate() {
            if places.insert(requirement.id.clone(), place).is_some() {
                let message = format!("`{}` is there twice", requirement.id);
                findings.push(Finding::new(REQUIREMENTS, 0, message));
            }
        }
        for file in tree.rust() {
            let (claims, faults) = claims::claims(file);
            findings.extend(faults);
            for claim in claims {
                match places.get(&claim.id) {
                    Some(&place) => requirements[place].tests.push(claim.test),
                    None => {
                        let message = format!("`{}` is not in {REQUIREMENTS}", claim.id);
                        findings.push(Finding::new(&file.path, claim.line, message));
                    }
                }
            }
        }
        (Self { requirements }, findings)
    }
}

fn requirements(tree: &Tree) -> Result<Vec<Requirement>, Finding> {
    let missing = || Finding::new(REQUIREMENTS, 0, "the list of requirements is missing");
    let text = &tree.file(REQUIREMENTS).ok_or_else(missing)?.text;
    match toml::from_str::<List>(text) {
        Ok(list) => Ok(list.req),
        Err(error) => {
            let line = error.span().map_or(0, |span| text[..span.start].lines().count().max(1));
            Err(Finding::new(REQUIREMENTS, line, error.message()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: &str) -> String {
        format!("[[req]]\nid = \"{id}\"\nsource = \"rfc4391 4\"\nlevel = \"must\"\ntext = \"t\"\n")
    }

    fn read(requirements: &str, code: &str) -> (Ledger, Vec<String>) {
        let (ledger, findings) =
            Ledger::read(&Tree::of(&[(REQUIREMENTS, requirements), ("a.rs", code)]));
        (ledger, findings.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_claim_finds_its_requirement() {
        let list = entry("ud-mgid") + &entry("ud-mtu");
        let (ledger, findings) = read(&list, "// req: ud-mtu\n#[test]\nfn mtu() {}\n");
        assert_eq!(findings, [""; 0]);
        assert_eq!(ledger.requirements[0].tests, [""; 0]);
        assert_eq!(ledger.requirements[1].tests, ["a.rs:3 mtu"]);
        assert_eq!(ledger.requirements[1].document(), "rfc4391");
    }

    #[test]
    fn an_unknown_id_is_a_fault() {
        let (_, findings) = read(&entry("ud-mgid"), "\n// req: ud-mtu\n#[test]\nfn mtu() {}\n");
        assert_eq!(findings, ["a.rs:2: `ud-mtu` is not in control/requirements.toml"]);
    }

    #[test]
    fn an_id_listed_twice_is_a_fault() {
        let (_, findings) = read(&entry("ud-mtu").repeat(2), "");
        assert_eq!(findings, ["control/requirements.toml: `ud-mtu` is there twice"]);
    }

    #[test]
    fn a_list_that_cannot_be_read_is_a_fault() {
        let (_, findings) = read(&entry("ud-mtu").replace("must", "perhaps"), "");
        assert!(findings[0].starts_with("control/requirements.toml:4: unknown variant"));
        assert_eq!(Ledger::read(&Tree::default()).1.len(), 1);
    }
}
