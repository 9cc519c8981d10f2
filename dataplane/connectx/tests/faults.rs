//! Programs that fork, are killed, or lose their fabric.
//!
//! Programs of Debian, and this one: a test starts its own executable, preloaded, to run one of the
//! functions whose names begin with `child_`, which do nothing otherwise. These use the device by
//! the kernel's commands, since no program of Debian forks with the device open.
#![allow(unsafe_code, reason = "fork, and the doorbell pages of the device")]
#![expect(clippy::disallowed_methods, reason = "other programs are waited for, and it names them")]

mod common;
mod raw;

use common::{Hosts, finish, free_port, is_listening, is_program, wait_until};
use pollux_verbs::rng::SeededRng;
use raw::RawDevice;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command};
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::Duration;

/// Errors of commands, in the numbers of Linux.
const EIO: i32 = 5;
const EXIT_MAX_SECONDS: u32 = 60;

/// Runs a function of this file as a program at the first host.
fn run_child(name: &str) {
    let hosts = Hosts::new();
    let own = std::env::current_exe().unwrap();
    let arguments = ["--exact", name, "--nocapture"];
    let (success, output) = finish(name, hosts.start(0, own.to_str().unwrap(), &arguments));
    assert!(success && output.contains("1 passed"), "{output}");
}

/// Makes a child of fork(2) that ends with the result of a function; returns its exit code, or
/// `None` if a signal has ended it.
fn fork(child: impl FnOnce() -> i32) -> Option<i32> {
    // SAFETY: the child calls functions of libc that work in a child of a process with threads, and
    // this library, which is what is judged.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: the default action of the signal ends a child that hangs.
            unsafe { libc::alarm(EXIT_MAX_SECONDS) };
            std::process::exit(child());
        }
        pid => {
            let mut status = 0;
            // SAFETY: the status is a number to write to.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))
        }
    }
}

#[test]
fn child_forks_with_the_device_open() {
    if !is_program() {
        return;
    }
    let mut device = RawDevice::open().unwrap();
    let (first, second) = (device.qp(), device.qp());
    assert!(first.takes_a_doorbell(), "before the fork");
    let registered = device.region();
    registered.store(7, Ordering::Relaxed);
    let code = fork(|| {
        if registered.swap(8, Ordering::Relaxed) != 7 {
            return 4;
        }
        // The parent's files are no device here, and closing them is not its matter.
        if device.port_state().map_err(|error| error.raw_os_error()) != Err(Some(EIO)) {
            return 1;
        }
        let Ok(mut own) = RawDevice::open() else { return 2 };
        let qp = own.qp();
        if qp.qpn == second.qpn || !qp.takes_a_doorbell() {
            return 3;
        }
        drop((own, device.file.take()));
        0
    });
    assert_eq!(code, Some(0));
    assert_eq!(registered.load(Ordering::Relaxed), 7, "the child wrote to the parent's memory");
    assert_eq!(device.port_state().unwrap(), raw::PORT_ACTIVE);
    assert!(second.takes_a_doorbell(), "after the child's end");
}

#[test]
fn a_child_of_fork_has_an_adapter_of_its_own_and_harms_its_parent_in_nothing() {
    run_child("child_forks_with_the_device_open");
}

