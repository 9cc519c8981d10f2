//! Unmodified programs of Debian on the ConnectX in software: libibverbs and libmlx5 as they are,
//! `ibv_devinfo`, the pingpongs of libibverbs, and perftest.
//!
//! Each pair of programs is at two hosts of a fabric of this process. `scripts/host-setup --hca`
//! installs the programs.
#![expect(clippy::disallowed_methods, reason = "other programs are waited for")]

use pollux_node::fabric::Embedded;
use pollux_node::programs::{ProgramEnvironment, find_library};
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// Ends a hang; no healthy run comes near it.
const LIMIT: Duration = Duration::from_secs(120);
const STEP: Duration = Duration::from_millis(50);

struct Hosts {
    environments: Vec<ProgramEnvironment>,
    _fabric: Embedded,
}

impl Hosts {
    fn new() -> Self {
        let fabric = Embedded::start("single:2").unwrap();
        let library = find_library().unwrap();
        let environment = |host| ProgramEnvironment::new(&fabric.port(host), "mlx5_0", &library);
        let environments = ["host1", "host2"].map(|host| environment(host).unwrap()).into();
        Self { environments, _fabric: fabric }
    }

    fn start(&self, host: usize, program: &str, arguments: &[&str]) -> Child {
        let variables = self.environments[host].variables().iter();
        let mut command = Command::new(program);
        command.args(arguments).envs(variables.map(|(name, value)| (name, value)));
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        child.unwrap_or_else(|error| panic!("{program}: {error}; run scripts/host-setup --hca"))
    }

    /// Runs a program at one host as server, at the other as client; returns the client's output.
    fn run_pair(&self, program: &str, arguments: &[&str]) -> String {
        let port = free_port().to_string();
        let arguments = [arguments, &["-p", &port]].concat();
        let mut server = self.start(0, program, &arguments);
        // A connection ends the server's wait for its client, so its socket is looked up instead.
        wait_until(|| is_listening(&port) || server.try_wait().unwrap().is_some());
        let client = self.start(1, program, &[&arguments[..], &["127.0.0.1"]].concat());
        let [client, server] = [client, server].map(|child| finish(program, child));
        assert_eq!((client.0, server.0), (true, true), "{}\n{}", client.1, server.1);
        client.1
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn is_listening(port: &str) -> bool {
    let port = format!(":{:04X} ", port.parse::<u16>().unwrap());
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let rows = std::fs::read_to_string(table).unwrap();
        // The fourth column is the state; 0A is LISTEN.
        rows.lines().any(|row| row.contains(&port) && row.split_whitespace().nth(3) == Some("0A"))
    })
}

fn wait_until(mut is_so: impl FnMut() -> bool) {
    for _ in 0..LIMIT.as_millis() / STEP.as_millis() {
        if is_so() {
            return;
        }
        sleep(STEP);
    }
    panic!("not within {LIMIT:?}");
}

/// Whether a program ended with success, and its output.
fn finish(program: &str, mut child: Child) -> (bool, String) {
    let mut pipes = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let reader = std::thread::spawn(move || {
        let mut output = String::new();
        pipes.0.read_to_string(&mut output).unwrap();
        pipes.1.read_to_string(&mut output).unwrap();
        output
    });
    for _ in 0..LIMIT.as_millis() / STEP.as_millis() {
        if let Some(status) = child.try_wait().unwrap() {
            return (status.success(), format!("{program}: {}", reader.join().unwrap()));
        }
        sleep(STEP);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    (false, format!("{program}: not within {LIMIT:?}: {}", reader.join().unwrap()))
}

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
