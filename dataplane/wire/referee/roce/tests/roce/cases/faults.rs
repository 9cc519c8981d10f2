//! A wire that loses, duplicates, reorders and damages packets: reliable connections are
//! unaffected, and unreliable ones deliver only complete messages.

use super::Case;
use crate::peer::*;
use pollux_conformance::end::op;
use pollux_fabric::link::fault::Faults;
use pollux_verbs::CompletionStatus::Success;
use std::time::Duration;

const NONE: Faults =
    Faults { loss: 0, duplication: 0, reordering: 0, corruption: 0, delay_max: Duration::ZERO };
const LOSS: Faults = Faults { loss: 50_000, ..NONE };
const DUPLICATION: Faults =
    Faults { duplication: 200_000, delay_max: Duration::from_millis(2), ..NONE };
const REORDERING: Faults =
    Faults { reordering: 100_000, delay_max: Duration::from_millis(2), ..NONE };
const CORRUPTION: Faults = Faults { corruption: 50_000, ..NONE };
const ALL: Faults = Faults {
    loss: 20_000,
    duplication: 50_000,
    reordering: 50_000,
    corruption: 20_000,
    delay_max: Duration::from_millis(2),
};

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let kinds = [
        ("loss", LOSS),
        ("duplication", DUPLICATION),
        ("reordering", REORDERING),
        ("corruption", CORRUPTION),
        ("all faults", ALL),
    ];
    for (kind, faults) in kinds {
        for (way, out, back) in [
            ("of requests", faults, NONE),
            ("of answers", NONE, faults),
            ("both ways", faults, faults),
        ] {
            cases.push(Case::new(format!("RC {kind} {way}"), move |t| {
                under(t, out, back, reliable)
            }));
        }
    }
    for (kind, faults) in [("loss", LOSS), ("reordering", REORDERING)] {
        cases.push(Case::new(format!("UC {kind}"), move |t| under(t, faults, NONE, unreliable)));
    }
    cases
}

fn under(
    t: &mut Trial<'_>,
    out: Faults,
    back: Faults,
    run: impl Fn(&mut Trial<'_>) -> Outcome,
) -> Outcome {
    t.set_faults(out, back);
    let outcome = run(t);
    t.set_faults(NONE, NONE);
    outcome
}

/// Every kind of request, many of each, all at once; each is executed exactly once.
fn reliable(t: &mut Trial<'_>) -> Outcome {
    const ROUNDS: u64 = 8;
    const BYTES: u64 = 6000;
    t.connect(&Connection { timeout: 15, retries: 7, rnr_retries: 7, ..RC })?;
    t.fill(t.asker, FROM, ROUNDS * BYTES, 21)?;
    t.fill(t.answerer(), FROM, ROUNDS * BYTES, 22)?;
    let word = TO - 8;
    let start = t.word(t.answerer(), word)?;
    for round in 0..ROUNDS {
        t.recv(round, TO + round * BYTES, BYTES)?;
    }
    for round in 0..ROUNDS {
        let part = Request { at: round * BYTES, bytes: BYTES, ..Request::default() };
        let requests = [
            Request { op: op::SEND, ..part },
            Request { op: op::WRITE, to: TO + (1 << 19) + part.at, ..part },
            Request { op: op::READ, at: TO + part.at, to: part.at, ..part },
            Request { op: op::FETCH_ADD, at: TO - 16, bytes: 8, to: word, first: 1, ..part },
        ];
        for (nth, request) in requests.iter().enumerate() {
            t.post(Request { id: round * 4 + nth as u64, ..*request })?;
        }
    }
    for id in 0..ROUNDS * 4 {
        t.ends(id, Success)?;
    }
    for round in 0..ROUNDS {
        t.received(round, BYTES, None)?;
    }
    t.check(t.answerer(), TO, ROUNDS * BYTES, 21)?;
    t.check(t.answerer(), TO + (1 << 19), ROUNDS * BYTES, 21)?;
    t.check(t.asker, TO, ROUNDS * BYTES, 22)?;
    expect("additions", t.word(t.answerer(), word)?.wrapping_sub(start), ROUNDS)
}

fn unreliable(t: &mut Trial<'_>) -> Outcome {
    const MESSAGES: u64 = 32;
    const BYTES: u64 = 3000;
    t.connect(&UC)?;
    for id in 0..MESSAGES {
        t.recv(id, TO + id * BYTES, BYTES)?;
    }
    for id in 0..MESSAGES {
        t.fill(t.asker, id * BYTES, BYTES, 100 + id)?;
        let (at, op) = (id * BYTES, op::SEND_IMM);
        t.post(Request { id, op, at, bytes: BYTES, first: id, ..Request::default() })?;
        t.ends(id, Success)?;
    }
    let (answerer, mut came) = (t.answerer(), 0);
    let mut last = None;
    while let Some(done) = t.poll(answerer, 50)? {
        let nth = done.imm.ok_or("a message without its number")?;
        expect("length", (done.status, done.bytes), (Success, BYTES))?;
        expect("order", last < Some(nth), true)?;
        t.check(answerer, TO + done.id * BYTES, BYTES, 100 + nth)?;
        (last, came) = (Some(nth), came + 1);
    }
    expect("some come", came > 0, true)
}
