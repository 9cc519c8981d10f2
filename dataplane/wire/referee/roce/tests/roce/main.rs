//! RoCEv2: two of our own ends joined, and ours against the Linux kernel's Soft-RoCE.
//!
//! A test sends both ends their commands line by line (`pollux_conformance::end`) and runs every
//! case with either side as the requester. A table shows the results.

mod capture;
mod cases;
mod guest;
mod own;
mod peer;

use guest::Machine;
use own::Own;
use peer::{Duel, Side, Trial};
use pollux_fabric::Time;
use pollux_roce::middle::FrameDirection;
use std::cell::RefCell;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Instant;

/// Frames, each with its time and direction.
type Seen = Rc<RefCell<Vec<(Time, FrameDirection, Vec<u8>)>>>;

fn tap(seen: &Seen) -> pollux_roce::middle::FrameTap {
    let seen = Rc::clone(seen);
    Box::new(move |now, way, frame: &[u8]| seen.borrow_mut().push((now, way, frame.to_vec())))
}

/// Known deviations of the kernel, by the name of a case and its requester, with the clause. An
/// obsolete one fails the run, so that the list does not outlive its reasons.
const DIFFERENCES: &[(&str, Side, &str)] = &[(
    "RC message longer than the receive",
    Side::Ours,
    "rxe answers with a remote operation error, and IBA 9.9.3 with an invalid request",
)];

/// Runs all cases whose names contain `POLLUX_CASE`, and prints the table; returns the failures.
#[expect(clippy::disallowed_methods, reason = "which cases are run is the environment's to say")]
fn run(duel: &mut Duel, differences: &[(&str, Side, &str)]) -> Vec<String> {
    let filter = std::env::var("POLLUX_CASE").unwrap_or_default();
    let mut failures = Vec::new();
    println!("{:<44} {:<16} {:<16}", "case", "ours asks", "theirs asks");
    for case in cases::all().into_iter().filter(|case| case.name.contains(&filter)) {
        let cells = [Side::Ours, Side::Theirs].map(|asker| {
            let started = Instant::now();
            let outcome = (case.run)(&mut Trial::new(duel, asker, case.family));
            let took = started.elapsed().as_millis();
            let differs =
                differences.iter().find(|(name, side, _)| (*name, *side) == (&case.name, asker));
            let word = match (outcome, differs) {
                (Ok(()), None) => "ok",
                (Err(_), Some(_)) => "differs",
                (Ok(()), Some((.., why))) => {
                    failures.push(format!("{}, {asker:?}: no longer so: {why}", case.name));
                    "PASSES"
                }
                (Err(error), None) => {
                    let drops = duel.ours.drops();
                    failures.push(format!("{}, {asker:?}: {error} ({drops})", case.name));
                    "FAILED"
                }
            };
            format!("{word} {took} ms")
        });
        println!("{:<44} {:<16} {:<16}", case.name, cells[0], cells[1]);
    }
    for (name, side, why) in differences {
        println!("differs: {name}, {side:?}: {why}");
    }
    failures
}

#[test]
fn two_of_our_own_ends() {
    let (a, b) = UnixStream::pair().expect("a process can have sockets");
    let seen = Seen::default();
    let ours = Own::new(1, a, 7, tap(&seen));
    let theirs = Own::new(2, b, 8, Box::new(|_, _, _: &[u8]| {}));
    let failures = run(&mut Duel { ours, theirs: Box::new(theirs) }, &[]);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    capture::judge("two_of_our_own_ends", &seen);
}

#[test]
fn our_end_and_the_kernels() {
    let Some((machine, cable)) = Machine::boot("our_end_and_the_kernels") else { return };
    let seen = Seen::default();
    let ours = Own::new(2, cable, 7, tap(&seen));
    let mut duel = Duel { ours, theirs: Box::new(machine) };
    let failures = run(&mut duel, DIFFERENCES);
    capture::keep(&seen);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    capture::judge("our_end_and_the_kernels", &seen);
}
