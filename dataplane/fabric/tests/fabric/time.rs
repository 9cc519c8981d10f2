//! Timeouts with clocks that are read rarely.

use crate::pair::{Connection, Pair, connected};
use pollux_fabric::Time;
use pollux_fabric::link::Wire;
use pollux_fabric::link::threads::{Clock, pair};
use pollux_verbs::*;
use pollux_wire::units::TimeCode;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const SEND: SendRequest<'_> =
    SendRequest { id: 1, op: SendOp::Send, flags: SendFlags::SIGNALED, data: Data::Inline(&[1]) };

#[test]
fn an_rnr_wait_begins_when_the_nak_arrives() {
    let latency = Duration::from_millis(1);
    let connection = Connection { timeout: TimeCode(20), ..Connection::default() };
    let mut pair = Pair::new(1, Wire { latency, ..Wire::default() }, &connection);
    let sent = Rc::new(RefCell::new(Vec::new()));
    let into = sent.clone();
    pair.world.set_tap(Box::new(move |now, from, _| {
        if from == 0 {
            into.borrow_mut().push(now.nanos());
        }
    }));
    let side = &mut pair.sides[0];
    side.device.post_send(side.qp, &[SEND]).unwrap();
    while sent.borrow().len() < 3 {
        assert!(pair.step());
    }
    // A round trip, and the 10 us that the peer requests.
    let sent = sent.borrow();
    assert!(sent.windows(2).all(|two| two[1] - two[0] >= 2_010_000), "{sent:?}");
}

/// A program that did not call for long sends: the timeout of the message begins then, and expires.
#[test]
fn a_timeout_begins_when_the_message_is_sent() {
    let nanos = Arc::new(AtomicU64::new(0));
    let told = nanos.clone();
    let clock: Clock = Arc::new(move || Time::from_nanos(told.load(Ordering::Relaxed)));
    let connection =
        Connection { timeout: TimeCode(10), retries: Retries::NONE, ..Connection::default() };
    let [mut a, mut b] = connected(pair(&clock), &connection);
    let pass = |duration: u64| nanos.fetch_add(duration, Ordering::Relaxed);
    let sges = [b.sge(0, 8)];
    let recv = RecvRequest { id: 2, sges: &sges };
    for _ in 0..2 {
        b.device.post_recv(b.qp, &[recv]).unwrap();
        a.device.post_send(a.qp, &[SEND]).unwrap();
        // No answer arrives at first, at any number of polls.
        for _ in 0..100 {
            assert_eq!(a.poll(), None);
        }
        b.device.progress();
        assert_eq!(a.poll().unwrap().status, CompletionStatus::Success);
        pass(1_000_000_000);
    }
    a.device.post_send(a.qp, &[SEND]).unwrap();
    for _ in 0..100 {
        pass(100_000);
        if let Some(completion) = a.poll() {
            assert_eq!(completion.status, CompletionStatus::RetryExceeded);
            return;
        }
    }
    panic!("time passes, and the message has none");
}
