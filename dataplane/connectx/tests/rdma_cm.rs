//! `rping` of librdmacm, as Debian has it, at two hosts with IP addresses. No TCP is between them.
//!
//! `scripts/host-setup --hca` installs them.
#![expect(clippy::disallowed_methods, reason = "it waits for other programs")]

mod common;

use common::{Hosts, STEP, finish};
use std::process::Child;
use std::thread::sleep;

const SERVER: &str = "10.0.0.1";

fn hosts() -> Hosts {
    Hosts::with_addresses(&["10.0.0.1/24", "10.0.0.2/24"])
}

/// Starts clients one after the other until one finds the server listening; returns its output.
fn client_of(hosts: &Hosts, host: usize, server: &mut Child, program: &[&str]) -> String {
    loop {
        let (success, output) = finish(program[0], hosts.start(host, program[0], &program[1..]));
        if success {
            return output;
        }
        assert_eq!(server.try_wait().unwrap(), None, "the server has ended; its client: {output}");
        sleep(STEP);
    }
}

/// Runs a server at the first host and a client at this host; returns the client's output.
fn run(hosts: &Hosts, host: usize, server: &[&str], client: &[&str]) -> String {
    let mut child = hosts.start(0, server[0], &server[1..]);
    let output = client_of(hosts, host, &mut child, client);
    let (success, of_server) = finish(server[0], child);
    assert!(success, "{of_server}\n{output}");
    output
}

mod rping {
    use super::{SERVER, hosts, run};

    #[test]
    fn connects_by_address_and_checks_what_comes_back() {
        let (hosts, count) = (hosts(), ["-C", "100", "-v", "-V"]);
        for host in [1, 0] {
            let server = [&["rping", "-s"][..], &count].concat();
            let client = [&["rping", "-c", "-a", SERVER][..], &count].concat();
            let output = run(&hosts, host, &server, &client);
            assert_eq!(output.matches("ping data: rdma-ping-").count(), 100, "{output}");
        }
    }

    #[test]
    fn is_told_of_a_port_without_a_listener_and_of_an_absent_host() {
        let hosts = hosts();
        for (address, event) in
            [(SERVER, "RDMA_CM_EVENT_REJECTED"), ("10.0.0.9", "RDMA_CM_EVENT_ADDR_ERROR")]
        {
            let child = hosts.start(1, "rping", &["-c", "-a", address, "-C", "1"]);
            let (success, output) = super::finish("rping", child);
            assert!(!success && output.contains(event), "{output}");
        }
    }
}

#[test]
fn a_killed_program_disconnects_its_peer_and_leaves_its_port() {
    let hosts = hosts();
    let mut server = hosts.start(0, "rping", &["-s", "-C", "1000000000"]);
    let mut client = hosts.start(1, "rping", &["-c", "-a", SERVER, "-C", "1000000000"]);
    // The client ends by itself until the server listens.
    let before = hosts.sent();
    while hosts.sent()[1] < before[1] + 100 {
        if client.try_wait().unwrap().is_some() {
            client = hosts.start(1, "rping", &["-c", "-a", SERVER, "-C", "1000000000"]);
        }
        sleep(STEP);
    }
    client.kill().unwrap();
    client.wait().unwrap();
    let (_, output) = finish("rping", server);
    assert!(output.contains("server DISCONNECT EVENT"), "{output}");
    // The server's end has freed the port.
    server = hosts.start(0, "rping", &["-s", "-C", "10"]);
    let client = ["rping", "-c", "-a", SERVER, "-C", "10"];
    client_of(&hosts, 1, &mut server, &client);
    assert!(finish("rping", server).0);
}
