//! Interfaces that come up, at addresses and ports that others have.

use pollux::pinned::Config;
use pollux::{Interface, Node, UpError};
use pollux_node::fabric::Embedded;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::time::Duration;

/// The timeout of every call; none takes a tenth of it.
const TIMEOUT: Duration = Duration::from_secs(30);
const ADDRESSES: [&str; 2] = ["10.0.0.1/24", "fd00::1/64"];

fn setup(fabric: &Embedded, host: u8, address: &str) -> pollux::Setup {
    let node = Node::open(&fabric.port(&format!("host{host}"))).expect("a device");
    node.interface("ib0").timeout(TIMEOUT).address(address)
}

/// The link address of a neighbor.
fn link_of(interface: &Interface, ip: IpAddr) -> String {
    interface.ping(ip, 56, TIMEOUT).expect("it answers");
    let neighbors = interface.neighbors();
    let neighbor = neighbors.iter().find(|one| one.addresses.contains(&ip));
    neighbor.expect("it has answered").link.to_string()
}

/// The error of an interface whose address another host has. On a host that is busy for long the
/// answer may come when the interface is up already; then it starts again.
fn refusal<I>(up: impl Fn() -> Result<I, UpError>) -> UpError {
    (0..100).find_map(|_| up().err()).expect("the address is refused")
}

#[test]
fn an_address_that_another_host_has_is_refused_with_the_link_address_of_that_host() {
    let fabric = Embedded::start("single:3").expect("it starts");
    for (address, other) in ADDRESSES.into_iter().zip(["10.0.0.3/24", "fd00::3/64"]) {
        let holder = setup(&fabric, 1, address).up_pinned(Config::default()).expect("it comes up");
        let observer = setup(&fabric, 3, other).up().expect("it comes up");
        let (ip, _) = address.split_once('/').expect("a prefix");
        let link = link_of(&observer, ip.parse().expect("an address"));
        let second = || setup(&fabric, 2, address);
        for error in [refusal(|| second().up()), refusal(|| second().up_pinned(Config::default()))]
        {
            let text = error.to_string();
            assert!(text.contains(ip) && text.contains(&link), "{text} without {link}");
            assert_eq!(std::io::Error::from(error).kind(), ErrorKind::AddrInUse);
        }
        // Nobody defends it any more.
        drop(holder);
        let second = second().up().expect("it comes up");
        assert!(second.addresses().contains(&ip.parse().expect("an address")));
    }
}

#[test]
fn a_port_in_use_is_refused_with_the_process_that_uses_it() {
    let fabric = Embedded::start("single:2").expect("it starts");
    let _first = setup(&fabric, 1, "10.0.0.1/24").up().expect("it comes up");
    let text = setup(&fabric, 1, "10.0.0.2/24").up().expect_err("it is in use").to_string();
    let name = std::fs::read_to_string("/proc/self/comm").expect("there is /proc");
    let process = format!("process {} ({})", std::process::id(), name.trim_end());
    assert!(text.contains(&process), "{text}");
}
