//! The pingpongs of libibverbs: `ibv_rc_pingpong`, `ibv_uc_pingpong`, `ibv_ud_pingpong` and
//! `ibv_srq_pingpong`.
//!
//! Each side sends when its message before has gone and the other's has arrived. The others answer
//! out of the buffer that they received into, so ours come back, and are compared.

use crate::Role;
use crate::end::{Address, Done, End, Kind};
use pollux_wire::address::{Lid, Qpn};
use std::io::{Read, Write};
use std::net::TcpStream;

const ROUND_TRIPS: usize = 500;
/// Addresses that the pingpong with a shared receive queue exchanges; those beyond its queue pairs
/// are zero.
const SHARED_ADDRESSES: usize = 256;
/// Of a text: LID, QPN, PSN and GID in hexadecimal digits, and a null byte.
const TEXT_BYTES: usize = 4 + 1 + 6 + 1 + 6 + 1 + 32 + 1;

fn text(address: &Address) -> Vec<u8> {
    let Address { lid, qpn, psn } = address;
    format!("{:04x}:{:06x}:{psn:06x}:{:032x}\0", lid.0, qpn.0, 0).into()
}

fn address(text: &[u8]) -> Address {
    let text = std::str::from_utf8(text).unwrap();
    let mut numbers = text.split(':').map(|number| u32::from_str_radix(number, 16));
    let mut next = || numbers.next().unwrap().unwrap();
    Address { lid: Lid(next() as u16), qpn: Qpn(next()), psn: next() }
}

/// Exchanges addresses, and connects before the other may send.
fn connect(end: &mut End, role: Role, port: u16) {
    const DONE: &[u8; 5] = b"done\0";
    let (own, mut stream) = (end.addresses(), role.stream(port));
    let count = if end.kind == Kind::Srq { SHARED_ADDRESSES } else { 1 };
    let unused = Address { lid: Lid(0), qpn: Qpn(0), psn: 0 };
    let texts = (0..count).flat_map(|nth| text(own.get(nth).unwrap_or(&unused)));
    let texts: Vec<u8> = texts.collect();
    let mut read = |stream: &mut TcpStream| {
        let mut texts = vec![0; count * TEXT_BYTES];
        stream.read_exact(&mut texts).unwrap();
        end.connect(&texts.chunks(TEXT_BYTES).map(address).collect::<Vec<_>>());
    };
    match role {
        Role::Client => {
            stream.write_all(&texts).unwrap();
            read(&mut stream);
            stream.write_all(DONE).unwrap();
        }
        Role::Server => {
            read(&mut stream);
            stream.write_all(&texts).unwrap();
            let mut done = [0; DONE.len()];
            stream.read_exact(&mut done).unwrap();
            assert_eq!(&done, DONE);
        }
    }
}

/// What a queue pair waits for before it sends, and how many messages it has sent and received.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    sends: bool,
    receives: bool,
    sent: usize,
    received: usize,
}

/// Our part.
pub fn run(mut end: End, role: Role, port: u16) {
    connect(&mut end, role, port);
    let is_client = role == Role::Client;
    let mut turns = vec![Turn { receives: true, ..Turn::default() }; end.qps()];
    if is_client {
        for (nth, turn) in turns.iter_mut().enumerate() {
            end.send(nth, 0);
            (turn.sends, turn.sent) = (true, 1);
        }
    }
    let (mut sent, mut received) = (0, 0);
    while sent < ROUND_TRIPS || received < ROUND_TRIPS {
        for done in end.done() {
            let nth = match done {
                Done::Sent(nth) => {
                    turns[nth].sends = false;
                    sent += 1;
                    nth
                }
                Done::Received(nth, message) => {
                    let Turn { received: number, .. } = turns[nth];
                    let own = if is_client { Some(number) } else { number.checked_sub(1) };
                    // With several queue pairs, the other has one buffer for all.
                    if let (Some(number), true) = (own, end.kind != Kind::Srq) {
                        assert_eq!(message, end.message(number), "message {number}");
                    }
                    (turns[nth].receives, turns[nth].received) = (false, number + 1);
                    received += 1;
                    nth
                }
            };
            let turn = &mut turns[nth];
            if sent < ROUND_TRIPS && !turn.sends && !turn.receives {
                end.send(nth, turn.sent);
                *turn = Turn { sends: true, receives: true, sent: turn.sent + 1, ..*turn };
            }
        }
    }
}

fn play(kind: Kind, bytes: usize, role: Role) {
    let program = match kind {
        Kind::Rc => "ibv_rc_pingpong",
        Kind::Uc => "ibv_uc_pingpong",
        Kind::Ud => "ibv_ud_pingpong",
        Kind::Srq => "ibv_srq_pingpong",
    };
    let (count, size) = (ROUND_TRIPS.to_string(), bytes.to_string());
    let arguments = ["-e", "-n", &count, "-s", &size];
    let output = crate::run(("pingpong", kind, bytes), role, program, &arguments);
    assert!(output.contains(&format!("{count} iters in")), "{output}");
}

// Inline, and of several packets but for datagrams.
crate::roles! {
    play:
    rc Rc 64 4096;
    uc Uc 64 4096;
    ud Ud 64 1024;
    srq Srq 64 4096;
}
