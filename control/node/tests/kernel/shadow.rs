//! Shadows: what `ip` says of them, and packets through them.

use crate::namespace::Namespace;
use crate::nodes::until;
use pollux_node::kernel::shadow::open_shadow;
use pollux_node::kernel::tun::{TunOptions, TunQueue, TunWritten};
use pollux_node::kernel::tun_device::TunDevice;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

fn link(namespace: &Namespace, name: &str) -> Value {
    namespace.json(&format!("-d link show {name}")).remove(0)
}

fn has_flag(link: &Value, flag: &str) -> bool {
    link["flags"].as_array().expect("flags").contains(&json!(flag))
}

/// Addresses of `ip`, with prefix lengths.
fn addresses(namespace: &Namespace, name: &str) -> Vec<String> {
    let shown = namespace.json(&format!("address show {name}")).remove(0);
    let mut addresses: Vec<_> = shown["addr_info"]
        .as_array()
        .expect("addresses")
        .iter()
        .map(|a| format!("{}/{}", a["local"].as_str().expect("an address"), a["prefixlen"]))
        .collect();
    addresses.sort();
    addresses
}

/// Sends until a datagram arrives at the shadow: the kernel drops what is sent before it has
/// learnt of the carrier. Other packets it sends by itself.
fn send_until_read(mut send: impl FnMut(), shadow: &mut TunDevice) -> Vec<u8> {
    let mut buffer = [0; 2048];
    for _ in 0..600 {
        send();
        let mut fds = [PollFd::new(&*shadow, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 100_000_000 })).expect("a poll");
        while let Some(len) = shadow.queue().read(&mut buffer).expect("a read") {
            if buffer[0] >> 4 == 4 && buffer[9] == 17 {
                return buffer[..len].to_vec();
            }
        }
    }
    panic!("a minute, and no packet");
}

#[test]
fn a_shadow_has_the_mtu_the_addresses_and_the_carrier_it_was_given() {
    let Some(namespace) = Namespace::enter("shadow") else { return };
    let mut shadow = open_shadow("ib0").expect("a shadow");
    let shown = link(&namespace, "ib0");
    assert!(has_flag(&shown, "UP") && has_flag(&shown, "NO-CARRIER"), "{shown}");
    assert!(has_flag(&shown, "NOARP"), "{shown}");
    assert_eq!(shown["ifindex"], shadow.index());
    assert_eq!(shown["inet6_addr_gen_mode"], "none");
    assert_eq!(addresses(&namespace, "ib0"), [""; 0]);

    shadow.set_mtu(65520).expect("an MTU");
    shadow.set_carrier(true).expect("carrier");
    let three = ["10.0.1.1/24", "2001:db8::1/64", "fe80::202:c903:0:1001/64"];
    let parse = |text: &str| {
        let (address, len) = text.split_once('/').expect("a prefix");
        (address.parse().expect("an address"), len.parse().expect("a length"))
    };
    shadow.set_addresses(&three.map(parse).into()).expect("addresses");
    let shown = link(&namespace, "ib0");
    assert!(has_flag(&shown, "LOWER_UP"), "{shown}");
    assert_eq!(shown["mtu"], 65520);
    assert_eq!(addresses(&namespace, "ib0"), three);
    let v6 = &namespace.json("-6 address show ib0")[0]["addr_info"];
    assert!(v6.as_array().expect("two").iter().all(|a| a["tentative"].is_null()), "{v6}");

    shadow.set_addresses(&[parse("10.0.2.1/24")].into()).expect("another address");
    assert_eq!(addresses(&namespace, "ib0"), ["10.0.2.1/24"]);
    namespace.ip("route add 10.3.0.0/16 via 10.0.2.7 dev ib0");
    shadow.set_addresses(&[parse("10.0.2.9/24")].into()).expect("another one of the same subnet");
    assert_eq!(addresses(&namespace, "ib0"), ["10.0.2.9/24"]);
    assert_eq!(namespace.json("route show 10.3.0.0/16").len(), 1, "the route stays");
    shadow.set_carrier(true).expect("carrier");
    namespace.ip("address del 10.0.2.9/24 dev ib0");
    shadow.set_addresses(&[].into()).expect("an address that is gone already");
    shadow.set_carrier(false).expect("no carrier");
    assert!(has_flag(&link(&namespace, "ib0"), "NO-CARRIER"));
    drop(shadow);
    // A program that another test of this process starts just now has the descriptor until it runs.
    until("no shadow", || match &namespace.json("link show type tun")[..] {
        [] => Ok(()),
        left => Err(format!("{left:?}")),
    });
}

