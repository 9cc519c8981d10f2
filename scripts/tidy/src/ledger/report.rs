//! The ledger for people, and for programs.

use std::fmt::Write as _;

use super::{Ledger, Level, Requirement};

impl Ledger {
    /// Documents in the order in which the list first names them.
    fn documents(&self) -> Vec<&str> {
        let mut documents = Vec::new();
        for requirement in &self.requirements {
            if !documents.contains(&requirement.document()) {
                documents.push(requirement.document());
            }
        }
        documents
    }

    /// Met and unmet, by document and level, with totals.
    pub fn report(&self) -> String {
        let mut out = String::new();
        for document in self.documents() {
            let of = |requirement: &&Requirement| requirement.document() == document;
            let mut own: Vec<_> = self.requirements.iter().filter(of).collect();
            own.sort_by_key(|requirement| requirement.level);
            writeln!(out, "{document}: {}", totals(&own)).expect("strings grow");
            for requirement in own {
                entry(&mut out, requirement);
            }
            out.push('\n');
        }
        let all: Vec<_> = self.requirements.iter().collect();
        writeln!(out, "all: {}", totals(&all)).expect("strings grow");
        out
    }

    /// The same as a JSON array, one object a requirement, in the order of the list.
    pub fn json(&self) -> String {
        let object = |requirement: &Requirement| {
            let tests: Vec<_> = requirement.tests.iter().map(|test| quoted(test)).collect();
            format!(
                "  {{\"id\": {}, \"source\": {}, \"level\": \"{}\", \"met\": {}, \"tests\": [{}]}}",
                quoted(&requirement.id),
                quoted(&requirement.source),
                requirement.level.name(),
                !requirement.tests.is_empty(),
                tests.join(", "),
            )
        };
        let objects: Vec<_> = self.requirements.iter().map(object).collect();
        format!("[\n{}\n]\n", objects.join(",\n"))
    }
}

fn entry(out: &mut String, requirement: &Requirement) {
    let Requirement { id, level, tests, .. } = requirement;
    let state = if tests.is_empty() { "unmet" } else { "met" };
    let mut tests = tests.iter();
    let first = tests.next().map_or("", String::as_str);
    let line = format!("  {state:<5}  {:<6}  {id:<32}  {first}", level.name());
    writeln!(out, "{}", line.trim_end()).expect("strings grow");
    for test in tests {
        writeln!(out, "{:51}{test}", "").expect("strings grow");
    }
}

/// Such as `must 3/41, should 0/8`.
fn totals(requirements: &[&Requirement]) -> String {
    let total = |level: Level| {
        let of_level = requirements.iter().filter(|requirement| requirement.level == level);
        let met = of_level.clone().filter(|requirement| !requirement.tests.is_empty()).count();
        let count = of_level.count();
        (count > 0).then(|| format!("{} {met}/{count}", level.name()))
    };
    Level::ALL.into_iter().filter_map(total).collect::<Vec<_>>().join(", ")
}

/// A JSON string (RFC 8259 7).
fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c < ' ' => write!(out, "\\u{:04x}", u32::from(c)).expect("strings grow"),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger() -> Ledger {
        let requirement = |id: &str, source: &str, level, tests: &[&str]| Requirement {
            id: id.into(),
            source: source.into(),
            level,
            text: "t".into(),
            tests: tests.iter().map(|test| (*test).into()).collect(),
        };
        Ledger {
            requirements: vec![
                requirement("b-should", "rfc2 1", Level::Should, &[]),
                requirement("a", "rfc1 \"4\"", Level::Must, &["a:3 x", "b:4 y"]),
                requirement("b-must", "rfc2 2", Level::Must, &["a:3 x"]),
            ],
        }
    }

    #[test]
    fn report_is_by_document_and_level() {
        let expected = "\
rfc2: must 1/1, should 0/1
  met    must    b-must                            a:3 x
  unmet  should  b-should

rfc1: must 1/1
  met    must    a                                 a:3 x
                                                   b:4 y

all: must 2/2, should 0/1
";
        assert_eq!(ledger().report(), expected);
    }

    #[test]
    fn json_is_in_the_order_of_the_list() {
        let expected = r#"[
  {"id": "b-should", "source": "rfc2 1", "level": "should", "met": false, "tests": []},
  {"id": "a", "source": "rfc1 \"4\"", "level": "must", "met": true, "tests": ["a:3 x", "b:4 y"]},
  {"id": "b-must", "source": "rfc2 2", "level": "must", "met": true, "tests": ["a:3 x"]}
]
"#;
        assert_eq!(ledger().json(), expected);
        assert_eq!(quoted("a\n\\"), r#""a\u000a\\""#);
    }
}
