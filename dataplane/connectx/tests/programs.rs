//! Unmodified programs of Debian on the ConnectX in software: libibverbs and libmlx5 as they are,
//! `ibv_devinfo`, the pingpongs of libibverbs, and perftest.
//!
//! Each pair of programs is at two hosts of a fabric of this process. `scripts/host-setup --hca`
//! installs the programs.

mod common;

use common::{Hosts, finish, free_port, is_listening, wait_until};
use std::net::TcpStream;

mod ibv_devinfo {
    use super::{Hosts, finish};

    #[test]
    fn prints_the_port_of_the_fabric() {
        let hosts = Hosts::new();
        let (success, output) = finish("ibv_devinfo", hosts.start(1, "ibv_devinfo", &["-v"]));
        assert!(success, "{output}");
        for part in ["mlx5_0", "PORT_ACTIVE (4)", "port_lid:\t\t3", "ATOMIC_HCA", "GID[  0]"] {
            assert!(output.contains(part), "no {part:?} in:\n{output}");
        }
    }
}

/// Tests of programs that run at both hosts: the arguments, and what the client prints at its end.
macro_rules! pairs {
    ($($program:ident { $($test:ident: $arguments:literal => $end:literal;)+ })+) => {
        $(mod $program {
            $(#[test]
            fn $test() {
                let arguments = $arguments.split(' ').collect::<Vec<_>>();
                let output = super::Hosts::new().run_pair(stringify!($program), &arguments);
                assert!(output.contains($end), "{output}");
            })+
        })+
    };
}

pairs! {
    ibv_rc_pingpong {
        runs_with_events_and_checked_contents: "-e -n 500 -c" => "500 iters in";
        runs_with_messages_of_many_packets: "-c -n 50 -s 300000" => "50 iters in";
    }
    ibv_uc_pingpong {
        runs_with_events_and_checked_contents: "-e -n 500 -c" => "500 iters in";
    }
    ibv_ud_pingpong {
        runs_with_events_and_checked_contents: "-e -n 500 -c" => "500 iters in";
    }
    ibv_srq_pingpong {
        runs_with_events: "-e -n 500" => "500 iters in";
    }
    ib_send_lat {
        sends_inline_messages: "-F -n 200 -s 64 -I 64" => "#bytes";
        sends_datagrams: "-F -n 200 -c UD" => "#bytes";
    }
    // Not of UD: its server waits for ever for a datagram that was lost.
    ib_send_bw {
        sends_both_ways_to_shared_receive_queues:
            "-F -n 100 -s 64 -r 128 --use-srq -b -q 4" => "#bytes";
    }
    ib_write_bw {
        writes_by_forty_queue_pairs: "-F -n 100 -q 40" => "#bytes";
    }
    ib_read_bw {
        reads_messages_of_many_packets: "-F -n 100 -s 65536" => "#bytes";
    }
    ib_atomic_lat {
        adds: "-F -n 100" => "#bytes";
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
