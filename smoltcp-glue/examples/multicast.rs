//! A multicast group: one host sends, and all members receive.
//!
//! ```sh
//! cargo run --release -p pollux --example multicast
//! ```
//!
//! One thread runs three hosts of a software fabric, and serves them in turn. With arguments, the
//! hosts use other devices, the sender first:
//!
//! ```sh
//! cargo run --release -p pollux --example multicast -- mlx5_0:1 10.0.0.1/24 mlx5_1:1 10.0.0.2/24
//! ```

mod ends;

use ends::Ended;
use pollux::{Interface, Node};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3));
const PORT: u16 = 5000;

fn main() -> Ended {
    let words = ends::words_or("soft: 10.0.0.1/24 soft: 10.0.0.2/24 soft: 10.0.0.3/24");
    if words.len() < 4 || words.len() % 2 == 1 {
        return Err("write a device and an address with its prefix, twice or more often".into());
    }
    let hosts: Vec<Interface> = words
        .chunks_exact(2)
        .map(|host| Node::open(host[0])?.interface("ib0").address(host[1]).up())
        .collect::<Result<_, _>>()?;
    let sender = hosts[0].udp_bind(ends::at(words[1], 0)?)?;
    let mut members = Vec::new();
    for host in &hosts[1..] {
        let socket = host.udp_bind(("0.0.0.0", PORT))?;
        socket.join(GROUP)?;
        // Datagrams are lost until the joins and the routes are complete.
        socket.set_read_timeout(Some(Duration::from_millis(10)))?;
        members.push((socket, None));
    }
    while members.iter().any(|(_, received)| received.is_none()) {
        sender.send_to(b"hello, everyone", (GROUP, PORT))?;
        for _ in 0..100 {
            hosts.iter().for_each(|host| _ = host.step());
        }
        for (socket, received) in &mut members {
            let mut bytes = [0; 64];
            if let Ok((len, from)) = socket.recv_from(&mut bytes) {
                *received = Some((String::from_utf8_lossy(&bytes[..len]).into_owned(), from));
            }
        }
    }
    for (socket, received) in &members {
        println!("{}: {received:?}", socket.local_addr()?);
    }
    Ok(())
}
