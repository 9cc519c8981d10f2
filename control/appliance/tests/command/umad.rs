//! Nodes whose MADs go through libibumad, as on an InfiniBand adapter. The genuine libibumad runs
//! over libumad2sim, which takes the kernel's place, and OpenSM manages the fabric.
//!
//! The data of such a node go by the software adapter at the same port. libumad2sim has no GRH, SL
//! or P_Key index: tests of the transport and of its messages have those.

use crate::running::{Ending, Running, TIMEOUT, output_of, preload};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Takes the CM class as another process does, while there is a file `taken`: at a port, the kernel
/// lets one agent have it, and libumad2sim lets all.
const CM_TAKEN: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <unistd.h>

int ioctl(int fd, unsigned long request, ...) {
    va_list arguments;
    va_start(arguments, request);
    unsigned char *registration = va_arg(arguments, unsigned char *);
    va_end(arguments);
    /* IB_USER_MAD_REGISTER_AGENT and IB_USER_MAD_REGISTER_AGENT2: where the class is. */
    int at = (request & 0xffff) == 0x1b01 ? 21 : (request & 0xffff) == 0x1b04 ? 8 : 0;
    if (at && registration[at] == 7 && access("taken", F_OK) == 0) {
        errno = EINVAL;
        return -1;
    }
    int (*next)(int, unsigned long, ...) = dlsym(RTLD_NEXT, "ioctl");
    return next(fd, request, registration);
}
"#;

/// The command, which has the feature `hca` where these tests have it.
const POLLUX: &str = env!("CARGO_BIN_EXE_pollux");

/// The key of an interface that connects.
const RC: &str = "mode = \"rc\"\n";

/// A fabric of three hosts, OpenSM at the last, and what nodes there are started with.
struct Bench {
    fabric: Running,
    _opensm: Ending,
    name: String,
    preload: PathBuf,
}

/// A node that runs.
struct Node {
    _child: Ending,
    socket: String,
}

impl Bench {
    /// `None` after having printed what is missing.
    fn new(test: &str) -> Option<Self> {
        let preload = preload(test)?;
        let name = format!("pollux-{}-{test}", std::process::id());
        let fabric = Running::unmanaged(test, &["--topology", "single:3", "--umad", &name]);
        let opensm = fabric.opensm(&preload, &name, "host3", &[]);
        Some(Self { fabric, _opensm: opensm, name, preload })
    }

    /// Starts a node at a host, with these keys. With `management` its MADs go by libumad2sim, to
    /// which another library may be preloaded.
    fn node(&self, host: u32, keys: &str, management: bool, other: Option<&Path>) -> Node {
        let device = self.fabric.port(host);
        let managed = if management { "management = \"umad:ibsim0\"\n" } else { "" };
        let text = format!(
            "[interface.ib0]\ndevice = {device:?}\n{managed}\
             address = [\"10.0.0.{host}/24\"]\n{keys}"
        );
        let (config, socket) = (format!("node{host}.toml"), format!("node{host}"));
        fs::write(self.fabric.folder.join(&config), text).expect("there is a folder");
        let mut command = Command::new(POLLUX);
        if management {
            command = self.with_libumad2sim(host, other);
        }
        command.args(["run", &config, "--socket", &socket]).current_dir(&self.fabric.folder);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        Node { _child: Ending(child.expect("it starts")), socket: self.fabric.path(&socket) }
    }
}

impl Bench {
    /// The command at a host, with libumad2sim, and before it perhaps another library.
    fn with_libumad2sim(&self, host: u32, other: Option<&Path>) -> Command {
        let libraries = other.into_iter().chain([&*self.preload]);
        let libraries: Vec<_> = libraries.map(|path| path.display().to_string()).collect();
        let mut command = Command::new(POLLUX);
        command.current_dir(&self.fabric.folder).stdin(Stdio::null());
        command.env("LD_PRELOAD", libraries.join(" ")).env("IBSIM_SOCKNAME", &self.name);
        // Requests of these classes are for the program there: SA (reports), and CM.
        command.env("SIM_HOST", format!("host{host}/3,7"));
        command
    }
}

/// Compiles a library from C.
fn library(folder: &Path, text: &str) -> PathBuf {
    let (source, library) = (folder.join("library.c"), folder.join("library.so"));
    fs::write(&source, text).expect("there is a folder");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).args([&library, &source]);
    assert!(compiler.status().expect("Rust needs it, too").success());
    library
}

