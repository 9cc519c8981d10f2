//! The test suite that every adapter must pass: the contract, as programs.
//!
//! A case is a short program over one or two devices. It creates queue pairs, posts, polls, and
//! states the expected result, down to the status of each completion, the state of both queue pairs
//! and the asynchronous events. Other completions or events fail it.
//!
//! The suite has no clock and no threads. It polls both devices in turn and calls
//! [`Adapters::turn`] whenever nothing arrived, so the same cases run in virtual time, with
//! adapters in other threads, and on hardware.
//!
//! Read in this order:
//!
//! 1. [`adapters`]: the interface of a backend;
//! 2. [`context`] and [`expect`]: the vocabulary of cases; [`verdict`]: the result of a case;
//! 3. [`peers`] and [`buffer`]: queue pairs and memory for them;
//! 4. [`mod@cases`]: the cases, one file for each theme; begin with `operations`;
//! 5. [`sabotage`]: broken devices, which prove that the cases detect faults;
//! 6. [`end`]: a remote-controlled end of a connection, for tests between two machines.
//!
//! Why a case can accept several statuses: where IBA leaves the status to the adapter, or adapters
//! are known to differ, the case lists each accepted status and a comment says why.
#![forbid(unsafe_code)]

pub mod adapters;
pub mod buffer;
pub mod cases;
pub mod context;
pub mod end;
pub mod expect;
pub mod peers;
pub mod sabotage;
pub mod verdict;

pub use adapters::{Adapters, Factory, Group, Side, WaitDecision};
pub use cases::THEMES;
pub use context::Context;
pub use verdict::{Outcome, Report, Stop, Summary};

use pollux_verbs::device::Capabilities;

/// Cases about one subject.
#[derive(Debug)]
pub struct Theme {
    /// The first part of the full names of its cases.
    pub name: &'static str,
    /// In reading and running order.
    pub cases: &'static [Case],
}

#[derive(Debug)]
pub struct Case {
    /// Unique within its theme.
    pub name: &'static str,
    /// The clause of the specification, or of the contract, that the case checks.
    pub about: &'static str,
    /// The case is skipped on adapters without these.
    pub needs: &'static [Need],
    pub run: fn(&mut Context<'_>) -> Result<(), Stop>,
}

impl Case {
    const fn new(
        name: &'static str,
        about: &'static str,
        needs: &'static [Need],
        run: fn(&mut Context<'_>) -> Result<(), Stop>,
    ) -> Self {
        Self { name, about, needs, run }
    }
}

/// A property that not every pair of adapters has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    Uc,
    UcSrq,
    /// Compare-and-swap and fetch-and-add.
    Atomics,
    Windows,
    SendInvalidate,
    /// The limit event of shared receive queues.
    SrqLimit,
    Multicast,
    /// The SQD state and its event.
    Drain,
    /// Automatic path migration.
    Migration,
    /// The link has LIDs, so that a GRH is optional.
    Subnet,
    /// A wire without loss, for transports that do not retransmit.
    Lossless,
}

impl Need {
    /// What is missing, if the adapters do not meet this need.
    fn missing(self, can: &Capabilities, lossy: bool) -> Option<&'static str> {
        let (has, what) = match self {
            Self::Uc => (can.uc, "no UC"),
            Self::UcSrq => (can.uc && can.uc_srq, "no shared receive queue for UC"),
            Self::Atomics => (can.atomics, "no atomic operations"),
            Self::Windows => (can.windows, "no memory windows"),
            Self::SendInvalidate => (can.send_invalidate, "no send with invalidate"),
            Self::SrqLimit => (can.srq_limit, "no limit event"),
            Self::Multicast => (can.multicast, "no multicast"),
            Self::Drain => (can.drain, "no SQD state"),
            Self::Migration => (can.migration, "no automatic path migration"),
            Self::Subnet => (can.subnet, "every packet has a GRH"),
            Self::Lossless => (!lossy, "the wire loses packets, and this transport repeats none"),
        };
        (!has).then_some(what)
    }
}

pub fn cases() -> impl Iterator<Item = (&'static Theme, &'static Case)> {
    THEMES.iter().flat_map(|theme| theme.cases.iter().map(move |case| (theme, case)))
}

/// Runs the cases whose `theme/name` contains `filter`, each on new adapters.
pub fn run(factory: &mut dyn Factory, filter: &str, report: &mut dyn FnMut(&Report)) -> Summary {
    let mut summary = Summary::default();
    for (theme, case) in cases() {
        if full_name(theme, case).contains(filter) {
            let one = run_case(factory, theme, case);
            summary.count(&one);
            report(&one);
        }
    }
    summary
}

/// Runs one case, for callers that run several cases in parallel.
pub fn run_case(factory: &mut dyn Factory, theme: &Theme, case: &Case) -> Report {
    let outcome = match attempt(factory, case) {
        Ok(()) => Outcome::Passed,
        Err(Stop::Skip(reason)) => Outcome::Skipped(reason),
        Err(Stop::Fail(text)) => Outcome::Failed(text),
    };
    Report { name: full_name(theme, case), about: case.about, outcome }
}

/// `theme/name`.
pub fn full_name(theme: &Theme, case: &Case) -> String {
    format!("{}/{}", theme.name, case.name)
}

/// Runs a case, and checks that it has taken all completions and events.
fn attempt(factory: &mut dyn Factory, case: &Case) -> Result<(), Stop> {
    let lossy = factory.is_lossy();
    let mut adapters = factory.adapters()?;
    for side in Side::BOTH {
        let can = adapters.device(side).attributes().can;
        if let Some(missing) = case.needs.iter().find_map(|need| need.missing(&can, lossy)) {
            return Err(Stop::Skip(missing.into()));
        }
    }
    let mut context = Context::new(adapters.as_mut(), lossy);
    (case.run)(&mut context)?;
    context.finish()
}

#[cfg(test)]
mod tests {
    use super::sabotage::SABOTAGES;
    use super::*;
    use std::collections::BTreeSet;

    fn names() -> BTreeSet<String> {
        cases().map(|(theme, case)| full_name(theme, case)).collect()
    }

    #[test]
    fn every_case_has_a_name_of_its_own() {
        assert_eq!(names().len(), cases().count());
        let is_plain =
            |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '/'));
        assert!(names().iter().all(|name| is_plain(name)), "{:?}", names());
    }

    #[test]
    fn sabotage_names_cases_that_exist() {
        for case in SABOTAGES.iter().flat_map(|(_, cases)| *cases) {
            assert!(names().contains(*case), "{case}");
        }
    }
}
