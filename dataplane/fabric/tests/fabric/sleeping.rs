//! Clients that sleep until something comes: no wake-up is lost, and no timer is needed for one.

use crate::pair::Connection;
use crate::processes::runs_alone;
use crate::served::{Served, clock};
use crate::shared_port::{Hand, LIDS, hands};
use pollux_verbs::*;
use pollux_wire::units::TimeCode;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Messages each way, for each of which both ends sleep.
const ROUNDS: u64 = 3_000;
/// No timer ends a sleep earlier, so a test in which a wake-up is lost fails.
const LONG: Duration = Duration::from_secs(60);

/// How an end sleeps.
#[derive(Clone, Copy, Debug)]
enum Sleep {
    /// In the device.
    Inside,
    /// At the device's descriptor.
    Outside,
}

/// Two ends of a connection whose timers are beyond all sleeps.
fn ends(served: &Served) -> [Hand; 2] {
    let connection = Connection { timeout: TimeCode(26), psn: 7, ..Connection::default() };
    let [mut a, mut b] = [1, 2].map(|host| hands(served, host, 1).remove(0));
    let (a_qpn, b_qpn) = (a.qpn(), b.qpn());
    a.connect_with(b_qpn, LIDS[1], &connection);
    b.connect_with(a_qpn, LIDS[0], &connection);
    [a, b]
}

impl Sleep {
    /// Sleeps until there is a completion.
    fn completion(self, hand: &mut Hand) -> Completion {
        // Something other than completions, such as an acknowledgement, may end a sleep.
        for _ in 0..100 {
            hand.device.arm(hand.cq, Arm::Any).unwrap();
            if let Some(done) = hand.poll() {
                return done;
            }
            match self {
                Self::Inside => {
                    // The other end may sleep as well, and learn of it a moment before this one.
                    let clock = clock();
                    let end = clock() + LONG;
                    let rung = hand.device.wait(LONG).unwrap();
                    assert!(clock() < end, "a wake-up is lost: {rung:?} comes by a timer");
                    assert_eq!(rung, Some(hand.cq));
                }
                Self::Outside => {
                    let source = hand.device.wake_source().expect("it has a descriptor");
                    let is_brief = source.longest == Duration::ZERO;
                    let longest = Timespec::try_from(source.longest.min(LONG)).unwrap();
                    let mut fds = [PollFd::new(&source.fd, PollFlags::IN)];
                    let ready = poll(&mut fds, Some(&longest)).unwrap();
                    assert!(ready == 1 || is_brief, "a wake-up is lost");
                }
            }
        }
        panic!("it wakes again and again, and there is nothing");
    }

    /// Sleeps until a message has come.
    fn receive(self, hand: &mut Hand, id: u64) {
        loop {
            let done = self.completion(hand);
            assert_eq!(done.status, CompletionStatus::Success);
            if done.kind != CompletionKind::Send {
                assert_eq!(done.id, id);
                return;
            }
        }
    }
}

fn send(hand: &mut Hand, id: u64) {
    let sges = hand.sge(id, 64);
    let data = Data::Sges(&sges);
    let request = SendRequest { id, op: SendOp::Send, flags: SendFlags::SIGNALED, data };
    hand.device.post_send(hand.qp, &[request]).unwrap();
}

/// An end that plays. It counts itself when it is dropped, also by a panic.
struct Playing<'a>(&'a AtomicUsize);

impl Drop for Playing<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Message by message, to and fro. `over` counts the ends that have all of theirs.
fn play(hand: &mut Hand, sleep: Sleep, begins: bool, over: &AtomicUsize) {
    let playing = Playing(over);
    hand.post_recv(0);
    for id in 0..ROUNDS {
        if begins {
            send(hand, id);
        }
        sleep.receive(hand, id);
        hand.post_recv(id + 1);
        if !begins {
            send(hand, id);
        }
    }
    // The last message may wait for credits, which come with an acknowledgement: a device in
    // software goes on in calls only.
    drop(playing);
    while over.load(Ordering::Relaxed) < 2 {
        let _ = hand.poll();
        std::thread::yield_now();
    }
}

#[test]
fn no_message_is_slept_through() {
    if runs_alone("sleeping::no_message_is_slept_through") {
        return;
    }
    for sleep in [Sleep::Inside, Sleep::Outside] {
        let served = Served::start("sleeping", "single:2");
        let [mut a, mut b] = ends(&served);
        assert!(a.device.attributes().can.sleep);
        let over = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let playing = scope.spawn(|| play(&mut b, sleep, false, &over));
            play(&mut a, sleep, true, &over);
            playing.join().unwrap();
        });
        // The first messages went by the server, which wakes a client by its socket.
        let statistics = served.ask(|server| server.statistics());
        assert_eq!(statistics, (2, 2), "a ring each way");
    }
}

/// The server is no sender of messages: what it says of the port ends a sleep, too.
#[test]
fn a_cable_that_is_pulled_ends_a_sleep() {
    if runs_alone("sleeping::a_cable_that_is_pulled_ends_a_sleep") {
        return;
    }
    let served = Served::start("pulled", "single:2");
    let [mut a, _b] = ends(&served);
    while a.device.async_event().is_some() {}
    std::thread::scope(|scope| {
        scope.spawn(|| {
            served.ask(|server| {
                let end = pollux_fabric::topology::End { node: 1, port: 1 };
                server.net_mut().set_cable(end, false);
            });
        });
        a.device.arm(a.cq, Arm::Any).unwrap();
        let clock = clock();
        let end = clock() + LONG;
        assert_eq!(a.device.wait(LONG).unwrap(), None, "no completion");
        assert!(clock() < end, "only a timer has ended the sleep");
    });
    assert_eq!(a.device.async_event(), Some(AsyncEvent::PortError(1)));
}
