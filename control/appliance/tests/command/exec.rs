//! `pollux exec`: what programs find in place of `/sys`, and what they are told is missing.

use crate::running::{Running, output_of, pollux};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Output, Stdio};

/// Repeats a command until it succeeds, for a minute at most.
const WITHIN_A_MINUTE: &str = "within_a_minute() { \
    for _ in $(seq 600); do if \"$@\"; then return; fi; sleep 0.1; done; exit 9; }; \
    port=$SYSFS_PATH/class/infiniband/mlx5_0/ports/1; ";

/// Requests that an adapter does not know: a command, a transport, a page, and a command by ioctl.
const REQUESTS: &str = r"
import ctypes, fcntl, mmap, os, struct
answer = ctypes.create_string_buffer(64)
at = ctypes.addressof(answer)
fd = os.open('/dev/infiniband/uverbs0', os.O_RDWR)
for request in [
    lambda: os.write(fd, struct.pack('=IHHQ', 23, 4, 4, 0)),
    lambda: os.write(fd, struct.pack('=IHHQ45sBH', 24, 16, 8, at, b'', 8, 0)),
    lambda: mmap.mmap(fd, 4096, offset=(8 << 8) * 4096),
    lambda: fcntl.ioctl(fd, 0xc0181b01, struct.pack('=HHHHQII', 24, 13, 0, 0, 0, 1, 0)),
]:
    for _ in range(2):
        try:
            request()
            raise SystemExit('it succeeded')
        except OSError:
            pass
";

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("one is free");
    listener.local_addr().expect("it is bound").port()
}

fn doctor(program: &[&str]) -> (Option<i32>, String) {
    let command = [&["exec", "--doctor", "--"], program].concat();
    let Output { status, stderr, .. } = pollux(&command).output().expect("it starts");
    (status.code(), String::from_utf8_lossy(&stderr).into_owned())
}

#[test]
fn the_doctor_lists_requests_of_a_program_that_the_adapter_does_not_have() {
    let test = "the_doctor_lists_requests";
    let Some(_) = pollux_referee::program(test, "python3") else { return };
    let (code, printed) = doctor(&["python3", "-c", REQUESTS]);
    assert_eq!(code, Some(0), "{printed}");
    assert_eq!(
        printed.lines().collect::<Vec<_>>(),
        [
            "mmap of kind 8 (DEVICE_MEM)",
            "uverbs command 23 (REQ_NOTIFY_CQ): EOPNOTSUPP",
            "uverbs command 24 (CREATE_QP), QP type 8 (RAW_PACKET): EOPNOTSUPP",
            "uverbs ioctl: object 13 (FLOW_ACTION), method 0: EPROTONOSUPPORT",
        ]
        .map(|request| format!("pollux: missing, asked for 2 times: {request}"))
    );
}

#[test]
fn the_doctor_lists_files_that_are_not_there() {
    let (code, printed) = doctor(&[
        "sh",
        "-c",
        "cat /dev/infiniband/rdma_cm; cat $SYSFS_PATH/class/infiniband/mlx5_0/none; cat /none; \
         exit 7",
    ]);
    assert_eq!(code, Some(7), "{printed}");
    let own: Vec<_> = printed.lines().filter_map(|line| line.strip_prefix("pollux: ")).collect();
    assert_eq!(
        own,
        [
            "the program did not open the adapter",
            "missing, asked for once: /dev/infiniband/rdma_cm",
            "missing, asked for once: /sys/class/infiniband/mlx5_0/none",
        ]
    );
}

#[test]
fn the_doctor_finds_nothing_missing_for_ibv_devinfo() {
    let test = "the_doctor_finds_nothing_missing";
    let Some(_) = pollux_referee::program_of(test, "ibv_devinfo", "--hca") else { return };
    let (code, printed) = doctor(&["ibv_devinfo", "-v"]);
    assert_eq!((code, &*printed), (Some(0), "pollux: nothing was missing\n"));
}

#[test]
fn files_of_the_port_follow_its_counters_and_its_state() {
    let test = "files_of_the_port_follow";
    let Some(_) = pollux_referee::program_of(test, "ibv_rc_pingpong", "--hca") else { return };
    let fabric = Running::new("exec-files", &["--topology", "single:2"]);
    let socket = fabric.path("socket");
    let exec = |node, script: &str| {
        let script = format!("{WITHIN_A_MINUTE}{script}");
        pollux(&["exec", "--fabric", &socket, "--node", node, "--", "sh", "-c", &script])
    };
    let tcp = free_port();
    let pingpong = format!("ibv_rc_pingpong -n 1000 -s 4096 -p {tcp}");
    let mut server = exec("host1", &pingpong).stdout(Stdio::null()).spawn().expect("it starts");

    // A counter of data has units of four bytes.
    let script = format!(
        "grep -q ACTIVE $port/state || exit 3; \
         within_a_minute {pingpong} localhost >&2; \
         are_counted() {{ test $(cat $port/counters/port_$1_data) -ge 1024000; }}; \
         within_a_minute are_counted xmit; within_a_minute are_counted rcv; \
         cat $port/state $port/phys_state $port/rate $port/lid $port/counters/port_xmit_discards"
    );
    let Output { status, stdout, stderr } = exec("host2", &script).output().expect("it starts");
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    let printed = String::from_utf8_lossy(&stdout);
    assert_eq!(printed, "4: ACTIVE\n5: LinkUp\n100 Gb/sec (4X EDR)\n0x3\n0\n");
    assert!(server.wait().expect("it is ours").success());

    // It says when it has begun, since the fabric must not end before.
    let script = "echo begun; within_a_minute grep DOWN $port/state";
    let mut waiting = exec("host1", script).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut output = BufReader::new(waiting.stdout.take().expect("it is piped"));
    let mut lines = [(); 2].map(|()| String::new());
    output.read_line(&mut lines[0]).expect("it says so");
    drop(fabric);
    output.read_line(&mut lines[1]).expect("it says so");
    assert_eq!(lines, ["begun\n", "1: DOWN\n"]);
    assert!(waiting.wait().expect("it is ours").success());
}

