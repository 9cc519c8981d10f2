//! Two adapters in two threads: every message arrives completely, once and in order, for any
//! schedule.
#![expect(clippy::disallowed_methods, reason = "threads need a clock")]

use crate::pair::{Connection, Side, connected};
use pollux_fabric::Time;
use pollux_fabric::link::threads::{Clock, ThreadLink, pair};
use pollux_verbs::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const MESSAGES: usize = 5_000;
const SLOT: u64 = 80 << 10;
const SLOTS: usize = 8;

/// Lengths of messages: empty, in the ring entry, and leased.
fn bytes(which: usize) -> u32 {
    [0, 1, 64, 188, 189, 4096, 65_520, 33][which % 8]
}

fn byte(which: usize) -> u8 {
    (which * 31 + 1) as u8
}

fn send(side: &mut Side<ThreadLink>, over: &AtomicBool) {
    let (mut posted, mut done) = (0, 0);
    while done < MESSAGES {
        if posted < MESSAGES && posted - done < SLOTS {
            let (at, length) = ((posted % SLOTS) as u64 * SLOT, bytes(posted));
            let content = vec![byte(posted); length as usize];
            assert!(side.memory.write(at as usize, &content));
            let sges = [side.sge(at, length)];
            let request = SendRequest {
                id: posted as u64,
                op: SendOp::SendImm(posted as u32),
                flags: SendFlags::SIGNALED,
                data: Data::Sges(&sges),
            };
            side.device.post_send(side.qp, &[request]).unwrap();
            posted += 1;
        }
        while let Some(completion) = side.poll() {
            assert_eq!(
                (completion.id, completion.status),
                (done as u64, CompletionStatus::Success)
            );
            done += 1;
        }
    }
    over.store(true, Ordering::Release);
}

fn receive(side: &mut Side<ThreadLink>, over: &AtomicBool) {
    let (mut posted, mut came) = (0, 0);
    while came < MESSAGES || !over.load(Ordering::Acquire) {
        while posted < MESSAGES && posted - came < SLOTS {
            let sges = [side.sge((posted % SLOTS) as u64 * SLOT, SLOT as u32)];
            let request = RecvRequest { id: posted as u64, sges: &sges };
            side.device.post_recv(side.qp, &[request]).unwrap();
            posted += 1;
        }
        let Some(completion) = side.poll() else { continue };
        assert_eq!((completion.id, completion.status), (came as u64, CompletionStatus::Success));
        assert_eq!((completion.bytes, completion.with), (bytes(came), With::Imm(came as u32)));
        let mut content = vec![0; bytes(came) as usize];
        assert!(side.memory.read(came % SLOTS * SLOT as usize, &mut content));
        assert!(content.iter().all(|&found| found == byte(came)), "message {came}");
        came += 1;
    }
}

#[test]
fn every_message_arrives_once_complete_and_in_order() {
    let start = Instant::now();
    let clock: Clock = Arc::new(move || Time::START + start.elapsed());
    let connection = Connection {
        memory_bytes: SLOT as usize * SLOTS,
        timeout: pollux_wire::units::TimeCode(20),
        ..Connection::default()
    };
    let [mut a, mut b] = connected(pair(&clock), &connection);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| send(&mut a, &over));
        scope.spawn(|| receive(&mut b, &over));
    });
}
