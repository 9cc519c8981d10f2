//! `pollux-tidy tidy` checks the rules of the tree; `pollux-tidy ledger [--json]` prints the
//! requirements and the tests that claim them; `pollux-tidy mutants [ID...]` breaks rules, of all
//! requirements or of those with these IDs, one at a time and asks whether their tests notice. All
//! fail when something is wrong.
#![forbid(unsafe_code)]

use std::io;
use std::process::ExitCode;

use pollux_tidy::ledger::Ledger;
use pollux_tidy::{Finding, Tree, mutants, tidy, tree};

fn main() -> io::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let findings = match arguments[..] {
        ["tidy"] => tidy(&Tree::read(&tree::root())?),
        ["ledger"] => print_ledger(Ledger::report)?,
        ["ledger", "--json"] => print_ledger(Ledger::json)?,
        ["mutants", ref requirements @ ..] => mutants::run(&tree::root(), requirements)?,
        _ => {
            eprintln!("usage: pollux-tidy tidy | ledger [--json] | mutants [ID...]");
            return Ok(ExitCode::from(2));
        }
    };
    for finding in &findings {
        eprintln!("{finding}");
    }
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print_ledger(form: fn(&Ledger) -> String) -> io::Result<Vec<Finding>> {
    let (ledger, findings) = Ledger::read(&Tree::read(&tree::root())?);
    print!("{}", form(&ledger));
    Ok(findings)
}