#[test]
fn programs_of_a_host_with_an_address_connect_by_it() {
    let test = "programs_of_a_host_with_an_address";
    let Some(_) = pollux_referee::program_of(test, "rping", "--hca") else { return };
    let script = format!(
        "{WITHIN_A_MINUTE} rping -s -C 10 & \
         within_a_minute rping -c -a 10.0.0.7 -C 10 && wait $!"
    );
    let arguments = ["exec", "--doctor", "--address", "10.0.0.7/24", "--", "sh", "-c", &script];
    let (success, printed) = output_of(&arguments);
    assert!(success, "{printed}");
    // As of a card whose kernel has it.
    assert!(printed.contains("nothing was missing"), "{printed}");
}

#[test]
fn a_host_has_the_addresses_of_one_command() {
    let fabric = Running::new("exec-address", &["--topology", "single:2"]);
    let socket = fabric.path("socket");
    let exec = |address| {
        let host = ["exec", "--fabric", &socket, "--node", "host1", "--address", address, "--"];
        pollux(&[&host[..], &["sh", "-c", "echo begun; read line"]].concat())
    };
    let mut first = exec("10.0.0.1/24");
    let mut first = first.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut output = BufReader::new(first.stdout.take().expect("it is piped"));
    output.read_line(&mut String::new()).expect("it says so");
    let Output { status, stderr, .. } = exec("10.0.0.2/24").output().expect("it starts");
    let printed = String::from_utf8_lossy(&stderr);
    assert!(!status.success() && printed.contains("run both programs by one"), "{printed}");
    drop(first.stdin.take());
    first.wait().expect("it is ours");
    let arguments = ["exec", "--address", "10.0.0.1", "--", "true"];
    let (success, printed) = output_of(&arguments);
    assert!(!success && printed.contains("write an address with its prefix"), "{printed}");
}

/// A host behind a link of 2.5 Gb/s: perftest sends to it and waits for the acknowledgment of the
/// last byte, so its rate cannot be higher.
// req: iba-links
#[test]
fn perftest_measures_no_more_than_the_rate_of_a_paced_link() {
    const MEBIBYTES_PER_SECOND: f64 = 2.5e9 / 8.0 / (1 << 20) as f64;
    let test = "perftest_measures_no_more";
    let Some(_) = pollux_referee::program_of(test, "ib_send_bw", "--hca") else { return };
    let topology = std::env::temp_dir().join(format!("pollux-{}-paced.topo", std::process::id()));
    let dump = "Switch 2 \"S-1\" # \"switch1\"\n[1] \"H-1\"[1] # \"host1\" lid 1 4xEDR\n\
                [2] \"H-2\"[1] # \"host2\" lid 2 1xSDR\nCa 1 \"H-1\" # \"host1\"\n\
                Ca 1 \"H-2\" # \"host2\"\n";
    std::fs::write(&topology, dump).expect("there is a folder");
    let file = topology.display().to_string();
    let fabric = Running::new("exec-paced", &["--paced", "--topology", &file]);
    let (socket, port) = (fabric.path("socket"), free_port().to_string());
    let exec = |node, script: &str| {
        let host = ["exec", "--fabric", &socket, "--node", node, "--", "sh", "-c"];
        pollux(&[&host[..], &[&format!("{WITHIN_A_MINUTE} {script}")]].concat())
    };
    let mut server = exec("host2", &format!("exec ib_send_bw -F -p {port} >&2"));
    let mut server = server.stdin(Stdio::null()).spawn().expect("it starts");
    let mut client = exec("host1", &format!("within_a_minute ib_send_bw -F -p {port} localhost"));
    let Output { status, stdout, stderr } = client.output().expect("it starts");
    let printed = String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned();
    let _ = server.kill();
    server.wait().expect("it is ours");
    std::fs::remove_file(&topology).expect("it is there");
    assert!(status.success(), "{printed}");
    // The row has bytes, iterations, the peak, the average, and the message rate.
    let mut rows = printed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = rows.find(|row| row.len() == 5 && row[0] == "65536").expect(&printed);
    let average: f64 = row[3].parse().expect("a number");
    assert!(average <= MEBIBYTES_PER_SECOND, "{printed}");
}

#[test]
fn a_program_a_fabric_or_a_node_that_is_not_there_is_an_error() {
    let (success, printed) = output_of(&["exec", "--", "/nowhere/program"]);
    assert!(!success && printed.contains("/nowhere/program: No such file"), "{printed}");
    let fabric = ["exec", "--fabric", "/nowhere/fabric", "--wait", "0", "--", "true"];
    let (success, printed) = output_of(&fabric);
    assert!(!success && printed.contains("no node or fabric at /nowhere/fabric"), "{printed}");
    let (success, printed) = output_of(&["exec", "--node", "host7", "--", "true"]);
    assert!(!success && printed.contains("no node of this name or GUID: 'host7'"), "{printed}");
}
