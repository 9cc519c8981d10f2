//! Unmodified programs of Debian on the ConnectX in software: libibverbs and libmlx5 as they are,
//! `ibv_devinfo`, the pingpongs of libibverbs, and perftest.
//!
//! Each pair of programs is at two hosts of a fabric of this process. `scripts/host-setup --hca`
//! installs the programs.

mod common;

use common::{Hosts, finish, free_port, is_listening, wait_until};
use std::net::TcpStream;

#[test]
fn devinfo_prints_the_port_of_the_fabric() {
    let hosts = Hosts::new();
    let (success, output) = finish("ibv_devinfo", hosts.start(1, "ibv_devinfo", &["-v"]));
    assert!(success, "{output}");
    for part in ["mlx5_0", "PORT_ACTIVE (4)", "port_lid:\t\t3", "ATOMIC_HCA", "GID[  0]"] {
        assert!(output.contains(part), "no {part:?} in:\n{output}");
    }
}

#[test]
fn pingpongs_run_with_events_and_checked_contents() {
    let hosts = Hosts::new();
    for program in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"] {
        let checks: &[&str] = if program == "ibv_srq_pingpong" { &[] } else { &["-c"] };
        let output = hosts.run_pair(program, &[&["-e", "-n", "500"], checks].concat());
        assert!(output.contains("500 iters in"), "{output}");
    }
    let output = hosts.run_pair("ibv_rc_pingpong", &["-c", "-n", "50", "-s", "300000"]);
    assert!(output.contains("50 iters in"), "{output}");
}

#[test]
fn perftest_sends_writes_reads_and_adds() {
    let hosts = Hosts::new();
    for arguments in [
        "ib_send_lat -F -n 200 -s 64 -I 64",
        // Not ib_send_bw of UD: its server waits for ever for a datagram that was lost.
        "ib_send_lat -F -n 200 -c UD",
        "ib_send_bw -F -n 100 -s 64 -r 128 --use-srq -b -q 4",
        "ib_write_bw -F -n 100 -q 40",
        "ib_read_bw -F -n 100 -s 65536",
        "ib_atomic_lat -F -n 100",
    ] {
        let mut words = arguments.split(' ');
        let program = words.next().unwrap();
        let output = hosts.run_pair(program, &words.collect::<Vec<_>>());
        assert!(output.contains("#bytes"), "{output}");
    }
}

#[test]
fn a_killed_program_leaves_its_port_to_the_next() {
    let hosts = Hosts::new();
    let port = free_port().to_string();
    let mut killed = hosts.start(0, "ibv_rc_pingpong", &["-p", &port]);
    wait_until(|| is_listening(&port));
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert!(TcpStream::connect(("127.0.0.1", port.parse().unwrap())).is_err());
    let output = hosts.run_pair("ibv_rc_pingpong", &["-n", "100", "-e"]);
    assert!(output.contains("100 iters in"), "{output}");
}