#[test]
fn child_forks_while_threads_use_the_device() {
    if !is_program() {
        return;
    }
    const FORKS: u32 = 100;
    let device = RawDevice::open().unwrap();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let busy = || {
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(device.port_state().unwrap(), raw::PORT_ACTIVE);
            }
        };
        scope.spawn(busy);
        scope.spawn(busy);
        for nth in 0..FORKS {
            // Every tenth opens the device; the others need its lock for nothing but this error.
            let code = fork(|| match device.port_state() {
                Err(error) if error.raw_os_error() == Some(EIO) => match nth % 10 {
                    0 => RawDevice::open().is_err().into(),
                    _ => 0,
                },
                _ => 2,
            });
            assert_eq!(code, Some(0), "child {nth}");
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_fork_at_any_instant_leaves_no_lock_behind() {
    run_child("child_forks_while_threads_use_the_device");
}

#[test]
fn child_executes_programs_with_the_device_open() {
    if !is_program() {
        return;
    }
    let mut device = RawDevice::open().unwrap();
    let qp = device.qp();
    let output = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let port = output("ibv_devinfo", &[]);
    assert!(port.contains("PORT_ACTIVE"), "{port}");
    // No descriptor of the device is inherited: files in memory, sockets, and others without a
    // name.
    let open = output("ls", &["-l", "/proc/self/fd"]);
    for kind in ["memfd", "socket", "anon_inode"] {
        assert!(!open.contains(kind), "{open}");
    }
    assert!(qp.takes_a_doorbell(), "after the programs");
}

#[test]
fn a_program_with_the_device_open_executes_another_one() {
    run_child("child_executes_programs_with_the_device_open");
}

#[test]
fn child_gives_the_management_device_no_buffer() {
    if !is_program() {
        return;
    }
    let mut options = fs::OpenOptions::new();
    let file = options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
    let file = file.open("/dev/infiniband/umad0").unwrap();
    let (fd, none) = (file.as_raw_fd(), std::ptr::null_mut());
    for (bytes, expected) in [(0, libc::EINVAL), (64, libc::EFAULT), (usize::MAX, libc::EINVAL)] {
        // SAFETY: the device refuses a buffer that is not there.
        let written = unsafe { libc::write(fd, none, bytes) };
        assert_eq!((written, errno()), (-1, expected), "write of {bytes}");
    }
    for bytes in [0, 64, usize::MAX] {
        // SAFETY: as above.
        assert_eq!(unsafe { libc::read(fd, none, bytes) }, -1, "read of {bytes}");
    }
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

#[test]
fn a_buffer_that_is_not_there_is_an_error() {
    run_child("child_gives_the_management_device_no_buffer");
}

/// The number of descriptors of this process, which has the fabric.
fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Starts a server and a client of perftest, which are connected and have more to write than any
/// test waits for.
fn start_writers(hosts: &Hosts) -> [Child; 2] {
    let port = free_port().to_string();
    let arguments = ["-F", "-n", "100000000", "-s", "4096", "-p", &port];
    let mut server = hosts.start(0, "ib_write_bw", &arguments);
    wait_until(|| is_listening(&port) || server.try_wait().unwrap().is_some());
    let client = hosts.start(1, "ib_write_bw", &[&arguments[..], &["127.0.0.1"]].concat());
    // A server without a client would wait for one for ever.
    wait_until(|| !is_listening(&port));
    [client, server]
}

#[test]
fn a_program_that_is_killed_at_any_instant_costs_its_peer_an_error_and_others_nothing() {
    const KILLS: u64 = 4;
    /// Of the setup behind the connection, and of traffic.
    const LIFE_MAX_MS: u64 = 1500;
    let hosts = Hosts::new();
    hosts.run_pair("ib_write_bw", &["-F", "-n", "100"]);
    let before = open_descriptors();
    for seed in 0..KILLS {
        let mut rng = SeededRng::new(seed);
        let mut pair = start_writers(&hosts);
        sleep(Duration::from_millis(rng.below(LIFE_MAX_MS)));
        let victim = rng.below(2) as usize;
        pair[victim].kill().unwrap();
        let [client, server] = pair;
        let results = [finish("client", client), finish("server", server)];
        let (is_success, output) = &results[1 - victim];
        assert!(!is_success && !output.contains("not within"), "seed {seed}: {output}");
    }
    hosts.run_pair("ib_write_bw", &["-F", "-n", "100"]);
    // The fabric has nothing left of them: no connection, no shared memory.
    wait_until(|| open_descriptors() <= before);
}

#[test]
fn programs_end_with_errors_when_their_fabric_dies() {
    let mut hosts = Hosts::new();
    let [client, mut server] = start_writers(&hosts);
    sleep(Duration::from_millis(500));
    assert!(server.try_wait().unwrap().is_none(), "{}", finish("server", server).1);
    hosts.end_fabric();
    for (name, child) in [("client", client), ("server", server)] {
        let (is_success, output) = finish(name, child);
        assert!(!is_success && !output.contains("not within"), "{output}");
        assert!(output.contains("the fabric has ended"), "{output}");
    }
}

/// Ticks of the processor that a process has used.
fn cpu_ticks(pid: u32) -> u64 {
    let row = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<_> = row.rsplit(')').next().unwrap().split_whitespace().collect();
    // Fields 14 and 15 of proc(5), of which the first two are before the parenthesis.
    [11, 12].iter().map(|field| fields[*field].parse::<u64>().unwrap()).sum()
}

#[test]
fn a_program_is_told_that_its_device_has_failed_and_sleeps() {
    /// Of 100 in a second.
    const IDLE_TICKS_MAX: u64 = 20;
    let mut hosts = Hosts::new();
    let mut watch = hosts.start(0, "stdbuf", &["-oL", "ibv_asyncwatch"]);
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut line = || lines.next().expect("ibv_asyncwatch has ended").unwrap();
    assert!(line().contains("async event FD"));
    hosts.end_fabric();
    while !line().contains("IBV_EVENT_DEVICE_FATAL") {}
    let before = cpu_ticks(watch.id());
    sleep(Duration::from_secs(1));
    let ticks = cpu_ticks(watch.id()) - before;
    assert!(ticks < IDLE_TICKS_MAX, "{ticks} ticks while there is nothing to do");
    watch.kill().unwrap();
    watch.wait().unwrap();
}
