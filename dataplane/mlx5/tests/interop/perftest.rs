//! `ib_send_lat` and `ib_send_bw` of perftest, for messages of one length.
//!
//! Both sides exchange data of the same length, the client first: version, two sizes, the MTU, and
//! the address, again and again, as a barrier.

use crate::Role;
use crate::end::{Address, Done, End, Kind, REQUESTS};
use pollux_wire::address::{Lid, Qpn};
use std::io::{Read, Write};
use std::net::TcpStream;

const MESSAGES: usize = 500;
/// Of ours, which it takes for one that is compatible.
const VERSION: &[u8; 16] = b"6.00\0\0\0\0\0\0\0\0\0\0\0\0";
/// The code of our MTU, 1024 bytes.
const MTU: &[u8; 2] = b"3\0";
const CACHE_LINE: u32 = 64;
/// Of a text: LID, outstanding reads, QPN, PSN, R_Key, address and SRQN in hexadecimal, and a
/// null byte.
const TEXT_BYTES: usize = 4 + 1 + 4 + 1 + 6 + 1 + 6 + 1 + 8 + 1 + 16 + 1 + 8 + 1;

/// The exchange, to its end.
struct Exchange {
    role: Role,
    stream: TcpStream,
    text: Vec<u8>,
}

impl Exchange {
    /// Connects, with the receives posted before the other may send.
    fn begin(end: &mut End, role: Role, port: u16) -> Self {
        let Address { lid, qpn, psn } = end.addresses()[0];
        let text =
            format!("{:04x}:0001:{:06x}:{psn:06x}:{:08x}:{:016x}:{:08x}\0", lid.0, qpn.0, 0, 0, 0);
        let mut own = Self { role, stream: role.stream(port), text: text.into() };
        own.swap(VERSION);
        own.swap(&4096_u32.to_be_bytes());
        own.swap(&CACHE_LINE.to_be_bytes());
        own.swap(MTU);
        let text = own.barrier();
        let text = std::str::from_utf8(&text).unwrap();
        let numbers: Vec<_> = text.split(':').map(|one| u32::from_str_radix(one, 16)).collect();
        let [Ok(lid), _, Ok(qpn), Ok(psn), ..] = numbers[..] else { panic!("{text:?}") };
        end.connect(&[Address { lid: Lid(lid as u16), qpn: Qpn(qpn), psn }]);
        // It is connected, prints the addresses, and has posted its receives.
        (0..3).for_each(|_| _ = own.barrier());
        own
    }

    /// Gives data for the other's.
    fn swap(&mut self, data: &[u8]) -> Vec<u8> {
        let mut found = vec![0; data.len()];
        let stream = &mut self.stream;
        if self.role == Role::Client {
            stream.write_all(data).unwrap();
        }
        stream.read_exact(&mut found).unwrap();
        if self.role == Role::Server {
            stream.write_all(data).unwrap();
        }
        found
    }

    fn barrier(&mut self) -> Vec<u8> {
        let text = self.text.clone();
        assert_eq!(text.len(), TEXT_BYTES);
        self.swap(&text)
    }

    fn end(mut self) {
        self.barrier();
        self.stream.write_all(b"done\0").unwrap();
    }
}

/// Our part of `ib_send_lat`: a message for a message.
pub fn run_lat(mut end: End, role: Role, port: u16) {
    let exchange = Exchange::begin(&mut end, role, port);
    let (mut posted, mut sent, mut received) = (0, 0, 0);
    let may_send = |posted, received| match role {
        Role::Client => posted <= received,
        Role::Server => posted < received,
    };
    while sent < MESSAGES || received < MESSAGES {
        if posted < MESSAGES && may_send(posted, received) {
            end.send(0, posted);
            posted += 1;
        }
        for done in end.done() {
            match done {
                Done::Sent(_) => sent += 1,
                Done::Received(..) => received += 1,
            }
        }
    }
    exchange.end();
}

/// Our part of `ib_send_bw`: the client sends, as fast as the queue takes it.
pub fn run_bw(mut end: End, role: Role, port: u16) {
    let exchange = Exchange::begin(&mut end, role, port);
    let (mut posted, mut done) = (0, 0);
    while done < MESSAGES {
        if role == Role::Client {
            while posted < MESSAGES && posted - done < REQUESTS as usize {
                end.send(0, posted);
                posted += 1;
            }
        }
        done += end.done().len();
    }
    exchange.end();
}

fn lat(kind: Kind, bytes: usize, role: Role) {
    run(("lat", kind, bytes), role, "ib_send_lat");
}

fn bw(kind: Kind, bytes: usize, role: Role) {
    run(("bw", kind, bytes), role, "ib_send_bw");
}

fn run(what: (&str, Kind, usize), role: Role, program: &str) {
    let (count, size) = (MESSAGES.to_string(), what.2.to_string());
    let transport = format!("{:?}", what.1).to_uppercase();
    let arguments = ["-F", "-c", &transport, "-n", &count, "-s", &size];
    let output = crate::run(what, role, program, &arguments);
    assert!(output.contains("#bytes"), "{output}");
}

mod latency {
    use super::lat;

    crate::roles! {
        lat:
        rc Rc 64 4096;
        uc Uc 64 4096;
        ud Ud 64 1024;
    }
}

mod bandwidth {
    use super::bw;

    // Not by other transports: messages that find no receive are lost.
    crate::roles! {
        bw:
        rc Rc 64 4096;
    }
}
