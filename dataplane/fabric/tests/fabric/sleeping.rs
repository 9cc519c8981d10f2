//! Clients that sleep until an entry arrives: no wake-up is lost, and none needs a timer.

use crate::pair::Connection;
use crate::processes::runs_alone;
use crate::served::{Served, clock};
use crate::shared_port::{Endpoint, LIDS, endpoints};
use pollux_verbs::*;
use pollux_wire::units::TimeCode;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Messages each way; both ends sleep for each of them.
const ROUNDS: u64 = 3_000;
/// No timer ends a sleep earlier, so a test in which a wake-up is lost fails.
const LONG: Duration = Duration::from_secs(60);

/// The wait of an end.
#[derive(Clone, Copy, Debug)]
enum Sleep {
    /// In the device.
    Inside,
    /// At the device's descriptor.
    Outside,
}

/// Two ends of a connection whose timers are longer than all sleeps.
fn ends(served: &Served) -> [Endpoint; 2] {
    let connection = Connection { timeout: TimeCode(26), psn: 7, ..Connection::default() };
    let [mut a, mut b] = [1, 2].map(|host| endpoints(served, host, 1).remove(0));
    let (a_qpn, b_qpn) = (a.qpn(), b.qpn());
    a.connect_with(b_qpn, LIDS[1], &connection);
    b.connect_with(a_qpn, LIDS[0], &connection);
    [a, b]
}

impl Sleep {
    /// Sleeps until there is a completion.
    fn completion(self, endpoint: &mut Endpoint) -> Completion {
        // Something other than completions, such as an acknowledgement, may end a sleep.
        for _ in 0..100 {
            endpoint.device.arm(endpoint.cq, Arm::Any).unwrap();
            if let Some(done) = endpoint.poll() {
                return done;
            }
            match self {
                Self::Inside => {
                    // The other end may sleep as well, and be woken a moment before this one.
                    let clock = clock();
                    let end = clock() + LONG;
                    let rung = endpoint.device.wait(LONG).unwrap();
                    assert!(clock() < end, "a wake-up is lost: {rung:?} comes by a timer");
                    assert_eq!(rung, Some(endpoint.cq));
                }
                Self::Outside => {
                    let source = endpoint.device.wake_source().expect("it has a descriptor");
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

    /// Sleeps until a message has arrived.
    fn receive(self, endpoint: &mut Endpoint, id: u64) {
        loop {
            let done = self.completion(endpoint);
            assert_eq!(done.status, CompletionStatus::Success);
            if done.kind != CompletionKind::Send {
                assert_eq!(done.id, id);
                return;
            }
        }
    }
}

fn send(endpoint: &mut Endpoint, id: u64) {
    let sges = endpoint.sge(id, 64);
    let data = Data::Sges(&sges);
    let request = SendRequest { id, op: SendOp::Send, flags: SendFlags::SIGNALED, data };
    endpoint.device.post_send(endpoint.qp, &[request]).unwrap();
}

/// Counts an end that has finished, also by a panic.
struct EndCount<'a>(&'a AtomicUsize);

impl Drop for EndCount<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Exchanges messages, one at a time in each direction. `over` counts the ends that have finished.
fn exchange(endpoint: &mut Endpoint, sleep: Sleep, begins: bool, over: &AtomicUsize) {
    let count = EndCount(over);
    endpoint.post_recv(0);
    for id in 0..ROUNDS {
        if begins {
            send(endpoint, id);
        }
        sleep.receive(endpoint, id);
        endpoint.post_recv(id + 1);
        if !begins {
            send(endpoint, id);
        }
    }
    // The last message may wait for credits, which arrive with an acknowledgement: a software
    // device makes progress only in calls.
    drop(count);
    while over.load(Ordering::Relaxed) < 2 {
        let _ = endpoint.poll();
        std::thread::yield_now();
    }
}

#[test]
fn a_message_ends_the_sleep_of_its_receiver() {
    if runs_alone("sleeping::a_message_ends_the_sleep_of_its_receiver") {
        return;
    }
    for sleep in [Sleep::Inside, Sleep::Outside] {
        let served = Served::start("sleeping", "single:2");
        let [mut a, mut b] = ends(&served);
        assert!(a.device.attributes().can.sleep);
        let over = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| exchange(&mut b, sleep, false, &over));
            exchange(&mut a, sleep, true, &over);
            thread.join().unwrap();
        });
        // The first messages used the server, which wakes a client by its socket.
        let statistics = served.ask(|server| server.statistics());
        assert_eq!(statistics, (2, 2), "a ring each way");
    }
}

/// A change of the port state by the server ends a sleep, too.
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
