//! `pollux-tidy tidy` checks the rules of the tree; `pollux-tidy ledger [--json]` prints the
//! requirements and the tests that claim them; `pollux-tidy size` prints the product's lines by
//! crate; `pollux-tidy mutants [ID...]` breaks rules, of all requirements or of those with these
//! IDs, one at a time and asks whether their tests notice; `pollux-tidy sample COUNT SEED
//! [PACKAGE...]` asks that of about COUNT random changes in each of these packages, or of all that
//! it samples. All fail when something is wrong.
#![forbid(unsafe_code)]

use std::io;
use std::process::ExitCode;

use pollux_tidy::ledger::Ledger;
use pollux_tidy::{Finding, Tree, mutants, sample, size, tidy, tree};

fn main() -> io::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let findings = match arguments[..] {
        ["tidy"] => tidy(&Tree::read(&tree::root())?),
        ["ledger"] => print_ledger(Ledger::report)?,
        ["ledger", "--json"] => print_ledger(Ledger::json)?,
        ["size"] => {
            print!("{}", size::report(&Tree::read(&tree::root())?));
            Vec::new()
        }
        ["mutants", ref requirements @ ..] => mutants::run(&tree::root(), requirements)?,
        ["sample", count, seed, ref packages @ ..] if let Some(numbers) = numbers(count, seed) => {
            sample::run(&tree::root(), numbers, packages)?
        }
        _ => {
            let commands =
                "tidy | ledger [--json] | size | mutants [ID...] | sample COUNT SEED [PACKAGE...]";
            eprintln!("usage: pollux-tidy {commands}");
            return Ok(ExitCode::from(2));
        }
    };
    for finding in &findings {
        eprintln!("{finding}");
    }
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn numbers(count: &str, seed: &str) -> Option<(usize, usize)> {
    Some((count.parse().ok()?, seed.parse().ok()?))
}

fn print_ledger(form: fn(&Ledger) -> String) -> io::Result<Vec<Finding>> {
    let (ledger, findings) = Ledger::read(&Tree::read(&tree::root())?);
    print!("{}", form(&ledger));
    Ok(findings)
}
