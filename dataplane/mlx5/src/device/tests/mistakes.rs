//! Doorbells that are rung wrongly: messages arrive all the same, and the trap of the ConnectX in
//! software sees each (`POLLUX_TRAP`).

use super::super::ConnectX;
use super::common::{TRAP, stores_of};
use super::traffic::{BUFFER, Pair, wait};
use super::{is_program, run_with};
use crate::rings::send::mistakes::Mistake;
use pollux_verbs::{Completion, CompletionStatus, Data, Device, SendFlags, SendOp, SendRequest};

/// The name of a mistake.
const VARIABLE: &str = "POLLUX_TEST_MISTAKE";
/// Messages that are sent with it. A right one follows, by which the adapter learns of all.
const WRONG: u64 = 16;
/// Bytes of a message.
const BYTES: usize = 40;
const MISTAKES: [Mistake; 4] =
    [Mistake::EarlyDoorbell, Mistake::EarlyRecord, Mistake::SameHalf, Mistake::LateWqe];

#[test]
fn program_that_rings_wrongly() {
    if !is_program() {
        return;
    }
    #[expect(clippy::disallowed_methods, reason = "the program is told by a variable")]
    let name = std::env::var(VARIABLE).unwrap();
    let mistake = MISTAKES.into_iter().find(|mistake| format!("{mistake:?}") == name);
    let mut device = ConnectX::open("mlx5_0", 1).unwrap();
    let pd = device.create_pd().unwrap();
    let pair = Pair::new(&mut device, pd, 2 * WRONG as u32, false);
    pair.receive(&mut device, &(0..=WRONG).collect::<Vec<_>>());
    let mut received = 0;
    for nth in 0..=WRONG {
        let message = [nth as u8 + 1; BYTES];
        let (flags, data) = (SendFlags::SIGNALED, Data::Inline(&message));
        let request = SendRequest { id: nth, op: SendOp::Send, flags, data };
        let wrong = mistake.filter(|_| nth < WRONG);
        match wrong {
            None => device.post_send(pair.qps[0], &[request]).unwrap(),
            Some(mistake) => {
                let ConnectX { qps, ahs, registers, hca, .. } = &mut device;
                let kept = qps.get_mut(pair.qps[0].0).unwrap();
                kept.write_send(&request, ahs, hca).unwrap();
                kept.send.ring_wrongly(mistake, &mut registers[kept.register]);
            }
        }
        // Where the adapter hears of each, it takes one at a time: while it is at one, it would
        // see the record of the next. From other doorbells it may learn nothing.
        if !matches!(wrong, Some(Mistake::EarlyDoorbell | Mistake::LateWqe)) {
            receive(&mut device, &pair, &mut received, nth + 1);
        }
    }
}

/// Waits until so many messages have arrived, with their contents.
fn receive(device: &mut ConnectX, pair: &Pair, received: &mut u64, until: u64) {
    let mut out = [Completion::NOTHING; 4];
    while *received < until {
        let Some((_, count)) = wait(device, &[pair.recv_cq], &mut out) else { continue };
        for completion in &out[..count] {
            assert_eq!(completion.status, CompletionStatus::Success);
            let mut found = [0; BYTES];
            assert!(pair.memory.read(completion.id as usize * BUFFER, &mut found));
            assert_eq!((completion.id, found), (*received, [*received as u8 + 1; BYTES]));
            *received += 1;
        }
    }
}

/// Messages arrive with a mistake; with the trap, so many stores are out of order, for this reason.
fn is_seen(mistake: Mistake, expected: u64, reason: &str) {
    let name = format!("{mistake:?}");
    let run = |others: &[_]| run_with(PROGRAM, &[&[(VARIABLE, &*name)], others].concat());
    run(&[]);
    let output = run(&[TRAP]);
    let (judged, wrong) = stores_of(&output);
    assert!(judged > WRONG && wrong == expected, "{output}");
    assert!(output.contains(reason), "{output}");
}

const PROGRAM: &str = "mistakes::program_that_rings_wrongly";

#[test]
fn right_doorbells_are_in_order() {
    let output = run_with(PROGRAM, &[(VARIABLE, "none"), TRAP]);
    let (judged, wrong) = stores_of(&output);
    assert!(judged > WRONG && wrong == 0, "{output}");
}

#[test]
fn a_doorbell_before_its_record_is_seen() {
    is_seen(Mistake::EarlyDoorbell, WRONG, "the record is 0 at a doorbell for WQEs up to 1");
}

#[test]
fn a_record_before_its_wqe_is_seen() {
    is_seen(Mistake::EarlyRecord, WRONG, "the record is 1, and the ring has no WQE 0");
}

#[test]
fn a_half_that_is_not_flipped_is_seen() {
    is_seen(Mistake::SameHalf, WRONG, "half 0 was rung twice in a row");
}

#[test]
fn a_doorbell_before_its_wqe_is_seen() {
    is_seen(Mistake::LateWqe, WRONG, "WQE 0: the ring has another byte 0");
}
