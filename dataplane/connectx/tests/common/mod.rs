//! Programs at the hosts of a fabric of this process. `scripts/host-setup --hca` installs them.
#![allow(dead_code, reason = "not every file of tests needs all of it")]
#![expect(clippy::disallowed_methods, reason = "it starts other programs")]

use pollux_node::admin::client::Client;
use pollux_node::admin::rows::PortStatus;
use pollux_node::config::Prefix;
use pollux_node::fabric::Embedded;
use pollux_node::programs::{ProgramEnvironment, find_library};
use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// Ends a hang; no healthy run comes near it, even with a fiftieth of a processor.
pub const LIMIT: Duration = Duration::from_secs(900);
pub const STEP: Duration = Duration::from_millis(50);

/// The variable that programs of a test have, since some of them are functions of the tests.
const PROGRAM: &str = "POLLUX_TEST_PROGRAM";

/// Whether this process was started by [`Hosts::start`].
pub fn is_program() -> bool {
    std::env::var_os(PROGRAM).is_some()
}

pub struct Hosts {
    environments: Vec<ProgramEnvironment>,
    fabric: Option<Embedded>,
}

impl Hosts {
    pub fn new() -> Self {
        let fabric = Embedded::start("single:2").unwrap();
        let library = find_library().unwrap();
        let environment = |host| ProgramEnvironment::new(&fabric.port(host), "mlx5_0", &library);
        let environments = ["host1", "host2"].map(|host| environment(host).unwrap()).into();
        Self { environments, fabric: Some(fabric) }
    }

    /// Hosts with these addresses, for programs of librdmacm.
    pub fn with_addresses(addresses: &[&str; 2]) -> Self {
        let fabric = Embedded::start("single:2").unwrap();
        let library = find_library().unwrap();
        let environment = |host, address| {
            let (port, addresses) = (fabric.port(host), [Prefix::parse(address).unwrap()]);
            ProgramEnvironment::with_addresses(&port, "mlx5_0", &library, &addresses).unwrap()
        };
        let environments =
            vec![environment("host1", addresses[0]), environment("host2", addresses[1])];
        Self { environments, fabric: Some(fabric) }
    }

    /// Ends the fabric, as its process would end.
    pub fn end_fabric(&mut self) {
        self.fabric = None;
    }

    pub fn start(&self, host: usize, program: &str, arguments: &[&str]) -> Child {
        self.start_with(host, program, arguments, &[])
    }

    /// Starts a program with variables beside those of its host.
    pub fn start_with(
        &self,
        host: usize,
        program: &str,
        arguments: &[&str],
        others: &[(&str, &str)],
    ) -> Child {
        let variables = self.environments[host].variables().iter();
        let mut command = Command::new(program);
        command.args(arguments).envs(variables.map(|(name, value)| (name, value)));
        command.env(PROGRAM, "1").envs(others.iter().copied());
        spawn(&mut command)
    }

    /// Runs a program at one host as server, at the other as client; returns the client's output.
    pub fn run_pair(&self, program: &str, arguments: &[&str]) -> String {
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

    /// The variables of programs at a host.
    pub fn variables(&self, host: usize) -> &[(&'static str, String)] {
        self.environments[host].variables()
    }

    /// Packets that the ports of both hosts have sent.
    pub fn sent(&self) -> [u64; 2] {
        let fabric = self.fabric.as_ref().expect("it has not ended");
        let client = Client::new(&fabric.path(), LIMIT);
        let ports: Vec<PortStatus> = client.show(&mut |_, _| false).unwrap();
        ["host1:1", "host2:1"].map(|name| {
            let port = ports.iter().find(|port| port.port == name);
            port.unwrap_or_else(|| panic!("no {name} in {ports:?}")).sent
        })
    }
}

/// The variable by which each store to a doorbell or a record is judged.
pub const TRAP: (&str, &str) = ("POLLUX_TRAP", "1");

/// Of the output of a program with [`TRAP`]: the stores that were judged, and those out of order.
pub fn stores_of(output: &str) -> (u64, u64) {
    let mut lines = output.lines();
    let line = lines.find_map(|line| {
        line.strip_prefix("pollux-connectx: trap: ")?.split_once(" stores judged ")
    });
    let (judged, rest) = line.unwrap_or_else(|| panic!("no count of stores in:\n{output}"));
    let wrong = rest.rsplit_once(", ").and_then(|(_, rest)| rest.strip_suffix(" out of order"));
    (judged.parse().unwrap(), wrong.and_then(|wrong| wrong.parse().ok()).unwrap())
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

pub fn is_listening(port: &str) -> bool {
    let port = format!(":{:04X} ", port.parse::<u16>().unwrap());
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let rows = std::fs::read_to_string(table).unwrap();
        // The fourth column is the state; 0A is LISTEN.
        rows.lines().any(|row| row.contains(&port) && row.split_whitespace().nth(3) == Some("0A"))
    })
}

pub fn wait_until(mut is_so: impl FnMut() -> bool) {
    for _ in 0..LIMIT.as_millis() / STEP.as_millis() {
        if is_so() {
            return;
        }
        sleep(STEP);
    }
    panic!("not within {LIMIT:?}");
}

/// Starts a program whose output [`finish`] reads.
pub fn spawn(command: &mut Command) -> Child {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    child.unwrap_or_else(|error| panic!("{command:?}: {error}; run scripts/host-setup --hca"))
}

/// Whether a program ended with success, and its output.
pub fn finish(program: &str, mut child: Child) -> (bool, String) {
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
