//! Sockets of interfaces with worker threads, at a software fabric.

#[allow(dead_code, reason = "only failures of the device are used here")]
#[path = "../../../control/node/tests/node/device.rs"]
mod device;
mod ends;
mod sockets;
mod stalls;
mod tasks;
mod workers;

use pollux::pinned::{Config, Interface};
use pollux::{Mode, Node};
use pollux_node::fabric::Embedded;
use std::net::SocketAddr;
use std::time::Duration;

/// The timeout of every call; none takes a tenth of it.
const TIMEOUT: Duration = Duration::from_secs(30);

fn at(host: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host], port))
}

/// Two hosts of a fabric.
struct Two {
    /// In the order of drop: interfaces disconnect before the fabric ends.
    first: Interface,
    second: Interface,
    fabric: Embedded,
}

fn up(fabric: &Embedded, host: u8, mode: Mode, config: Config) -> Interface {
    let setup = Node::open(&fabric.port(&format!("host{host}")))
        .expect("a device")
        .interface("ib0")
        .mode(mode);
    let setup = setup.timeout(TIMEOUT).address(&format!("10.0.0.{host}/24"));
    setup.address(&format!("fd00::{host}/64")).up_pinned(config).expect("it comes up")
}

fn two_with(mode: Mode, config: &Config) -> Two {
    let fabric = Embedded::start("single:2").expect("it starts");
    let (first, second) = std::thread::scope(|scope| {
        let second = scope.spawn(|| up(&fabric, 2, mode, config.clone()));
        (up(&fabric, 1, mode, config.clone()), second.join().expect("it comes up"))
    });
    Two { first, second, fabric }
}

fn two(mode: Mode) -> Two {
    two_with(mode, &Config::default())
}

/// The byte at an offset of a stream.
const fn byte(at: usize) -> u8 {
    ((at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}