#[test]
fn packets_pass_a_shadow_in_both_directions() {
    let Some(_namespace) = Namespace::enter("shadow packets") else { return };
    let mut shadow = open_shadow("ib0").expect("a shadow");
    shadow.set_addresses(&[(Ipv4Addr::new(10, 0, 1, 1).into(), 24)].into()).expect("addresses");
    shadow.set_carrier(true).expect("carrier");
    let socket = UdpSocket::bind("10.0.1.1:5000").expect("a socket");
    socket.set_read_timeout(Some(std::time::Duration::from_secs(10))).expect("a timeout");
    let send = || _ = socket.send_to(b"hello", "10.0.1.2:6000").expect("a route on the link");
    let packet = send_until_read(send, &mut shadow);
    assert_eq!(&packet[12..20], [10, 0, 1, 1, 10, 0, 1, 2]);
    assert_eq!(&packet[28..], b"hello");

    // The answer: addresses and ports change places, which no checksum notices.
    let mut answer = packet.clone();
    answer[12..16].copy_from_slice(&packet[16..20]);
    answer[16..20].copy_from_slice(&packet[12..16]);
    answer[20..22].copy_from_slice(&packet[22..24]);
    answer[22..24].copy_from_slice(&packet[20..22]);
    // The kernel counts on the device for the UDP checksum of what it sends; 0 is none.
    answer[26..28].copy_from_slice(&[0, 0]);
    assert_eq!(shadow.queue().write(&answer), Ok(TunWritten::Taken));
    let mut buffer = [0; 64];
    let (len, from) = socket.recv_from(&mut buffer).expect("the answer");
    assert_eq!((&buffer[..len], from), (&b"hello"[..], SocketAddr::from(([10, 0, 1, 2], 6000))));
    assert_eq!(shadow.queue().write(b"0 is no IP version"), Ok(TunWritten::Refused));
}

#[test]
fn a_name_in_use_is_an_error_that_names_a_remedy() {
    let Some(namespace) = Namespace::enter("shadow name") else { return };
    let _shadow = open_shadow("ib0").expect("a shadow");
    let error = open_shadow("ib0").expect_err("in use").to_string();
    assert!(error.contains("device of this name is in use"), "{error}");
    namespace.ip("link add veth0 type veth peer name veth1");
    let error = open_shadow("veth0").expect_err("another kind").to_string();
    assert!(error.contains("configure another name"), "{error}");
}

#[test]
fn a_tun_device_of_several_queues_has_headers_and_offloads() {
    let Some(namespace) = Namespace::enter("tun queues") else { return };
    let options = TunOptions { multi_queue: true, vnet_header: true };
    let queues: Vec<_> =
        (0..2).map(|_| TunQueue::open("tun0", options).expect("a queue")).collect();
    let offload = pollux_mem::tun::OFFLOAD_CHECKSUM | pollux_mem::tun::OFFLOAD_TSO_V4;
    for queue in &queues {
        queue.set_offload(offload).expect("offloads");
    }
    namespace.ip("address add 10.0.1.1/24 dev tun0");
    namespace.ip("link set tun0 up mtu 9000");
    let shown = link(&namespace, "tun0");
    assert_eq!(shown["linkinfo"]["info_data"]["multi_queue"], true, "{shown}");
    assert_eq!(shown["linkinfo"]["info_data"]["vnet_hdr"], true, "{shown}");
    let socket = UdpSocket::bind("10.0.1.1:0").expect("a socket");
    socket.send_to(&[7; 1000], "10.0.1.2:6000").expect("a route on the link");
    let mut fds: Vec<_> = queues.iter().map(|q| PollFd::new(q, PollFlags::IN)).collect();
    poll(&mut fds, None).expect("a packet");
    let mut buffer = [0; 9100];
    let found = queues.iter().any(|queue| {
        std::iter::from_fn(|| queue.read(&mut buffer).expect("a read").map(|len| (len, buffer)))
            .any(|(len, bytes)| len == 10 + 20 + 8 + 1000 && bytes[10] == 0x45)
    });
    assert!(found, "a packet behind a header of 10 bytes");
}
