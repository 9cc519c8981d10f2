//! Faults around an adapter: the peer's process dies, the link fails, the device is removed.
//!
//! Each case ends with as many objects in the kernel as it began with.

use crate::end::{End, name_of, text_of};
use pollux_verbs::{AsyncEvent, CompletionStatus, QpType, SendFlags};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(10);

/// Runs the cases; each panics on an unexpected result.
pub fn run() -> bool {
    let before = resources();
    for (name, case) in [
        ("the peer's process is killed", peer_is_killed as fn()),
        ("the link goes down and up", link_goes_down_and_up),
        ("the device is removed", device_is_removed),
    ] {
        case();
        let after = resources();
        // The device is another one after it was removed, and its counters may be gone.
        assert_eq!(before, after, "{name}: objects are left in the kernel");
        println!("pass {name}");
    }
    println!("faults: 3 passed, 0 failed");
    true
}

/// The kernel's counts of objects, a line for each device.
fn resources() -> String {
    output("rdma resource show | sed 's/^[0-9]*: //' | sort")
}

fn output(command: &str) -> String {
    let output = Command::new("sh").args(["-c", command]).output().expect("a shell");
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn until<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(Instant::now() < end, "expected {what}, found that nothing came");
    }
}

/// The process that is killed: it prints its name, reads ours, and receives messages.
pub fn victim() -> bool {
    let mut end = End::new("rxe0", QpType::Rc);
    println!("{}", text_of(end.name()));
    std::io::stdout().flush().expect("somebody listens");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("somebody speaks");
    end.connect(name_of(&line));
    println!("ready");
    loop {
        end.done(end.recv_cq);
        end.receive();
    }
}

/// Our sends to it end with an error, the rest is flushed, and each completes once.
fn peer_is_killed() {
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new(program)
        .arg("victim")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let mut line = || lines.next().expect("a line").expect("of text");
    let mut end = End::new("rxe1", QpType::Rc);
    end.connect(name_of(&line()));
    let mut input = child.stdin.take().expect("its input");
    writeln!(input, "{}", text_of(end.name())).expect("it listens");
    assert_eq!(line(), "ready");
    for _ in 0..100 {
        end.send(64, SendFlags::SIGNALED);
        end.done(end.send_cq);
    }
    child.kill().expect("it is ours");
    child.wait().expect("it is gone");
    for _ in 0..10 {
        end.send(64, SendFlags::SIGNALED);
    }
    let mut statuses = Vec::new();
    for nth in 0..10 {
        statuses.push(until(&format!("send {nth} to complete"), || end.poll(end.send_cq)));
    }
    assert_eq!(statuses[0], CompletionStatus::RetryExceeded, "{statuses:?}");
    assert!(statuses[1..].iter().all(|one| *one == CompletionStatus::Flushed), "{statuses:?}");
    assert_eq!(end.poll(end.send_cq), None);
}

fn event(end: &mut End, wanted: AsyncEvent) {
    until(&format!("{wanted:?}"), || end.device.async_event().filter(|found| *found == wanted));
}

/// The port reports it, and traffic continues afterwards.
fn link_goes_down_and_up() {
    let (mut a, mut b) = (End::new("rxe0", QpType::Ud), End::new("rxe1", QpType::Ud));
    let (name_a, name_b) = (a.name(), b.name());
    a.connect(name_b);
    b.connect(name_a);
    let exchange = |a: &mut End, b: &mut End| {
        until("a datagram to arrive", || {
            a.send(64, SendFlags::SIGNALED);
            a.done(a.send_cq);
            std::thread::sleep(Duration::from_millis(20));
            b.poll(b.recv_cq)
        });
    };
    exchange(&mut a, &mut b);
    output("ip link set net0 down");
    event(&mut a, AsyncEvent::PortError(1));
    output("ip link set net0 up");
    event(&mut a, AsyncEvent::PortActive(1));
    // The port is active before its address is: until then the kernel knows no way to the peer.
    for device in ["net0", "net1"] {
        until("the address to be usable again", || {
            let addresses = output(&format!("ip -6 address show dev {device}"));
            (addresses.contains("fe80") && !addresses.contains("tentative")).then_some(())
        });
    }
    exchange(&mut a, &mut b);
}

/// rxe delays its removal until we close it; then it is gone, and reports that.
fn device_is_removed() {
    let end = End::new("rxe0", QpType::Rc);
    let mut removal = Command::new("rdma").args(["link", "delete", "rxe0"]).spawn().expect("rdma");
    std::thread::sleep(Duration::from_millis(500));
    drop(end);
    until("the removal to end", || removal.try_wait().expect("it is our child"));
    let Err(error) = pollux_ibverbs::open("rxe0") else { panic!("it is gone, and was opened") };
    let text = error.to_string();
    assert!(text.contains("there is no such adapter; there are rxe1"), "{text}");
    output("rdma link add rxe0 type rxe netdev net0");
}