impl Node {
    /// Asks until the answer has these words.
    fn until(&self, question: &[&str], words: &str) -> String {
        let begun = Instant::now();
        loop {
            let (_, answer) = output_of(&[question, &["--socket", &self.socket]].concat());
            if answer.contains(words) {
                return answer;
            }
            assert!(begun.elapsed() < TIMEOUT, "no {words:?} in {answer}");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }

    fn come_up(&self) {
        self.until(&["show", "interfaces", "--json"], "\"state\":\"up\"");
    }

    fn reach(&self, address: &str, size: &str) {
        let question = ["ping", address, "--count", "2", "--interval", "0.1", "--size", size];
        self.until(&question, "2 received, 0% packet loss");
    }
}

/// The node's own transport, unmodified, joins the broadcast group, resolves a path and connects.
#[test]
fn a_node_managed_by_libibumad_connects_to_one_with_queue_pair_1() {
    let test = "a_node_managed_by_libibumad_connects";
    let Some(bench) = Bench::new(test) else { return };
    let kernels = bench.node(1, RC, true, None);
    let own = bench.node(2, RC, false, None);
    kernels.come_up();
    own.come_up();
    kernels.reach("10.0.0.2", "56");
    kernels.reach("10.0.0.2", "60000");
    own.reach("10.0.0.1", "60000");
    kernels.until(&["show", "connections", "--json"], "\"open\"");
}

/// It sends a REQ, and it answers one: the other end sends no packets by connection of its own.
#[test]
fn a_node_managed_by_libibumad_has_either_role_of_a_connection() {
    let test = "a_node_managed_by_libibumad_has_either_role";
    let Some(bench) = Bench::new(test) else { return };
    for initiator in [1, 2] {
        let nodes = [1, 2].map(|host| {
            let datagrams = format!(
                "mode = \"rc\"\n[[interface.ib0.peer]]\naddress = \"10.0.0.{initiator}\"\n\
                 mode = \"ud\"\n"
            );
            let keys = if host == initiator { RC } else { &datagrams };
            bench.node(host, keys, host == 1, None)
        });
        nodes.iter().for_each(Node::come_up);
        let [own, other] = [initiator - 1, 2 - initiator].map(|nth| &nodes[nth as usize]);
        own.reach(&format!("10.0.0.{}", 3 - initiator), "56");
        for (node, role) in [(own, "active"), (other, "passive")] {
            let connections = node.until(&["show", "connections", "--json"], "\"open\"");
            let words = format!("\"role\":\"{role}\"");
            assert!(connections.contains(&words), "{connections}");
        }
    }
}

/// The kernel lets one agent have the CM class of a port. Another interface says so and how to free
/// it, and works once it is free; one without connections needs no CM.
#[test]
fn an_interface_waits_for_the_cm_class_that_another_agent_has() {
    let test = "an_interface_waits_for_the_cm_class";
    let Some(bench) = Bench::new(test) else { return };
    let other = library(&bench.fabric.folder, CM_TAKEN);
    fs::write(bench.fabric.folder.join("taken"), "").expect("it is ours");
    let datagrams = bench.node(1, "", true, Some(&other));
    let connected = bench.node(2, RC, true, Some(&other));
    datagrams.come_up();
    let doctor = |argument: &[&str]| {
        let mut command = bench.with_libumad2sim(1, Some(&other));
        let output = command.arg("doctor").args(argument).output().expect("it starts");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let taken = doctor(&[]);
    assert!(taken.contains("\nok   libibumad: sees ibsim0\n"), "{taken}");
    let advice = "\nwarn ibsim0:1: nodes cannot make connections at this port; ibsim0:1: the CM \
                  class is taken: ";
    assert!(taken.contains(advice), "{taken}");
    let rows = connected.until(&["show", "interfaces", "--json"], "\"state\":\"failed\"");
    for part in ["ibsim0:1: the CM class is taken: ", "fuser -v /dev/infiniband/umad*", "retrying"]
    {
        assert!(rows.contains(part), "no {part} in {rows}");
    }
    fs::remove_file(bench.fabric.folder.join("taken")).expect("it is ours");
    connected.come_up();
    let free = doctor(&["--json"]);
    assert!(free.contains("\"found\":\"the CM class is free\""), "{free}");
    datagrams.reach("10.0.0.2", "56");
}

/// There is libibumad, and nothing for it to open.
#[test]
fn the_doctor_says_what_to_do_where_there_is_no_adapter() {
    if Path::new("/sys/class/infiniband_mad").exists() {
        return println!("SKIP: there is an adapter");
    }
    let output = Command::new(POLLUX).arg("doctor").output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    for line in [
        "warn libibumad: sees no device; look for /sys/class/infiniband_mad/umad*: is ib_umad ",
        "warn devices: no RDMA device; load the driver of your adapter (mlx5_ib ...), or use ",
        "BAD  ib_umad: not loaded; modprobe ib_umad",
    ] {
        assert!(text.lines().any(|found| found.starts_with(line)), "no {line} in {text}");
    }
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(printed.contains("stop nodes on adapters"), "{printed}");
}
