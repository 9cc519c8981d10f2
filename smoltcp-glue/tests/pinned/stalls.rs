//! A stalled control thread, as in a debugger, while applications continue.

use crate::device::ailing;
use crate::sockets::connect;
use crate::{TIMEOUT, Two, at, up};
use pollux::pinned::{Config, Interface};
use pollux::{Mode, Node};
use pollux_node::fabric::Embedded;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};

/// The time of the stall: longer than the timeout of neighbor resolution.
const STALL: Duration = Duration::from_secs(5);
/// The minimum number of round trips of each kind of socket meanwhile.
const ROUNDS: usize = 500;
/// Echo requests to the stalled host.
const PINGS: usize = 32;

/// Echoes datagrams and streams until an empty datagram arrives.
fn echo(interface: &Interface) {
    let socket = interface.udp_bind(at(2, 7)).expect("the port is free");
    let listener = interface.tcp_listen(at(2, 7), 16).expect("the port is free");
    listener.set_timeout(Some(TIMEOUT)).unwrap();
    scope(|scope| {
        scope.spawn(|| {
            while let Ok((mut stream, _)) = listener.accept() {
                let mut bytes = [0; 64];
                while let Ok(len @ 1..) = stream.read(&mut bytes) {
                    stream.write_all(&bytes[..len]).expect("there is space");
                }
                if bytes[0] == 0 {
                    return;
                }
            }
        });
        let mut bytes = [0; 64];
        loop {
            let (len, from) = socket.recv_from(&mut bytes).expect("it is up");
            if len == 0 {
                return;
            }
            socket.send_to(&bytes[..len], from).expect("there is space");
        }
    });
}

/// Ends the echoes, also when a test fails.
struct End<'a>(&'a Interface);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let socket = self.0.udp_bind(at(1, 0)).expect("a port is free");
        let _ = socket.send_to(&[], at(2, 7));
        if let Ok(mut last) = self.0.tcp_connect(at(2, 7)) {
            let _ = last.write_all(&[0]);
        }
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the stall takes real time")]
fn sockets_work_while_the_control_thread_is_stalled() {
    for mode in [Mode::Ud, Mode::Rc] {
        let fabric = Embedded::start("single:2").expect("it starts");
        // Only the control thread uses this context of the device; the worker has another.
        let (opened, illness) = ailing(&fabric.port("host1"));
        let setup = Node::open("host1").expect("a device").interface("ib0").mode(mode);
        let setup = setup.timeout(TIMEOUT).address("10.0.0.1/24");
        let first = setup.up_pinned_at(opened, Config::default()).expect("it comes up");
        let second = up(&fabric, 2, mode, Config::default());
        let two = Two { first, second, fabric };
        let (is_over, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
        scope(|scope| {
            scope.spawn(|| echo(&two.second));
            let end = End(&two.first);
            let mut stream = connect(&two.first, at(2, 7));
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            let socket = two.first.udp_bind(at(1, 0)).expect("a port is free");
            socket.set_read_timeout(Some(TIMEOUT)).unwrap();
            let mut round = |number: usize| {
                let (sent, mut echoed) = ([1 + number as u8 % 255; 64], [0; 64]);
                socket.send_to(&sent, at(2, 7)).expect("there is space");
                let (len, _) = socket.recv_from(&mut echoed).expect("it is echoed");
                assert_eq!((len, echoed), (64, sent), "{mode:?}");
                stream.write_all(&sent).expect("there is space");
                stream.read_exact(&mut echoed).expect("it is echoed");
                assert_eq!(echoed, sent, "{mode:?}");
            };
            (0..ROUNDS).for_each(&mut round);
            let before = two.first.neighbors().expect("it is served");

            let stalled = illness.lock().expect("no test has panicked");
            let begun = Instant::now();
            let pings: Vec<_> = (0..PINGS)
                .map(|_| {
                    scope.spawn(|| {
                        let answer = two.second.ping(at(1, 0).ip(), 56, TIMEOUT);
                        answered.fetch_add(1, Ordering::Relaxed);
                        assert!(is_over.load(Ordering::Relaxed), "{answer:?} too early");
                        answer.expect("it is answered after the stall");
                    })
                })
                .collect();
            let mut rounds = 0;
            while rounds < ROUNDS || begun.elapsed() < STALL {
                round(rounds);
                rounds += 1;
            }
            // A new connection does not need the control thread.
            let mut new = two.first.tcp_connect(at(2, 7)).expect("it listens");
            new.set_read_timeout(Some(TIMEOUT)).unwrap();
            assert_eq!(answered.load(Ordering::Relaxed), 0, "{mode:?}");
            is_over.store(true, Ordering::Relaxed);
            drop(stalled);
            pings.into_iter().for_each(|ping| ping.join().expect("it is answered"));
            (0..ROUNDS).for_each(&mut round);
            assert_eq!(two.first.neighbors().expect("it is served"), before, "{mode:?}");
            drop(stream);
            new.write_all(b"new").expect("it is connected");
            let mut echoed = [0; 3];
            new.read_exact(&mut echoed).expect("it is echoed");
            assert_eq!(&echoed, b"new");
            new.shutdown(Shutdown::Both).expect("it is connected");
            drop(end);
        });
    }
}
