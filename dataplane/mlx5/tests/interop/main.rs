//! Our rings in one process against programs of rdma-core and perftest in another, as their client
//! and as their server: `ibv_rc_pingpong` and its like, `ib_send_lat` and `ib_send_bw`.
//!
//! A test starts this program again, in the environment in which libibverbs finds the adapter.
#![expect(clippy::disallowed_methods, reason = "programs of a test are told so by variables")]

#[path = "../../../connectx/tests/common/mod.rs"]
mod common;
mod end;
mod perftest;
mod pingpong;
#[path = "../../src/device/tests/states.rs"]
mod states;

use common::{Hosts, finish, free_port, is_listening, is_program, wait_until};
use end::{End, Kind};
use std::net::{TcpListener, TcpStream};

/// What the program is: the other's program, a kind, the bytes of a message, its role, and the port
/// at which addresses are exchanged.
const VARIABLE: &str = "POLLUX_TEST_INTEROP";

/// Which end of that exchange this process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Client,
    Server,
}

impl Role {
    /// The connection with the other.
    fn stream(self, port: u16) -> TcpStream {
        match self {
            Self::Client => TcpStream::connect(("127.0.0.1", port)).unwrap(),
            Self::Server => TcpListener::bind(("0.0.0.0", port)).unwrap().accept().unwrap().0,
        }
    }
}

#[test]
fn program_of_one_end() {
    if !is_program() {
        return;
    }
    let what = std::env::var(VARIABLE).unwrap();
    let what: Vec<_> = what.split(' ').collect();
    let [program, kind, bytes, role, port] = what[..] else { panic!("{what:?}") };
    let kind = [Kind::Rc, Kind::Uc, Kind::Ud, Kind::Srq]
        .into_iter()
        .find(|one| format!("{one:?}") == kind)
        .unwrap();
    let role = if role == "Client" { Role::Client } else { Role::Server };
    let end = End::new(kind, bytes.parse().unwrap());
    let port = port.parse().unwrap();
    match program {
        "pingpong" => pingpong::run(end, role, port),
        "lat" => perftest::run_lat(end, role, port),
        _ => perftest::run_bw(end, role, port),
    }
}

/// Runs our program at one host, in a role, and another with these arguments at the other; returns
/// the other's output.
fn run(what: (&str, Kind, usize), role: Role, other: &str, arguments: &[&str]) -> String {
    let hosts = Hosts::new();
    let port = free_port().to_string();
    let own = std::env::current_exe().unwrap();
    let start_ours = || {
        let (program, kind, bytes) = what;
        let what = format!("{program} {kind:?} {bytes} {role:?} {port}");
        let arguments = ["--exact", "program_of_one_end", "--nocapture"];
        hosts.start_with(0, own.to_str().unwrap(), &arguments, &[(VARIABLE, &what)])
    };
    let start_theirs =
        |server: &[&str]| hosts.start(1, other, &[arguments, &["-p", &port], server].concat());
    let (ours, mut theirs) = match role {
        Role::Client => {
            let mut theirs = start_theirs(&[]);
            wait_until(|| is_listening(&port) || theirs.try_wait().unwrap().is_some());
            (start_ours(), theirs)
        }
        Role::Server => {
            let mut ours = start_ours();
            wait_until(|| is_listening(&port) || ours.try_wait().unwrap().is_some());
            (ours, start_theirs(&["127.0.0.1"]))
        }
    };
    let (is_ours_right, ours) = finish("our rings", ours);
    if !is_ours_right {
        // It would wait for ours.
        theirs.kill().unwrap();
    }
    let (is_theirs_right, theirs) = finish(other, theirs);
    let are_right = is_ours_right && is_theirs_right && ours.contains("1 passed");
    assert!(are_right, "{ours}\n{theirs}");
    theirs
}

/// Tests in both roles, with messages of these bytes.
macro_rules! roles {
    ($run:ident: $($name:ident $kind:ident $($bytes:literal)+;)+) => {
        $(mod $name {
            use super::$run;
            use crate::Role::{Client, Server};
            use crate::end::Kind;

            #[test]
            fn is_our_server() {
                $($run(Kind::$kind, $bytes, Client);)+
            }

            #[test]
            fn is_our_client() {
                $($run(Kind::$kind, $bytes, Server);)+
            }
        })+
    };
}
use roles;
